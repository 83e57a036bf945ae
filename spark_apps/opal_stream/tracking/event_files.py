"""Tracking events in a folder: files of lines of JSON, each of one process and of a day at most, of which old ones are deleted.

All that is known of a file is in its name: `HOST-PROCESS-DAY-NUMBER.jsonl`. Files of other names are read, and never deleted.
"""

import errno
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from opal_lake.errors import InvalidInputError

EVENTS_OF = timedelta(days=1)  # an older loss is history
KEPT_FOR = timedelta(days=7)
KEPT_BYTES = 1 << 30  # of all processes together
_FILE_BYTES = 16 << 20
_OWN = re.compile(r".+-\d+-\d{8}-\d+\.jsonl")
_NEAR = 1 << 16
_NEEDED = {"at", "event", "stream", "topic", "topic_id", "partition", "low", "high"}
Event = Mapping[str, Any]


class FolderSink:
    """Each write opens its file, so that a folder that was away is written to again, and one that was deleted is made again."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._day, self._number = "", 1

    def __str__(self) -> str:
        return f"tracking events in {self._folder}"

    def send(self, events: Sequence[Event]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(event) + "\n" for event in events).encode()
        with self._open() as file:
            size = file.seek(0, os.SEEK_END)
            if (
                size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            ):  # a write was cut off, by a full disk or a crash
                lines = b"\n" + lines
            if file.write(lines) < len(lines):
                raise OSError(errno.ENOSPC, "only a part was written")

    def close(self) -> None:
        """Nothing is open."""

    def _open(self) -> FileIO:
        now = datetime.fromtimestamp(time.time(), UTC)
        path = self._path
        if f"{now:%Y%m%d}" != self._day:
            self._day, self._number = f"{now:%Y%m%d}", 1
        while _size_of(self._path) >= _FILE_BYTES:
            self._number += 1
        if self._path != path:
            with suppress(OSError):  # another process deletes them this moment
                delete_old_events(self._folder, now)
        return self._path.open("ab+", buffering=0)

    @property
    def _path(self) -> Path:
        return (
            self._folder / f"{socket.gethostname()}-{os.getpid()}-{self._day}-{self._number}.jsonl"
        )


def delete_old_events(folder: Path, now: datetime) -> None:
    """Files of the week before, and the oldest ones while they are too much together, but none whose events are still looked through."""
    entries = [(path.stat(), path) for path in folder.glob("*.jsonl") if _OWN.fullmatch(path.name)]
    kept = 0
    for status, path in sorted(entries, key=lambda entry: -entry[0].st_mtime):
        kept += status.st_size
        is_too_much = kept > KEPT_BYTES and status.st_mtime < (now - EVENTS_OF).timestamp()
        if is_too_much or status.st_mtime < (now - KEPT_FOR).timestamp():
            path.unlink(missing_ok=True)


class EventReader:
    """Reads the events of the last day. `broken` counts the lines that are none: of a crash, or a disk that was full."""

    def __init__(self, folder: str, now: datetime | None = None) -> None:
        if not Path(folder).is_dir():
            raise InvalidInputError(
                f"--tracking {folder!r}: there is no such folder; give the one that the stream writes its events into"
            )
        self._folder = Path(folder)
        self._since = (now or datetime.now(UTC)) - EVENTS_OF
        self.broken = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """One by one: there may be millions."""
        since = self._since.isoformat(timespec="milliseconds")
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                if path.stat().st_mtime >= self._since.timestamp():
                    yield from self._of_file(path, since)
            except FileNotFoundError:  # deleted this moment, for its age
                continue

    def _of_file(self, path: Path, since: str) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(_begin_of(file, since))
            for line in file:
                event = _event_of(line)
                self.broken += event is None and bool(line.strip())
                if event is not None and event["at"] >= since:
                    yield event


def _begin_of(file: BinaryIO, since: str) -> int:
    """Near before the first event from then on: a process writes them in the order of time."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _NEAR:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        event = next(
            (event for line in iter(file.readline, b"") if (event := _event_of(line)) is not None),
            None,
        )
        if event is not None and event["at"] < since:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()
    return file.tell()


def _event_of(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() >= _NEEDED else None


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
