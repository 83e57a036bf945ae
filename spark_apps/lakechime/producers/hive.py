"""Hive-style tables: folders named `dt=2026-11-01/hour=03`, and no metadata. What is there and was not before is a new partition.

A partition is told when it has a file, or, with a marker such as `_SUCCESS`, when it has that. Where its files have other names,
sizes or times than at the last look, the partition was written again: that is an update. With a marker only the marker counts: files
may change until it is written.

Times of files are as coarse as two seconds. A partition that was changed so lately could change again without another time, so it waits
until it is older: a look waits that long once, and leaves what is still being written to the next look. What was seen of each partition
is kept by partition, so that a look writes what is new, and the position stays small.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

from lakechime.answers import Registered
from lakechime.client import LakeChime
from lakechime.errors import InvalidEventError, LakeChimeError
from lakechime.event import (
    DEFAULT_CLUSTER,
    MAX_TAG_VALUE_CHARS,
    DataChangeEvent,
    JsonValue,
    OperationType,
    TableFormat,
)
from lakechime.producers.folders import Entry, Folder
from lakechime.producers.outbox import EVENTS_AT_ONCE, Origin, Position, Step, Target
from opal_lake.clock import Clock, SystemClock

SUCCESS = "_SUCCESS"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
VERSION = "hive.version"  # how often the partition was told: tells apart events that are alike in all else
SETTLED_MS = 2_000  # the coarsest times that files have
AHEAD_MS = 60_000  # times further ahead are no times: nobody waits for them
_SHOWN = 3


def partition_of_path(path: str, keys: Sequence[str] | None = None) -> tuple[str | None, ...]:
    """`dt=2026-11-01/hour=03` -> ("2026-11-01", "03"). The names of the levels must be those of `keys`, if they are given."""
    levels = [level.partition("=") for level in path.strip("/").split("/")]
    if any(not separator or not name for name, separator, _ in levels):
        raise InvalidEventError(
            f"{path!r} is no partition; write a folder for each level, as dt=2026-11-01/hour=03"
        )
    names = [unquote(name) for name, _, _ in levels]
    if keys is not None and names != [*keys]:
        raise InvalidEventError(
            f"the partition {path!r} has the levels {', '.join(names)}; give those of the table: {', '.join(keys)}"
        )
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

    clock: Clock = field(default_factory=SystemClock, compare=False, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, compare=False, repr=False)
    seen: Callable[[], Mapping[str, JsonValue]] = field(default=dict, compare=False, repr=False)

    def remembering(self, seen: Callable[[], Mapping[str, JsonValue]]) -> "HiveSource":
        return replace(self, seen=seen)

    def steps(self, position: Position | None) -> Iterator[Step]:
        """Register in portions, each with what was seen: after a kill the next look goes on behind."""
        folder = Folder.open(self.path, self.options)
        origin = Origin(
            table_format=TableFormat.HIVE,
            at=folder.path if "://" not in self.path else self.path.rstrip("/"),
        )
        if position is not None:
            origin.is_of(position, self.target)
        states, unsettled = self._settled(folder)
        files = _digest(*(f"{path} {state.files}" for path, state in sorted(states.items())))
        waiting = _waiting_note(unsettled)
        if position is not None and position["files"] == files and not unsettled:
            return
        seen = {
            unquote(item, errors="surrogateescape"): value for item, value in self.seen().items()
        }
        told, strangers = self._told(states, seen)
        if strangers and not told and not any(map(_is_partition, seen.values())):
            raise InvalidEventError(f"{self.path}: {_note([*strangers.values()])}")
        looks = 0 if position is None else position["looks"]
        new = {path: text for path, text in strangers.items() if path not in seen}
        remembered: list[tuple[str, DataChangeEvent | None, JsonValue]] = [
            (path, event, states[path].to_json(_version(seen.get(path)) + 1))
            for path, event in told
        ]
        remembered += [(path, None, None) for path in new]
        portions = [
            remembered[first : first + EVENTS_AT_ONCE]
            for first in range(0, len(remembered), EVENTS_AT_ONCE)
        ] or [[]]
        for number, portion in enumerate(portions, start=1):
            is_last = number == len(portions)
            yield Step(
                position={
                    **origin.to_json(),
                    "looks": looks + number,
                    "files": files if is_last else None,
                },
                events=tuple(event for _, event, _ in portion if event is not None),
                seen={
                    quote(path, safe="/=", errors="surrogateescape"): value
                    for path, _, value in portion
                },
                note=(_note([*new.values(), *waiting]) if is_last else None),
            )

    def _settled(self, folder: Folder) -> tuple[dict[str, "PartitionState"], list[str]]:
        """The partitions, and the paths of those that wait, since they are being written."""
        now_ms, states, unsettled = self._looked(folder)
        if unsettled:
            newest_ms = max(states[path].newest_ms for path in unsettled)
            self.sleep(min(newest_ms + SETTLED_MS - now_ms, 2 * SETTLED_MS) / 1000 + 0.01)
            _, states, unsettled = self._looked(folder)
        return {path: state for path, state in states.items() if path not in unsettled}, [
            *unsettled
        ]

    def _looked(self, folder: Folder) -> tuple[int, dict[str, "PartitionState"], dict[str, None]]:
        """When, what there is, and what of it is too young."""
        now_ms = self.clock.now_us() // 1000
        states = partition_states(folder.files(recursive=True), self.marker)
        young = (
            path
            for path, state in states.items()
            if now_ms - SETTLED_MS < state.newest_ms <= now_ms + AHEAD_MS
        )
        return now_ms, states, dict.fromkeys(young)

    def _told(
        self, states: Mapping[str, "PartitionState"], seen: Mapping[str, JsonValue]
    ) -> tuple[list[tuple[str, DataChangeEvent]], dict[str, str]]:
        """Events by path, the oldest first; and what is no partition, by its path, with the reason."""
        keys = self.keys or next(
            (_names(path) for path, value in seen.items() if _is_partition(value)), None
        )
        told, strangers = list[tuple[str, DataChangeEvent]](), dict[str, str]()
        for path, state in sorted(states.items(), key=lambda item: (item[1].newest_ms, item[0])):
            before = seen.get(path)
            if _is_partition(before) and state.to_json(_version(before)) == before:
                continue
            try:
                keys = keys or _names(path)
                told.append(
                    (path, self._event(path, state.newest_ms, keys, version=_version(before) + 1))
                )
            except LakeChimeError as error:
                strangers[path] = str(error)
        return told, strangers

    def _event(
        self, path: str, stamp: int, keys: Sequence[str], *, version: int
    ) -> DataChangeEvent:
        named = {"hive.path": path} if len(path) <= MAX_TAG_VALUE_CHARS else {}
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            partition=partition_of_path(path, keys),
            snapshot_ts=stamp,
            table_format=TableFormat.HIVE,
            operation_type=OperationType.APPEND if version == 1 else OperationType.UPDATE,
            tags=named if version == 1 else {**named, VERSION: str(version)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The newest time of a partition's files, or of its marker, and a digest of their names, sizes and times."""

    newest_ms: int
    files: str

    def to_json(self, version: int) -> JsonValue:
        return [self.newest_ms, self.files, version]


def partition_states(entries: Iterator[Entry], marker: str | None) -> dict[str, PartitionState]:
    """By path. Names that begin with `_` or `.` are not data."""
    files: dict[str, list[Entry]] = {}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        if folder and (name == marker if marker is not None else not hidden):
            files.setdefault(folder, []).append(entry)
    return {path: _state(mine) for path, mine in files.items()}


def _state(files: Sequence[Entry]) -> PartitionState:
    lines = (
        f"{file.path} {file.size} {file.modified_ns}"
        for file in sorted(files, key=lambda file: file.path)
    )
    return PartitionState(newest_ms=max(file.modified_ms for file in files), files=_digest(*lines))


def _digest(*lines: str) -> str:
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:12]).decode()


def _is_partition(value: Any) -> bool:
    """Else it was no partition, and that was said."""
    return isinstance(value, list)


def _version(value: Any) -> int:
    return int(value[2]) if _is_partition(value) else 0


def _waiting_note(unsettled: Sequence[str]) -> list[str]:
    if not unsettled:
        return []
    return [
        f"{len(unsettled):,} partitions are being written, such as {unsettled[0]!r}, and wait for the next look"
    ]


def _names(path: str) -> tuple[str, ...]:
    partition_of_path(path)
    return tuple(unquote(level.partition("=")[0]) for level in path.split("/"))


def _note(strangers: Sequence[str]) -> str | None:
    if not strangers:
        return None
    more = f"; and {len(strangers) - _SHOWN:,} more" if len(strangers) > _SHOWN else ""
    return "; ".join(strangers[:_SHOWN]) + more
