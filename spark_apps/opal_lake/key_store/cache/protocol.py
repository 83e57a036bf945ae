"""How a worker reaches runs, and in what form it keeps them near."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from opal_lake.data.segment import RunFile
from opal_lake.key_store.entries import Entries
from opal_lake.key_store.probe import Neighbours

GREATEST_WORD = (1 << 64) - 1


class RunCache(Protocol):
    """Runs by content: a run never changes, so that what is near is right for ever."""

    def neighbours(self, runs: Sequence[RunFile], new: Entries) -> list[Entries]:
        """Of each new entry at least the nearest stored ones before and after it of its key.

        `new` is sorted by the first hash word. Raises FormatError naming the run when its bytes are not what was written.
        """
        ...

    def slices(
        self, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
    ) -> Iterator[Entries]:
        """The entries with first hash words from `low` to `high` in order, at most so many at a time."""
        ...

    def keep(self, run: RunFile, entries: Entries) -> None:
        """Called by the writer of a run, so that this worker need not read it back."""
        ...


class NearRun(Protocol):
    """A run in the form of a cache, on this worker's disk."""

    def neighbours(self, new: Entries) -> Neighbours:
        """The nearest entries of each new one's key, perhaps more of that key; the followers and their predecessors exactly."""
        ...

    def slices(self, rows: int, low: int, high: int) -> Iterator[Entries]: ...


class NearForm(Protocol):
    """How a cache keeps runs. The files of a form are written once, whole, and then only read, by any number of processes."""

    @property
    def suffix(self) -> str:
        """Ends the names of its files or folders."""
        ...

    def size_of(self, count: int, ties: int) -> int:
        """The bytes that so many entries take; at least about so many."""
        ...

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        """`count` entries in order, as a file or a folder that is not there yet."""
        ...

    def open(self, path: Path) -> NearRun:
        """Raises OSError when there is none, or when it is not whole."""
        ...
