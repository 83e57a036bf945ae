"""Protocols of a worker's access to runs, and of the forms in which it stores them locally."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from opal_lake.data.segment import RunFile
from opal_lake.key_store.entries import Entries
from opal_lake.key_store.probe import Neighbours

GREATEST_WORD = (1 << 64) - 1


class RunCache(Protocol):
    """Runs by content. A run never changes: a local copy never becomes stale."""

    def neighbours(self, runs: Sequence[RunFile], new: Entries) -> list[Entries]:
        """Return at least the stored entries before and after each new one of its key.

        `new` is sorted by the first hash word. Raises FormatError that names the run when its bytes
        are not those that were written.
        """
        ...

    def slices(
        self, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
    ) -> Iterator[Entries]:
        """Yield entries with first hash words from `low` to `high`, at most `rows` a time."""
        ...

    def keep(self, run: RunFile, entries: Entries) -> None:
        """Store a run that this worker wrote, so that it need not be read back."""
        ...


class NearRun(Protocol):
    """A run in the form of a cache, on this worker's disk."""

    def neighbours(self, new: Entries) -> Neighbours:
        """Return the nearest entries of each new one's key, perhaps more of that key.

        The followers and the deltas of their predecessors are exact.
        """
        ...

    def slices(self, rows: int, low: int, high: int) -> Iterator[Entries]: ...


class NearForm(Protocol):
    """A form in which a cache stores runs.

    Its files are written once, whole, and then only read, by any number of processes.
    """

    @property
    def suffix(self) -> str:
        """The end of the names of its files or folders."""
        ...

    def size_of(self, count: int, ties: int) -> int:
        """Return about how many bytes `count` entries take, or more."""
        ...

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        """Write `count` entries in order, as a new file or folder."""
        ...

    def open(self, path: Path) -> NearRun:
        """Open a run. Raises OSError if it is missing or incomplete."""
        ...
