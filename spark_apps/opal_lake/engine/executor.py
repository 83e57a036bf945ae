"""The port through which operations have their tasks run. An operation says what a task does; an executor says where, and with which rows.

A task may be attempted more than once, and two attempts of one may run at the same time. So an attempt puts its name into those of its
files, and only the result of one attempt comes back: what the others wrote, nothing refers to. Tasks and results are pickled where they
leave the process.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import tie_shift
from opal_lake.key_store.entries import Entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.spec.schema import Field
from opal_lake.storage.background_puts import background_puts
from opal_lake.storage.protocol import Storage

HASH = "_opal_hash"  # 16 bytes, as `hashes_from_bytes` reads them

W = TypeVar("W")
T = TypeVar("T")
Rows = Any  # whatever the executor works on: a table of Arrow, a DataFrame of Spark
Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a task: the number of its partition, and a name that no other attempt has. `bin` is that of rows in an order."""

    part: int
    name: str
    bin: int = 0
    in_background: bool = False

    def puts(self, storage: Storage) -> AbstractContextManager[Storage]:
        """The store to write to: a task with a core of its own does not wait for every file."""
        return background_puts(storage) if self.in_background else nullcontext(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Which rows to put in Z-order, by which columns: those of each bin of files by themselves, cut for about so many files."""

    base: Snapshot
    bins: tuple[tuple[DataFile, ...], ...]
    columns: tuple[Field, ...]
    files: tuple[float, ...]

    @property
    def tie_shift(self) -> int:
        """By how much offsets are shifted to fit below the ranks."""
        segments = {segment for files in self.bins for file in files for segment in file.segments}
        return tie_shift(max(self.base.segments[segment].rows for segment in segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Pieces of work that become rows, and a task for each slot of these rows and of those that the stage before made.

    The column `slot` says to which task a row goes. All tasks but those of the last stage make rows of the next one's schema. `size` is how
    many bytes the works read.
    """

    works: Sequence[Any]
    size: int
    read: Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    task: Callable[[Batches], Any]


Task = Callable[[Batches, Attempt], T]
EntryTask = Callable[[Entries, Attempt], T]


class Executor(Protocol):
    """Results come in the order of the works or partitions, whatever order they are done in."""

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        """Each piece of work once, with the name of the attempt."""
        ...

    def slots(self, entries: int, rows: Rows | None = None) -> int:
        """Into how many equal ranges of the key hash to cut so many entries, and with them a source's rows, whose number is unknown."""
        ...

    def by_partition(self, rows: Rows, base: Snapshot, task: Task[T]) -> list[T]:
        """A source's rows, in the partitions in which they come."""
        ...

    def by_key_hash(self, rows: Rows, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        """A source's rows, a partition for each range of the key hash. They may bring the hash as a column `_opal_hash`."""
        ...

    def stored_by_key_hash(
        self,
        base: Snapshot,
        files: Sequence[DataFile],
        slots: int,
        task: EntryTask[T],
        *,
        only: Collection[int] | None = None,
    ) -> list[T]:
        """The rows of data files as the rule sees them, a partition for each range of the key hash, or for some of them only."""
        ...

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        """The rows of data files along a curve, for each bin a partition for each part of its curve."""
        ...

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        """What the tasks of the last stage return. No row of a stage passes through the process that asks for it, if it has others."""
        ...
