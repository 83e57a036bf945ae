"""Hive-style tables: folders named `dt=2026-11-01/hour=03`, without metadata.

A folder that was missing at the last look is a new partition. It is registered when it has a file,
or, with a marker such as `_SUCCESS`, when it has the marker. If its files have other names, sizes
or times than at the last look, the partition was written again: that is an update. With a marker
only the marker counts: files may change until it is written.

Times of files may be as coarse as two seconds. A partition that changed within that time could
change again without another time, so it waits until it is older. A look waits that long once, and
leaves what is still being written to the next look. The state of each partition is stored by
partition, so that a look writes only what is new, and the position stays small.
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
# How often the partition was registered: it distinguishes events that are otherwise equal
VERSION = "hive.version"
SETTLED_MS = 2_000  # the coarsest resolution of file times
AHEAD_MS = 60_000  # a look does not wait for a time that is further ahead: a clock was wrong
_SHOWN_NOTES = 3

# A path below the table's folder, its event (None of a misfit), and the state to store
_Change = tuple[str, DataChangeEvent | None, JsonValue]


def partition_of_path(path: str, keys: Sequence[str] | None = None) -> tuple[str | None, ...]:
    """Return the partition of a path: ("2026-11-01", "03") of `dt=2026-11-01/hour=03`.

    The names of the levels must be those of `keys`, if they are given.
    """
    levels = [level.partition("=") for level in path.strip("/").split("/")]
    if any(not separator or not name for name, separator, _ in levels):
        raise InvalidEventError(
            f"{path!r} is not a partition; write a folder for each level, as dt=2026-11-01/hour=03"
        )
    names = [unquote(name) for name, _, _ in levels]
    if keys is not None and names != [*keys]:
        raise InvalidEventError(
            f"the partition {path!r} has the levels {', '.join(names)}; "
            f"give those of the table: {', '.join(keys)}"
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
    """Register a partition on behalf of its writer. A repeat is the same event."""
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
    """A folder with a folder for each partition.

    `keys` are the names of the levels; without them those of the first partition count. Folders
    that are not partitions are reported once, in a note. They are an error where no other exist.
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
        """Yield steps in portions, so that a look after a kill goes on from there."""
        folder = Folder.open(self.path, self.options)
        path = folder.path if "://" not in self.path else self.path.rstrip("/")
        origin = Origin(table_format=TableFormat.HIVE, at=path)
        if position is not None:
            origin.is_of(position, self.target)  # raises for a table at another path
        states, unsettled = self._settled(folder)
        files = _digest(*(f"{path} {state.files}" for path, state in sorted(states.items())))
        if position is not None and position["files"] == files and not unsettled:
            return
        changes, notes = self._changes(states)
        if unsettled:
            notes.append(_waiting_note(unsettled))
        looks = 0 if position is None else position["looks"]
        # One step at least, which moves the position
        starts = range(0, max(len(changes), 1), EVENTS_AT_ONCE)
        for number, start in enumerate(starts, start=1):
            portion = changes[start : start + EVENTS_AT_ONCE]
            is_last = number == len(starts)
            yield Step(
                position={
                    **origin.to_json(),
                    "looks": looks + number,
                    # Unknown until all portions are registered, so that the next look compares
                    "files": files if is_last else None,
                },
                events=tuple(event for _, event, _ in portion if event is not None),
                seen={_item_of(path): state for path, _, state in portion},
                note=_joined_notes(notes) if is_last else None,
            )

    def _settled(self, folder: Folder) -> tuple[dict[str, "PartitionState"], list[str]]:
        """Return the settled partitions, and the paths of those that are being written."""
        now_ms, states, unsettled = self._look(folder)
        if unsettled:
            newest_ms = max(states[path].newest_ms for path in unsettled)
            wait_ms = min(newest_ms + SETTLED_MS - now_ms, 2 * SETTLED_MS)
            self.sleep(wait_ms / 1000 + 0.01)
            _, states, unsettled = self._look(folder)
        settled = {path: state for path, state in states.items() if path not in unsettled}
        return settled, [*unsettled]

    def _look(self, folder: Folder) -> tuple[int, dict[str, "PartitionState"], dict[str, None]]:
        """Return the time, the partitions, and the paths of those that are too young."""
        # The time first: a file that is written during the look counts as young
        now_ms = self.clock.now_us() // 1000
        states = partition_states(folder.files(recursive=True), self.marker)
        young = (
            path
            for path, state in states.items()
            if now_ms - SETTLED_MS < state.newest_ms <= now_ms + AHEAD_MS
        )
        return now_ms, states, dict.fromkeys(young)

    def _changes(self, states: Mapping[str, "PartitionState"]) -> tuple[list[_Change], list[str]]:
        """Return the changed partitions, oldest first, and notes on misfits."""
        seen = {_path_of(item): state for item, state in self.seen().items()}
        events, misfits = self._events(states, seen)
        if misfits and not events and not any(map(_is_partition, seen.values())):
            raise InvalidEventError(f"{self.path}: {_joined_notes([*misfits.values()])}")
        changes: list[_Change] = []
        for path, event in events:
            version = _version(seen.get(path)) + 1
            changes.append((path, event, states[path].to_json(version)))
        # Each misfit is reported once
        new_misfits = {path: reason for path, reason in misfits.items() if path not in seen}
        changes += [(path, None, None) for path in new_misfits]
        return changes, [*new_misfits.values()]

    def _events(
        self, states: Mapping[str, "PartitionState"], seen: Mapping[str, JsonValue]
    ) -> tuple[list[tuple[str, DataChangeEvent]], dict[str, str]]:
        """Return (path, event) pairs, oldest first, and the misfits' reasons."""
        keys = self.keys
        if not keys:
            known_partitions = (path for path, state in seen.items() if _is_partition(state))
            first_path = next(known_partitions, None)
            keys = None if first_path is None else _names(first_path)
        events: list[tuple[str, DataChangeEvent]] = []
        misfits: dict[str, str] = {}
        for path, state in sorted(states.items(), key=lambda item: (item[1].newest_ms, item[0])):
            before = seen.get(path)
            if _is_partition(before) and state.to_json(_version(before)) == before:
                continue
            try:
                keys = keys or _names(path)
                version = _version(before) + 1
                events.append((path, self._event(path, state.newest_ms, keys, version=version)))
            except LakeChimeError as error:
                misfits[path] = str(error)
        return events, misfits

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
    """The newest time of a partition's files, or of its marker.

    `files` is a digest of their names, sizes and times.
    """

    newest_ms: int
    files: str

    def to_json(self, version: int) -> JsonValue:
        return [self.newest_ms, self.files, version]


def partition_states(entries: Iterator[Entry], marker: str | None) -> dict[str, PartitionState]:
    """Return the states of partitions by path.

    Files and folders whose names begin with `_` or `.` are not data.
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
    lines = (f"{file.path} {file.size} {file.modified_ns}" for file in by_path)
    return PartitionState(newest_ms=max(file.modified_ms for file in files), files=_digest(*lines))


def _item_of(path: str) -> str:
    """Return a path as an item of `seen`, also where its bytes are not text."""
    return quote(path, safe="/=", errors="surrogateescape")


def _path_of(item: str) -> str:
    return unquote(item, errors="surrogateescape")


def _digest(*lines: str) -> str:
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:12]).decode()


def _is_partition(value: Any) -> bool:
    """Return whether a stored state is that of a partition, not of a misfit."""
    return isinstance(value, list)


def _version(value: Any) -> int:
    return int(value[2]) if _is_partition(value) else 0


def _waiting_note(unsettled: Sequence[str]) -> str:
    return (
        f"{len(unsettled):,} partitions are being written, such as {unsettled[0]!r}, "
        "and wait for the next look"
    )


def _names(path: str) -> tuple[str, ...]:
    partition_of_path(path)
    return tuple(unquote(level.partition("=")[0]) for level in path.split("/"))


def _joined_notes(notes: Sequence[str]) -> str | None:
    """Return the first notes and the number of others, or None without any."""
    if not notes:
        return None
    text = "; ".join(notes[:_SHOWN_NOTES])
    hidden = len(notes) - _SHOWN_NOTES
    return f"{text}; and {hidden:,} more" if hidden > 0 else text
