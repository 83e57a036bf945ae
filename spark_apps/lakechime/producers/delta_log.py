"""The log of a Delta table: which versions there are, and what each did. Stores and their options are deltalake's."""

import json
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakechime.errors import InvalidEventError, NotFoundError, UnavailableError
from lakechime.event import JsonValue

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOG = "_delta_log"
_READERS = 8
_DIGITS = 20
_WHOLE = ("byte", "short", "integer", "long")
_MISSING = "Delta tables need deltalake, which is not installed: pip install 'opal-lake[delta]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """By the name that files use for it, which column mapping may have changed."""

    name: str
    type: str

    def value(self, text: str | None) -> JsonValue:
        """Delta keeps values as text: a whole number and a boolean become what they are, all else stays as it is."""
        if text is None:
            return None
        if self.type in _WHOLE:
            return int(text)
        return text == "true" if self.type == "boolean" else text


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFile:
    """A file that a version added or took away. Partition values are not always said of one that was taken away."""

    added: bool
    partition: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """A version: its operation, the files with which it changed data, and the partition columns where it set them."""

    version: int
    checksum: int
    operation: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timestamp_ms: int | None = None
    files: tuple[TouchedFile, ...] = ()
    columns: tuple[PartitionColumn, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHead:
    """The newest version."""

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
        """Nothing is read yet."""
        try:
            from deltalake.exceptions import TableNotFoundError
            from deltalake.fs import DeltaStorageHandler
        except ImportError as error:
            raise InvalidEventError(_MISSING) from error
        from pyarrow.fs import PyFileSystem

        try:
            return cls(
                path=path,
                options=options,
                filesystem=PyFileSystem(DeltaStorageHandler(path, dict(options) or None)),
            )
        except TableNotFoundError as error:
            raise NotFoundError(f"there is no Delta table at {path}; correct the path") from error
        except (OSError, ValueError) as error:
            raise InvalidEventError(
                f"{path!r} is no place of a Delta table ({error}); correct the path, or the options"
            ) from error

    def head(self) -> DeltaHead:
        """As deltalake reads it; NotFoundError when there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.path, storage_options=dict(self.options) or None)
        except TableNotFoundError as error:
            raise NotFoundError(
                f"there is no Delta table at {self.path}; correct the path"
            ) from error
        except (DeltaError, OSError) as error:
            raise UnavailableError(
                f"the Delta table at {self.path} cannot be read ({error}); try again later"
            ) from error
        metadata = table.metadata()
        columns = partition_columns(metadata.partition_columns, table.schema().to_json())
        return DeltaHead(version=table.version(), table_id=str(metadata.id), columns=columns)

    def read(self, version: int) -> DeltaCommit | None:
        """None when the log has no such version: not yet, or not any more."""
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
        """What the log has after a version, oldest first, without a hole."""
        from pyarrow.fs import FileSelector

        try:
            entries = self.filesystem.get_file_info(FileSelector(_LOG, allow_not_found=True))
        except OSError as error:
            raise UnavailableError(
                f"{self.path}/{_LOG} cannot be listed ({error}); try again later"
            ) from error
        names = (entry.base_name for entry in entries)
        numbers = sorted(
            int(name[:_DIGITS])
            for name in names
            if name[_DIGITS:] == ".json" and name[:_DIGITS].isdecimal()
        )
        asked = [number for number in numbers if number > version]
        with ThreadPoolExecutor(_READERS) as pool:
            commits = [*pool.map(self.read, asked)]
        while commits and commits[0] is None:
            del commits[0]  # a clean-up takes the oldest first
        kept = [commit for commit in commits if commit is not None]
        if kept and [commit.version for commit in kept] != [
            *range(kept[0].version, kept[0].version + len(kept))
        ]:
            raise UnavailableError(
                f"the log of {self.path} has a hole after version {kept[0].version}; try again, or restore it from a backup"
            )
        return kept


def commit_from_bytes(version: int, data: bytes, path: str) -> DeltaCommit:
    """One action a line."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise InvalidEventError(
            f"{path} is no commit of a Delta table ({error}); restore it from a backup"
        ) from error
    by_kind: dict[str, list[Any]] = {}
    for action in actions:
        for kind, body in action.items():
            by_kind.setdefault(kind, []).append(body)
    info = (by_kind.get("commitInfo") or [{}])[0]
    metadata = (by_kind.get("metaData") or [None])[-1]
    return DeltaCommit(
        version=version,
        checksum=zlib.crc32(data),
        operation=str(info.get("operation") or ""),
        parameters=info.get("operationParameters") or {},
        timestamp_ms=info.get("inCommitTimestamp") or info.get("timestamp"),
        files=tuple(
            TouchedFile(added=kind == "add", partition=body.get("partitionValues"))
            for kind in ("add", "remove")
            for body in by_kind.get(kind, ())
            if body.get("dataChange", True)
        ),
        columns=None
        if metadata is None
        else partition_columns(metadata.get("partitionColumns") or (), metadata["schemaString"]),
    )


def partition_columns(names: Sequence[str], schema: str) -> tuple[PartitionColumn, ...]:
    fields = {member["name"]: member for member in json.loads(schema)["fields"]}
    return tuple(_column(name, fields.get(name, {})) for name in names)


def _column(name: str, member: Mapping[str, Any]) -> PartitionColumn:
    physical = (member.get("metadata") or {}).get("delta.columnMapping.physicalName", name)
    kind = member.get("type", "string")
    return PartitionColumn(name=str(physical), type=kind if isinstance(kind, str) else "struct")
