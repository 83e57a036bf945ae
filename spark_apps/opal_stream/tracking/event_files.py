"""Tracking events in a folder: files of lines of JSON, each of one process and one day at most.

The name of a file is `HOST-PROCESS-DAY-NUMBER.jsonl`. Old files are deleted; files of other names
are read, and never deleted.
"""

import errno
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from opal_lake.errors import InvalidInputError

EVENTS_OF = timedelta(days=1)  # an older loss is history
KEPT_FOR = timedelta(days=7)
KEPT_BYTES = 1 << 30  # of all processes together
_OWN = re.compile(r".+-\d+-\d{8}-\d+\.jsonl")
_NEAR = 1 << 16  # bytes: a search by halves ends so near before the first event
_NEEDED = {"at", "event", "stream", "topic", "topic_id", "partition", "low", "high"}
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """The bytes of one file, and of the files that all processes keep together."""

    file_bytes: int = 16 << 20
    kept_bytes: int = KEPT_BYTES


class FolderSink:
    """A folder to write events to.

    Each write opens its file, so that a folder that was unavailable is written to again, and one
    that was deleted is created again.
    """

    def __init__(self, folder: str, *, limits: FileLimits | None = None) -> None:
        self._folder = Path(folder)
        self._limits = limits or FileLimits()
        self._day, self._number = "", 1

    def __str__(self) -> str:
        return f"tracking events in {self._folder}"

    def send(self, events: Sequence[Event]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(event) + "\n" for event in events).encode()
        with self._open() as file:
            size = file.seek(0, os.SEEK_END)
            # A full disk or a crash may have cut off the last write
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines
            if file.write(lines) < len(lines):
                raise OSError(errno.ENOSPC, "only a part was written")

    def close(self) -> None:
        """Do nothing: no file is open between two writes."""

    def _open(self) -> FileIO:
        now = datetime.fromtimestamp(time.time(), UTC)
        last_path = self._path
        day = f"{now:%Y%m%d}"
        if day != self._day:
            self._day, self._number = day, 1
        while _size_of(self._path) >= self._limits.file_bytes:
            self._number += 1
        if self._path != last_path:
            with suppress(OSError):  # another process deletes the same files
                delete_old_events(self._folder, now, self._limits.kept_bytes)
        return self._path.open("ab+", buffering=0)

    @property
    def _path(self) -> Path:
        process = f"{socket.gethostname()}-{os.getpid()}"
        return self._folder / f"{process}-{self._day}-{self._number}.jsonl"


def delete_old_events(folder: Path, now: datetime, kept_bytes: int = KEPT_BYTES) -> None:
    """Delete files of more than a week ago, and the oldest ones of too many bytes.

    Files of the last day stay in any case: alarms still read their events.
    """
    paths = [path for path in folder.glob("*.jsonl") if _OWN.fullmatch(path.name)]
    entries = [(path.stat(), path) for path in paths]
    newest_first = sorted(entries, key=lambda entry: -entry[0].st_mtime)
    needed_since = (now - EVENTS_OF).timestamp()
    kept_since = (now - KEPT_FOR).timestamp()
    size = 0
    for status, path in newest_first:
        size += status.st_size
        is_too_much = size > kept_bytes and status.st_mtime < needed_since
        if is_too_much or status.st_mtime < kept_since:
            path.unlink(missing_ok=True)


class EventReader:
    """A reader of the events of the last day.

    `broken` counts lines that are not events: of a crash, or of a full disk.
    """

    def __init__(self, folder: str, now: datetime | None = None) -> None:
        if not Path(folder).is_dir():
            raise InvalidInputError(
                f"tracking={folder!r} is not a folder; give the one that the stream writes its "
                "events into"
            )
        self._folder = Path(folder)
        self._since = (now or datetime.now(UTC)) - EVENTS_OF
        self.broken = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the events one by one: there may be millions."""
        since = self._since.isoformat(timespec="milliseconds")
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                if path.stat().st_mtime >= self._since.timestamp():
                    yield from self._of_file(path, since)
            except FileNotFoundError:  # another process has just deleted it, for its age
                continue

    def _of_file(self, path: Path, since: str) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(_begin_of(file, since))
            for line in file:
                event = _event_of(line)
                if event is None:
                    self.broken += bool(line.strip())
                elif event["at"] >= since:
                    yield event


def _begin_of(file: BinaryIO, since: str) -> int:
    """Return an offset shortly before the first event at or after `since`.

    A process writes its events in the order of their times.
    """
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _NEAR:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        event = _next_event(file)
        if event is not None and event["at"] < since:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()
    return file.tell()


def _next_event(file: BinaryIO) -> dict[str, Any] | None:
    for line in iter(file.readline, b""):
        event = _event_of(line)
        if event is not None:
            return event
    return None


def _event_of(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    is_event = isinstance(event, dict) and event.keys() >= _NEEDED
    return event if is_event else None


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
