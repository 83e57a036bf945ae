"""The log of a Delta table: its versions and their changes.

deltalake opens the store of a log, so options are those of deltalake.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lakechime.errors import InvalidEventError, NotFoundError, UnavailableError
from lakechime.event import JsonValue

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOG = "_delta_log"
_READERS = 8  # threads that read commits
_DIGITS = 20  # of a version in a file name
_WHOLE = ("byte", "short", "integer", "long")
_MISSING = "Delta tables need deltalake, which is not installed: pip install 'opal-lake[delta]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """A partition column by its physical name, which column mapping may change."""

    name: str
    type: str

    def value(self, text: str | None) -> JsonValue:
        """Return a value of the column, which Delta stores as text.

        Whole numbers and booleans are converted; all other types stay texts.
        """
        if text is None:
            return None
        if self.type in _WHOLE:
            return int(text)
        if self.type == "boolean":
            return text == "true"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFile:
    """A file that a version added or removed, perhaps without partition values."""

    added: bool
    partition: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """A version: its operation, and the files by which it changed data.

    `columns` are the partition columns if this version set them, and None otherwise.
    """

    version: int
    checksum: int
    operation: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timestamp_ms: int | None = None
    files: tuple[TouchedFile, ...] = ()
    columns: tuple[PartitionColumn, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHead:
    """The newest version of a table."""

    version: int
    table_id: str
    columns: tuple[PartitionColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLog:
    """The folder `_delta_log` of a table."""

    path: str
    options: Mapping[str, str]
    filesystem: "FileSystem"

    @classmethod
    def open(cls, path: str, options: Mapping[str, str]) -> "DeltaLog":
        """Open the log at a path, without reading it."""
        try:
            from deltalake.exceptions import TableNotFoundError
            from deltalake.fs import DeltaStorageHandler
        except ImportError as error:
            raise InvalidEventError(_MISSING) from error
        from pyarrow.fs import PyFileSystem

        try:
            filesystem = PyFileSystem(DeltaStorageHandler(path, dict(options) or None))
        except TableNotFoundError as error:
            raise NotFoundError(f"{path} has no Delta table; correct the path") from error
        except (OSError, ValueError) as error:
            raise InvalidEventError(
                f"{path!r} is not the path of a Delta table ({error}); "
                "correct the path, or the options"
            ) from error
        return cls(path=path, options=options, filesystem=filesystem)

    def head(self) -> DeltaHead:
        """Return the newest version, as deltalake reads it, or raise NotFoundError."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.path, storage_options=dict(self.options) or None)
        except TableNotFoundError as error:
            raise NotFoundError(f"{self.path} has no Delta table; correct the path") from error
        except (DeltaError, OSError) as error:
            raise UnavailableError(
                f"the Delta table at {self.path} cannot be read ({error}); try again later"
            ) from error
        metadata = table.metadata()
        columns = partition_columns(metadata.partition_columns, table.schema().to_json())
        return DeltaHead(version=table.version(), table_id=str(metadata.id), columns=columns)

    def read(self, version: int) -> DeltaCommit | None:
        """Return the commit of a version, or None if the log does not have it."""
        path = f"{_LOG}/{version:0{_DIGITS}d}.json"
        try:
            with self.filesystem.open_input_file(path) as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(
                f"{self.path}/{path} cannot be read ({error}); try again later"
            ) from error
        return commit_from_bytes(version, data, f"{self.path}/{path}")

    def after(self, version: int) -> list[DeltaCommit]:
        """Return the commits after a version, oldest first.

        Their versions follow one another without a hole.
        """
        from pyarrow.fs import FileSelector

        try:
            entries = self.filesystem.get_file_info(FileSelector(_LOG, allow_not_found=True))
        except OSError as error:
            raise UnavailableError(
                f"{self.path}/{_LOG} cannot be listed ({error}); try again later"
            ) from error
        later_versions: list[int] = []
        for entry in entries:
            number = _version_of(entry.base_name)
            if number is not None and number > version:
                later_versions.append(number)
        with ThreadPoolExecutor(_READERS) as pool:
            answers = [*pool.map(self.read, sorted(later_versions))]
        # A clean-up meanwhile deletes the oldest first, so the remaining ones have no hole
        commits = [commit for commit in answers if commit is not None]
        for previous, following in pairwise(commits):
            if following.version != previous.version + 1:
                raise UnavailableError(
                    f"{self.path}/{_LOG} lacks version {previous.version + 1}, but has "
                    f"{following.version}; try again, or restore the log from a backup"
                )
        return commits


def _version_of(name: str) -> int | None:
    """Return the version of a commit file, or None for another file."""
    digits, suffix = name[:_DIGITS], name[_DIGITS:]
    if suffix != ".json" or not digits.isdecimal():
        return None
    return int(digits)


def commit_from_bytes(version: int, data: bytes, path: str) -> DeltaCommit:
    """Return the commit of a file, which has one action on each line."""
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        actions = [json.loads(line) for line in lines]
    except ValueError as error:
        raise InvalidEventError(
            f"{path} is not a commit of a Delta table ({error}); restore it from a backup"
        ) from error
    bodies_by_kind: dict[str, list[Any]] = {}
    for action in actions:
        for kind, body in action.items():
            bodies_by_kind.setdefault(kind, []).append(body)
    files = []
    for kind in ("add", "remove"):
        for body in bodies_by_kind.get(kind, ()):
            # A file that is moved only (OPTIMIZE) has dataChange false
            if body.get("dataChange", True):
                partition = body.get("partitionValues")
                files.append(TouchedFile(added=kind == "add", partition=partition))
    columns = None
    metadata = bodies_by_kind.get("metaData", [None])[-1]
    if metadata is not None:
        names = metadata.get("partitionColumns") or ()
        columns = partition_columns(names, metadata["schemaString"])
    info = bodies_by_kind.get("commitInfo", [{}])[0]
    return DeltaCommit(
        version=version,
        checksum=zlib.crc32(data),
        operation=str(info.get("operation") or ""),
        parameters=info.get("operationParameters") or {},
        timestamp_ms=info.get("inCommitTimestamp") or info.get("timestamp"),
        files=tuple(files),
        columns=columns,
    )


def partition_columns(names: Sequence[str], schema: str) -> tuple[PartitionColumn, ...]:
    """Return the partition columns of a schema, which is Delta's JSON."""
    fields = {member["name"]: member for member in json.loads(schema)["fields"]}
    return tuple(_column(name, fields.get(name, {})) for name in names)


def _column(name: str, member: Mapping[str, Any]) -> PartitionColumn:
    metadata = member.get("metadata") or {}
    physical_name = metadata.get("delta.columnMapping.physicalName", name)
    kind = member.get("type", "string")
    if not isinstance(kind, str):
        kind = "struct"
    return PartitionColumn(name=str(physical_name), type=kind)
