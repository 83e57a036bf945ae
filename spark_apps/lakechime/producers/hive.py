"""Hive-style tables: folders named `dt=2026-11-01/hour=03`, and no metadata. What is there and was not before is a new partition.

A partition is told when it has a file, or, with a marker such as `_SUCCESS`, when it has that. Where its newest file, or the marker, is
younger than at the last look, the partition was written again: that is an update.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from lakechime.answers import Registered
from lakechime.client import LakeChime
from lakechime.errors import InvalidEventError, LakeChimeError
from lakechime.event import DEFAULT_CLUSTER, DataChangeEvent, OperationType, TableFormat
from lakechime.producers.folders import Entry, Folder
from lakechime.producers.outbox import Origin, Position, Step, Target

SUCCESS = "_SUCCESS"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SHOWN = 3


def partition_of_path(path: str, keys: Sequence[str] | None = None) -> tuple[str | None, ...]:
    """`dt=2026-11-01/hour=03` -> ("2026-11-01", "03"). The names of the levels must be those of `keys`, if they are given."""
    levels = [level.partition("=") for level in path.strip("/").split("/")]
    if any(not separator or not name for name, separator, _ in levels):
        raise InvalidEventError(f"{path!r} is no partition; write a folder for each level, as dt=2026-11-01/hour=03")
    names = [unquote(name) for name, _, _ in levels]
    if keys is not None and names != [*keys]:
        raise InvalidEventError(f"the partition {path!r} has the levels {', '.join(names)}, and those of the table are {', '.join(keys)}")
    return tuple(None if value == NO_VALUE else unquote(value) for _, _, value in levels)


def register_partition(
    client: LakeChime,
    table: str,
    path: str,
    *,
    cluster: str = DEFAULT_CLUSTER,
    keys: Sequence[str] | None = None,
    snapshot_ts: int | None = None,
    tags: Mapping[str, str] | None = None,
) -> Registered:
    """Say that a partition is there, as whoever has written it knows. The same again is the same event."""
    event = DataChangeEvent(
        table=table,
        cluster=cluster,
        partition=partition_of_path(path, keys),
        snapshot_ts=snapshot_ts,
        table_format=TableFormat.HIVE,
        operation_type=OperationType.APPEND,
        tags=tags or {},
    )
    return client.register([event])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveSource:
    """A folder with a folder for each partition. `keys` are the names of the levels; without them those of the first partition count.

    Folders that are no partitions are told once, in a note; only where there is nothing else is that an error.
    """

    path: str
    target: Target
    keys: tuple[str, ...] | None = None
    marker: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def steps(self, position: Position | None) -> Iterator[Step]:
        folder = Folder.open(self.path, self.options)
        origin = Origin(table_format=TableFormat.HIVE, at=folder.path if "://" not in self.path else self.path.rstrip("/"))
        if position is not None:
            origin.is_of(position, self.target)
        seen: dict[str, int] = {} if position is None else unpacked(position["seen"])
        stamps, strangers = newest_by_partition(folder.files(recursive=True), self.marker), dict[str, str]()
        told = {} if position is None else unpacked(position.get("strangers", packed({})))
        keys, events = self.keys or _keys_of(seen), list[DataChangeEvent]()
        for path, stamp in sorted(stamps.items(), key=lambda item: (item[1], item[0])):
            if stamp <= seen.get(path, -1):
                continue
            try:
                keys = keys or _names(path)
                events.append(self._event(path, stamp, keys, is_new=path not in seen))
                seen[path] = stamp
            except LakeChimeError as error:
                strangers[path] = str(error)
        if strangers and not seen:
            raise InvalidEventError(f"{self.path}: {_note([*strangers.values()])}")
        new = [text for path, text in strangers.items() if path not in told]
        if events or new:
            known = {} if not strangers else {"strangers": packed(dict.fromkeys(strangers, 0))}
            yield Step(position={**origin.to_json(), "seen": packed(seen), **known}, events=tuple(events), note=_note(new))

    def _event(self, path: str, stamp: int, keys: Sequence[str], *, is_new: bool) -> DataChangeEvent:
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            partition=partition_of_path(path, keys),
            snapshot_ts=stamp,
            table_format=TableFormat.HIVE,
            operation_type=OperationType.APPEND if is_new else OperationType.UPDATE,
            tags={"hive.path": path} if len(path) <= 1024 else {},
        )


def newest_by_partition(entries: Iterator[Entry], marker: str | None) -> dict[str, int]:
    """When each partition's newest file came, or its marker. Names that begin with `_` or `.` are not data."""
    stamps: dict[str, int] = {}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        if folder and (name == marker if marker is not None else not hidden):
            stamps[folder] = max(entry.modified_ms, stamps.get(folder, 0))
    return stamps


def _names(path: str) -> tuple[str, ...]:
    partition_of_path(path)
    return tuple(unquote(level.partition("=")[0]) for level in path.split("/"))


def _keys_of(seen: Mapping[str, int]) -> tuple[str, ...] | None:
    return next((_names(path) for path in seen), None)


def _note(strangers: Sequence[str]) -> str | None:
    if not strangers:
        return None
    more = f"; and {len(strangers) - _SHOWN:,} more" if len(strangers) > _SHOWN else ""
    return "; ".join(strangers[:_SHOWN]) + more


def packed(seen: Mapping[str, int]) -> str:
    """Sorted paths are much alike: some bytes each."""
    lines = "\n".join(f"{path}\t{stamp}" for path, stamp in sorted(seen.items()))
    return base64.b64encode(zlib.compress(lines.encode("utf-8", "surrogateescape"))).decode()


def unpacked(text: str) -> dict[str, int]:
    lines = zlib.decompress(base64.b64decode(text)).decode("utf-8", "surrogateescape").split("\n")
    pairs = (line.rpartition("\t") for line in lines if line)
    return {path: int(stamp) for path, _, stamp in pairs}
