"""The port between operations and engines: tasks, and rows in and out.

An operation defines what a task does; an executor decides where it runs, and with which rows. It
also reads the sources of ingests, and returns rows in its own frames: tables of Arrow, or
DataFrames.

A task may be attempted more than once, and two attempts of one may run at the same time. So an
attempt puts its name into those of its files. Only the result of one attempt comes back: nothing
refers to the files of the others. Tasks and results are pickled where they leave the process.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import tie_shift
from opal_lake.definition.added_columns import NewColumns
from opal_lake.definition.schema import Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.key_store.entries import Entries
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.background_puts import background_puts
from opal_lake.storage.protocol import Storage

if TYPE_CHECKING:
    from opal_lake.read.view import ChangesPlan, HistoryPlan, View  # tasks load this module

HASH = "_opal_hash"  # 16 bytes, as `hashes_from_bytes` reads them

# The noun of what is counted, the number done, and the total; 0 where that is unknown
AtStep = Callable[[str, int, int], None]

W = TypeVar("W")
T = TypeVar("T")
Rows = Any  # the frame that the executor works on: a table of Arrow, a DataFrame of Spark
Batches = Iterable[pa.RecordBatch]


def no_step(noun: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a task: its partition, and a name that no other attempt has.

    `bin` is the number of the bin that rows in an order belong to.
    """

    part: int
    name: str
    bin: int = 0
    in_background: bool = False

    def puts(self, storage: Storage) -> AbstractContextManager[Storage]:
        """Return the store to write to.

        A task with a core of its own does not wait for every file.
        """
        if self.in_background:
            return background_puts(storage)
        return nullcontext(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """The rows to put in Z-order, and the columns of the order.

    Each bin of files is ordered on its own, and cut for about the given number of files.
    """

    base: Snapshot
    bins: tuple[tuple[DataFile, ...], ...]
    columns: tuple[Field, ...]
    files: tuple[float, ...]

    @property
    def tie_shift(self) -> int:
        """The number of bits by which offsets are shifted, to fit below the ranks."""
        segments: set[int] = set()
        for files in self.bins:
            for file in files:
                segments.update(file.segments)
        return tie_shift(max(self.base.segments[segment].rows for segment in segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Pieces of work that become rows, and a task for each slot of rows.

    A task gets the rows of its own stage and of the stage before: the column `slot` is its number.
    All tasks but those of the last stage make rows of the next one's schema. `size` is the number
    of bytes that the works read.
    """

    works: Sequence[Any]
    size: int
    read: Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    task: Callable[[Batches], Any]


Task = Callable[[Batches, Attempt], T]
EntryTask = Callable[[Entries, Attempt], T]


class SplitRows(Protocol):
    """Rows that can be split by the texts in a column.

    Dates are as 2022-07-15, None stands for null.
    """

    def values(self, most: int) -> Mapping[str | None, int]:
        """Return how many rows have each text.

        More than `most` texts may be counted together.
        """

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> Rows:
        """Return the rows with these texts, for the executor.

        Rows with a bad text are noted as bad, with the reason. Columns that the table got since the
        rows were parted are null.
        """


class Source(Protocol):
    """The source of an ingest, as an engine reads it."""

    def rows(self, spec: TableSpec, number: int) -> Rows:
        """Return the rows with the table's columns; `number` is that of the job."""

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Return the columns of the source that the table lacks."""

    def split(self, spec: TableSpec, number: int, column: str) -> SplitRows:
        """Return the rows, to be parted by the texts in a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """The way to read a source: which rows delete, and what happens with others.

    `ignores_new_columns` leaves out columns that the table lacks. `in_partitions` is for rows that
    are written in the partitions in which they come. Inline ingests need it not: another shuffle
    follows.
    """

    deleted: Any = None
    ignores_new_columns: bool = False
    in_partitions: bool = True


class Executor(Protocol):
    """An engine. Results come in the order of the works, whatever runs first."""

    def fit(
        self, source: Any, how: ReadAs, spec_of: Callable[[], TableSpec]
    ) -> AbstractContextManager[Source]:
        """Read the source of an ingest. Errors of the source within the context name it."""
        ...

    def rows(self, view: "View") -> Any:
        """Return the visible rows as a frame of this engine."""
        ...

    def history(self, plan: "HistoryPlan") -> Any:
        """Return the history view as a frame of this engine."""
        ...

    def changes(self, plan: "ChangesPlan") -> Any:
        """Return a change feed as a frame of this engine."""
        ...

    def as_inserts(self, rows: Any, version: int, committed_us: int) -> Any:
        """Return rows as a change feed in which a version inserted all of them."""
        ...

    def no_rows(self, spec: TableSpec) -> Any:
        """Return a source of this engine with the table's columns and without a row."""
        ...

    def column_types(self, columns: Mapping[str, Any]) -> NewColumns:
        """Return columns with types of this engine as types of Arrow, or their names."""
        ...

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        """Run each piece of work once, with the name of the attempt."""
        ...

    def slots(self, entries: int, rows: Rows | None = None) -> int:
        """Return into how many equal ranges of the key hash to cut entries.

        `rows` are a source's rows that are cut as well, whose number is unknown.
        """
        ...

    def by_partition(self, rows: Rows, base: Snapshot, task: Task[T]) -> list[T]:
        """Run a task on each partition of a source's rows, as they come."""
        ...

    def by_key_hash(self, rows: Rows, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        """Run a task on a source's rows of each range of the key hash.

        The rows may bring the hash as a column `_opal_hash`.
        """
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
        """Run a task on the rows of data files of each range of the key hash.

        The rows are entries, as the rule sees them.

        With `only` on some of the ranges.
        """
        ...

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        """Run a task on the rows of data files along a curve.

        Each bin of files has its own curve, and a task for each part of it.
        """
        ...

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        """Run the stages, and return the results of the last one's tasks.

        If the engine has other processes, rows of a stage never pass through the calling one.
        """
        ...
