"""The backlog of gathered files, and the gate that stops reading while it is too large."""

import logging
import time
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.errors import StorageError
from opal_lake.storage.protocol import Storage

# A smaller file counts as this many bytes: many small files take the committer as long as a few
# large ones
MIN_FILE_BYTES = 64 << 10
MIB = 1 << 20
_LOOK_S, _REPORT_S = 2.0, 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of a stream's gathered files, and the bytes that they count as."""

    files: int = 0
    weight: int = 0

    @classmethod
    def read(cls, storage: Storage, stream: str) -> "Backlog":
        """Return the backlog in the folder of a stream."""
        entries = storage.list(layout.gathered_prefix(f"kafka:{stream}/"))
        sizes = [max(MIN_FILE_BYTES, entry.size) for entry in entries]
        return cls(files=len(sizes), weight=sum(sizes))

    def __str__(self) -> str:
        return f"{self.files:,} gathered files, which count as {self.weight / MIB:,.0f} MiB"

    def is_too_much(self, max_bytes: int) -> bool:
        """Return whether the backlog reaches a limit; 0 means no limit."""
        return 0 < max_bytes <= self.weight


class Gate:
    """A gate that is shut, so that no message is read, while the backlog is too large.

    It logs now and then that it is shut, and what to do.
    """

    def __init__(self, storage: Storage, stream: str, max_bytes: int, table: str) -> None:
        self._storage = storage
        self._stream = stream
        self._max_bytes = max_bytes
        self._table = table
        self._looked_s = -_LOOK_S
        self._reported_s: float | None = None
        self._written = 0  # what this process wrote since the last look, weighed as in `Backlog`
        self.backlog = Backlog()
        self.shut_since_s: float | None = None

    def count_file(self, size: int) -> None:
        """Count a file that this process has written since the last look."""
        self._written += max(MIN_FILE_BYTES, size)

    def is_shut(self, now_s: float) -> bool:
        """Return whether the gate is shut.

        It lists the folder every two seconds, and earlier if this process has written so much that
        the gate may have to shut.
        """
        if self._max_bytes <= 0:
            return False
        weight = self.backlog.weight + self._written
        may_have_to_shut = self.shut_since_s is None and weight >= self._max_bytes
        if may_have_to_shut or now_s - self._looked_s >= _LOOK_S:
            self._look(now_s)
        return self.shut_since_s is not None

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        try:
            self.backlog = Backlog.read(self._storage, self._stream)
        except StorageError:  # the next flush fails, too, and reports it
            return
        self._written = 0
        if self.backlog.is_too_much(self._max_bytes):
            if self.shut_since_s is None:
                self.shut_since_s = now_s
            if self._reported_s is None or now_s - self._reported_s >= _REPORT_S:
                self._reported_s = now_s
                logger.warning(
                    "reading has stopped: %s",
                    held_back_text(self.backlog, self._max_bytes, self._table, self._stream),
                )
        elif self.shut_since_s is not None:
            logger.warning("reading continues after %.0f s", now_s - self.shut_since_s)
            self.shut_since_s = None

    def shut_duration_s(self) -> float:
        """Return for how many seconds the gate has been shut."""
        if self.shut_since_s is None:
            return 0.0
        return time.monotonic() - self.shut_since_s


def held_back_text(backlog: Backlog, max_bytes: int, table: str, stream: str) -> str:
    """Return the message about a backlog that stops reading, with what to do."""
    return (
        f"{backlog}, wait for a commit, and the limit is {max_bytes // MIB:,} MiB "
        "(--gathered-mb). Check "
        f"that `{committer_command(table, stream)}` runs, and read its log. Start it, or raise "
        "the limit"
    )


def committer_command(table: str, stream: str) -> str:
    """Return the command that commits the gathered files of a stream."""
    command = f"opal stream commit {table}"
    if stream == "main":
        return command
    return f"{command} --name {stream}"
