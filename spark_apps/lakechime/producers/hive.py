"""Hive-style tables: folders named `dt=2026-11-01/hour=03`, without metadata.

A folder that was missing at the last look is a new partition. It is registered when it has a file,
or, with a marker such as `_SUCCESS`, when it has the marker. If its files have other names, sizes
or times than at the last look, the partition was updated. With a marker only the marker counts,
and other files may change until it is written.

Times of files may be as coarse as two seconds. A partition that is younger could change without a
new time, so it is not registered yet. A look waits once until it is old enough, and leaves
partitions that are still being written to the next look. The state of each partition is stored as
an item of its own, so that a look writes only new states, and the position stays small.
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
# The tag with the number of times that the partition was registered: without it, the events of two
# updates would be equal
VERSION = "hive.version"
SETTLED_MS = 2_000  # the coarsest resolution of file times
AHEAD_MS = 60_000  # a time that is further ahead comes from a wrong clock, and no look waits for it
_SHOWN_NOTES = 3
_DIGEST_BYTES = 12

# (path below the table's folder, event or None, state to store); both are None for a folder that is
# not a partition
_Change = tuple[str, DataChangeEvent | None, JsonValue]


def partition_of_path(path: str, keys: Sequence[str] | None = None) -> tuple[str | None, ...]:
    """Return the values in a path: ("2026-11-01", "03") for `dt=2026-11-01/hour=03`.

    Raises InvalidEventError if `keys` are given and the path names other levels.
    """
    names: list[str] = []
    values: list[str | None] = []
    for level in path.strip("/").split("/"):
        name, separator, value = level.partition("=")
        if not separator or not name:
            raise InvalidEventError(
                f"{path!r} is not a partition; "
                "write one folder for each level, such as dt=2026-11-01/hour=03"
            )
        names.append(unquote(name))
        values.append(None if value == NO_VALUE else unquote(value))
    if keys is not None and names != [*keys]:
        raise InvalidEventError(
            f"the partition {path!r} has the levels {', '.join(names)}, "
            f"and the table has {', '.join(keys)}; write the levels of the table"
        )
    return tuple(values)


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
    """Register a partition from the job that wrote it. A repeat registers nothing new."""
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
    """A table's folder, which has a folder for each partition.

    `keys` are the names of the levels; by default those of the first partition. Folders that are
    not partitions are reported once, in a note. They are an error if no partition exists.
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
        """Yield the changes since the last look, in portions.

        Each portion has its position, so that a look after a kill continues from there.
        """
        folder = Folder.open(self.path, self.options)
        table_path = folder.path
        if "://" in self.path:
            table_path = self.path.rstrip("/")
        origin = Origin(table_format=TableFormat.HIVE, at=table_path)
        if position is not None:
            origin.is_of(position, self.target)  # raises if the name belongs to another path
        states, unsettled = self._settled(folder)
        lines = [f"{path} {state.files}" for path, state in sorted(states.items())]
        files = _digest(*lines)
        if position is not None and position["files"] == files and not unsettled:
            return
        changes, notes = self._changes(states)
        if unsettled:
            notes.append(_waiting_note(unsettled))
        looks = 0 if position is None else position["looks"]
        # At least one step, which moves the position
        starts = range(0, max(len(changes), 1), EVENTS_AT_ONCE)
        for number, start in enumerate(starts, start=1):
            portion = changes[start : start + EVENTS_AT_ONCE]
            is_last = number == len(starts)
            yield Step(
                position={
                    **origin.to_json(),
                    "looks": looks + number,
                    # None until all portions are registered: then the next look compares again
                    "files": files if is_last else None,
                },
                events=tuple(event for _, event, _ in portion if event is not None),
                seen={_item_of(path): state for path, _, state in portion},
                note=_joined_notes(notes) if is_last else None,
            )

    def _settled(self, folder: Folder) -> tuple[dict[str, "PartitionState"], list[str]]:
        """Return (states by path of the settled partitions, paths of the unsettled ones).

        A partition is unsettled while its newest file is too young to show a later change.
        """
        now_ms, states, unsettled = self._look(folder)
        if unsettled:
            newest_ms = max(states[path].newest_ms for path in unsettled)
            wait_ms = min(newest_ms + SETTLED_MS - now_ms, 2 * SETTLED_MS)
            self.sleep(wait_ms / 1000 + 0.01)
            _, states, unsettled = self._look(folder)
        for path in unsettled:
            del states[path]
        return states, unsettled

    def _look(self, folder: Folder) -> tuple[int, dict[str, "PartitionState"], list[str]]:
        """Return (time of the look, states by path, paths of unsettled partitions)."""
        # The time is read first: a file that is written during the look counts as young
        now_ms = self.clock.now_us() // 1000
        states = partition_states(folder.files(recursive=True), self.marker)
        unsettled: list[str] = []
        for path, state in states.items():
            if now_ms - SETTLED_MS < state.newest_ms <= now_ms + AHEAD_MS:
                unsettled.append(path)
        return now_ms, states, unsettled

    def _changes(self, states: Mapping[str, "PartitionState"]) -> tuple[list[_Change], list[str]]:
        """Return (changes, oldest first; notes on new folders that are not partitions)."""
        seen = {_path_of(item): state for item, state in self.seen().items()}
        events, misfits = self._events(states, seen)
        has_partition = bool(events) or any(map(_is_partition, seen.values()))
        if misfits and not has_partition:
            raise InvalidEventError(f"{self.path}: {_joined_notes([*misfits.values()])}")
        changes: list[_Change] = []
        for path, event in events:
            version = _version(seen.get(path)) + 1
            new_state = states[path].to_json(version)
            changes.append((path, event, new_state))
        notes: list[str] = []
        for path, reason in misfits.items():
            if path not in seen:  # each misfit is reported once
                changes.append((path, None, None))
                notes.append(reason)
        return changes, notes

    def _events(
        self, states: Mapping[str, "PartitionState"], seen: Mapping[str, JsonValue]
    ) -> tuple[list[tuple[str, DataChangeEvent]], dict[str, str]]:
        """Return (pairs of path and event, oldest first; reasons of misfits by path).

        A misfit is a folder that is not a partition, or one with other levels than `keys`.
        """
        keys = self.keys or self._keys_seen(seen)
        events: list[tuple[str, DataChangeEvent]] = []
        misfits: dict[str, str] = {}
        oldest_first = sorted(states, key=lambda path: (states[path].newest_ms, path))
        for path in oldest_first:
            state = states[path]
            seen_state = seen.get(path)
            version = _version(seen_state)
            if _is_partition(seen_state) and state.to_json(version) == seen_state:
                continue
            try:
                if not keys:
                    keys = _names(path)
                event = self._event(path, state.newest_ms, keys, version=version + 1)
            except LakeChimeError as error:
                misfits[path] = str(error)
                continue
            events.append((path, event))
        return events, misfits

    def _keys_seen(self, seen: Mapping[str, JsonValue]) -> tuple[str, ...] | None:
        """Return the level names of the first known partition, or None without any."""
        for path, state in seen.items():
            if _is_partition(state):
                return _names(path)
        return None

    def _event(
        self, path: str, snapshot_ts: int, keys: Sequence[str], *, version: int
    ) -> DataChangeEvent:
        tags = {}
        if len(path) <= MAX_TAG_VALUE_CHARS:
            tags["hive.path"] = path
        operation = OperationType.APPEND
        if version > 1:
            tags[VERSION] = str(version)
            operation = OperationType.UPDATE
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            partition=partition_of_path(path, keys),
            snapshot_ts=snapshot_ts,
            table_format=TableFormat.HIVE,
            operation_type=operation,
            tags=tags,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The state of a partition's files, or of its marker.

    `newest_ms` is their newest time, and `files` a digest of their names, sizes and times.
    """

    newest_ms: int
    files: str

    def to_json(self, version: int) -> JsonValue:
        return [self.newest_ms, self.files, version]


def partition_states(entries: Iterator[Entry], marker: str | None) -> dict[str, PartitionState]:
    """Return the states of partitions by path.

    With a marker only the files of that name count. Without one, files and folders whose names
    begin with `_` or `.` do not count.
    """
    files: dict[str, list[Entry]] = {}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        if not folder:
            continue
        is_hidden = any(part.startswith(("_", ".")) for part in entry.path.split("/"))
        counts = not is_hidden if marker is None else name == marker
        if counts:
            files.setdefault(folder, []).append(entry)
    return {path: _state(entries_of_path) for path, entries_of_path in files.items()}


def _state(files: Sequence[Entry]) -> PartitionState:
    by_path = sorted(files, key=lambda file: file.path)
    lines = [f"{file.path} {file.size} {file.modified_ns}" for file in by_path]
    newest_ms = max(file.modified_ms for file in files)
    return PartitionState(newest_ms=newest_ms, files=_digest(*lines))


def _item_of(path: str) -> str:
    """Return a path as an item of `seen`, also where its bytes are not text."""
    return quote(path, safe="/=", errors="surrogateescape")


def _path_of(item: str) -> str:
    return unquote(item, errors="surrogateescape")


def _digest(*lines: str) -> str:
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(text).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode()


def _is_partition(value: Any) -> bool:
    """Return whether a stored state is of a partition, not of a misfit or missing."""
    return isinstance(value, list)


def _version(value: Any) -> int:
    """Return how often a partition was registered, by its stored state."""
    return int(value[2]) if _is_partition(value) else 0


def _waiting_note(unsettled: Sequence[str]) -> str:
    return (
        f"{len(unsettled):,} partitions are being written, such as {unsettled[0]!r}: "
        "a later look registers them"
    )


def _names(path: str) -> tuple[str, ...]:
    """Return the names of a partition's levels, or raise InvalidEventError."""
    partition_of_path(path)
    return tuple(unquote(level.partition("=")[0]) for level in path.split("/"))


def _joined_notes(notes: Sequence[str]) -> str | None:
    """Return the first notes and the number of others, or None for no notes."""
    if not notes:
        return None
    text = "; ".join(notes[:_SHOWN_NOTES])
    hidden = len(notes) - _SHOWN_NOTES
    if hidden > 0:
        text += f"; and {hidden:,} more"
    return text
