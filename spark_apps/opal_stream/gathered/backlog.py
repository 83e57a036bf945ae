"""How much has been gathered that no commit holds yet, and whether a process may gather more."""

import logging
import time
from dataclasses import dataclass

from opal_lake import layout
from opal_lake.errors import StorageError
from opal_lake.storage.protocol import Storage

LEAST_BYTES = (
    64 << 10
)  # a file counts as at least so many: many small ones take the committer as long
MIB = 1 << 20
_LOOK_S, _SAY_S = 2.0, 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What lies in the folder of a stream; `weight` are the bytes that count."""

    files: int = 0
    weight: int = 0

    @classmethod
    def read(cls, storage: Storage, stream: str) -> "Backlog":
        sizes = [
            max(LEAST_BYTES, entry.size)
            for entry in storage.list(layout.gathered_prefix(f"kafka:{stream}/"))
        ]
        return cls(files=len(sizes), weight=sum(sizes))

    def __str__(self) -> str:
        return f"{self.files:,} gathered files, which count as {self.weight / MIB:,.0f} MiB"

    def is_too_much(self, most_bytes: int) -> bool:
        """0 is no limit."""
        return 0 < most_bytes <= self.weight


class Gate:
    """Shut while as much waits for the committer as may: then a process reads no more. What it does about that is said now and then."""

    def __init__(self, storage: Storage, stream: str, most_bytes: int, table: str) -> None:
        self._storage = storage
        self._stream = stream
        self._most_bytes = most_bytes
        self._table = table
        self._looked_s = -_LOOK_S
        self._said_s: float | None = None
        self._written = 0
        self.backlog = Backlog()
        self.shut_since_s: float | None = None

    def wrote(self, size: int) -> None:
        """A file of so many bytes, which the last look has not seen."""
        self._written += max(LEAST_BYTES, size)

    def is_shut(self, now_s: float) -> bool:
        """Looks every two seconds, and when this process may have written too much since."""
        is_near = (
            self.shut_since_s is None
            and 0 < self._most_bytes <= self.backlog.weight + self._written
        )
        if self._most_bytes and (is_near or now_s - self._looked_s >= _LOOK_S):
            self._look(now_s)
        return self.shut_since_s is not None

    def _look(self, now_s: float) -> None:
        self._looked_s = now_s
        try:
            self.backlog = Backlog.read(self._storage, self._stream)
        except StorageError:  # a flush says so
            return
        self._written = 0
        if self.backlog.is_too_much(self._most_bytes):
            self.shut_since_s = now_s if self.shut_since_s is None else self.shut_since_s
            if self._said_s is None or now_s - self._said_s >= _SAY_S:
                self._said_s = now_s
                logger.warning(
                    "nothing more is read: %s",
                    held_back_text(self.backlog, self._most_bytes, self._table, self._stream),
                )
        elif self.shut_since_s is not None:
            logger.warning("reading goes on after %.0f s", now_s - self.shut_since_s)
            self.shut_since_s = None

    def shut_s(self) -> float:
        return 0.0 if self.shut_since_s is None else time.monotonic() - self.shut_since_s


def held_back_text(backlog: Backlog, most_bytes: int, table: str, stream: str) -> str:
    """And what to do."""
    return (
        f"{backlog}, wait for a commit, and --gathered-mb is {most_bytes // MIB:,}. Is `{committer_command(table, stream)}` running, and "
        "what does it say? Start it, or give more --gathered-mb"
    )


def committer_command(table: str, stream: str) -> str:
    return f"opal stream commit {table}" + ("" if stream == "main" else f" --name {stream}")
