"""Folders of a lake, on local disks and on S3: their files, sizes and times."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakechime.errors import InvalidEventError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Options of opal_lake's store and of pyiceberg, by the names that pyarrow uses
_S3_OPTIONS = {
    "endpoint_url": "endpoint_override",
    "region_name": "region",
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
}
_ADVICE = "write a local path, file:///path or s3://bucket/path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, by its path relative to the folder."""

    path: str
    size: int
    modified_ns: int

    @property
    def modified_ms(self) -> int:
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder in a store."""

    uri: str
    filesystem: "FileSystem"
    path: str

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str] | None = None) -> "Folder":
        """Open a folder, without reading it.

        Access keys come from the environment where the options name none.
        """
        from pyarrow import fs

        scheme, separator, path = uri.rstrip("/").partition("://")
        if not separator:
            return cls(uri=uri, filesystem=fs.LocalFileSystem(), path=os.path.abspath(uri))
        if scheme == "file":
            return cls(uri=uri, filesystem=fs.LocalFileSystem(), path=os.path.abspath(path))
        if scheme not in ("s3", "s3a"):
            raise InvalidEventError(
                f"{uri!r} has the scheme {scheme!r}, which is not supported; {_ADVICE}"
            )
        filesystem = fs.S3FileSystem(**_s3_arguments(options or {}))
        return cls(uri=uri, filesystem=filesystem, path=path)

    def files(self, *, recursive: bool = False) -> Iterator[Entry]:
        """Yield the files in the order of their paths.

        Raises NotFoundError for a missing folder.
        """
        from pyarrow.fs import FileSelector, FileType

        try:
            entries = self.filesystem.get_file_info(FileSelector(self.path, recursive=recursive))
        except FileNotFoundError as error:
            raise NotFoundError(
                f"the folder {self.uri} does not exist; correct the path"
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"the folder {self.uri} cannot be listed ({error}); check its permissions and "
                "the options of the store, or try again later"
            ) from error
        for entry in sorted(entries, key=lambda entry: entry.path):
            if entry.type == FileType.File:
                yield Entry(
                    path=entry.path[len(self.path) :].lstrip("/"),
                    size=entry.size,
                    modified_ns=entry.mtime_ns or 0,
                )


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the known options as arguments of pyarrow's S3FileSystem."""
    arguments = {}
    for name, value in options.items():
        if name in _S3_OPTIONS:
            arguments[_S3_OPTIONS[name]] = value
    scheme, separator, host = arguments.get("endpoint_override", "").partition("://")
    if separator:
        arguments |= {"endpoint_override": host, "scheme": scheme}
    return arguments
