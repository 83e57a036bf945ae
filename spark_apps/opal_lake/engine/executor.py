"""The port between operations and engines: tasks, and rows in and out.

An operation defines tasks; an executor decides where each task runs, and with which rows. An
executor also reads the sources of ingests, and returns rows in its own frames: tables of Arrow, or
DataFrames.

A task may be attempted more than once, and two attempts of a task may run at the same time. So the
file names of an attempt contain the attempt's name. Only the result of one attempt is returned:
nothing refers to the files of other attempts. Tasks and results are pickled if they leave the
process.
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
    from opal_lake.read.region import RegionTest
    from opal_lake.read.statement import StatementPlan
    from opal_lake.read.view import ChangesPlan, HistoryPlan, View  # tasks load this module

HASH = "_opal_hash"  # 16 bytes, as `hashes_from_bytes` reads them


# Arguments: the noun of the counted things, the number of done ones, and the total or 0 if unknown
AtStep = Callable[[str, int, int], None]

W = TypeVar("W")
T = TypeVar("T")
Rows = Any  # the frame that the executor works on: a table of Arrow, a DataFrame of Spark
Batches = Iterable[pa.RecordBatch]


def no_step(noun: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a task: its partition's number, and a name that is unique to it.

    `bin` is the number of the bin of files whose rows the task gets, if rows are in Z-order.
    """

    part: int
    name: str
    bin: int = 0
    in_background: bool = False

    def puts(self, storage: Storage) -> AbstractContextManager[Storage]:
        """Open the store for the attempt's files.

        With `in_background`, puts return before they are complete.
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
    """Pieces of work from which rows are read, and a task for each slot of rows.

    The column `slot` of a row is the number of its task. A task gets rows of its own stage, and
    rows that tasks of the stage before it returned for the same slot. Tasks of the last stage
    return results instead of rows. `size` is the number of bytes that reading the works reads.
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

    A date has a text such as 2022-07-15; a null is None.
    """

    def values(self, most: int) -> Mapping[str | None, int]:
        """Return the number of rows with each text.

        If there are more than `most` texts, some may be counted together.
        """

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> Rows:
        """Return the rows with one of the `chosen` texts, as a frame of the executor.

        Rows with a text in `bad` are marked as bad, with the reason. Columns that the table got
        after the split are null.
        """


class Source(Protocol):
    """The source of an ingest, as an engine reads it."""

    def rows(self, spec: TableSpec, number: int) -> Rows:
        """Return the rows with the table's columns; `number` is the job's number."""

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Return the columns of the source that the table lacks."""

    def split(self, spec: TableSpec, number: int, column: str) -> SplitRows:
        """Return the rows, ready to be split by the texts in a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """Options of reading a source.

    `deleted` marks the rows that delete their key. `ignores_new_columns` leaves out columns that
    the table lacks. `in_partitions` is true if the rows are written in the partitions in which they
    are read; false for inline ingests, which shuffle the rows once more.
    """

    deleted: Any = None
    ignores_new_columns: bool = False
    in_partitions: bool = True


class Executor(Protocol):
    """An engine. Results are in the order of the works, not in the order of execution."""

    def fit(
        self, source: Any, how: ReadAs, spec_of: Callable[[], TableSpec]
    ) -> AbstractContextManager[Source]:
        """Open the source of an ingest. Within the context, errors of the source name it."""
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

    def statement_rows(self, plan: "StatementPlan") -> Rows:
        """Return the rows that a statement adds, each with the row that it ends.

        Besides the table's columns they have DELETED, ENDED_SEGMENT and ENDED_OFFSET.
        """
        ...

    def with_ended(self, rows: Rows, view: "View") -> AbstractContextManager[Rows]:
        """Return a source's rows, and a delete for each other row of a view.

        The deletes have DELETED, ENDED_SEGMENT and ENDED_OFFSET, as rows of a statement do.
        """
        ...

    def touched_partitions(self, plan: "StatementPlan") -> pa.Table:
        """Return the partition columns of a statement's source, each partition once."""
        ...

    def region_test(self, plan: "StatementPlan") -> "RegionTest | None":
        """Return the test of a statement's region; None if only the engine understands it."""
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
        """Return the number of equal ranges of the key hash into which entries are split.

        `rows` are rows of a source, of unknown number, that are split as well.
        """
        ...

    def statement_slots(self, plan: "StatementPlan", rows: Rows, entries: int) -> int:
        """Return the number of ranges for the rows of a statement.

        `entries` of the key store are merged with them.
        """
        ...

    def by_partition(self, rows: Rows, base: Snapshot, task: Task[T]) -> list[T]:
        """Run a task on each partition of a source's rows, in the order of the partitions."""
        ...

    def by_key_hash(self, rows: Rows, base: Snapshot, slots: int, task: Task[T]) -> list[T]:
        """Run a task for each range of the key hash, on a source's rows in the range.

        The rows may have their hash in a column `_opal_hash`.
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
        """Run a task for each range of the key hash, on the rows of files in the range.

        The task gets the rows as key-store entries. With `only`, only these ranges have a task.
        """
        ...

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        """Run tasks on the rows of data files in Z-order; return their results by bin.

        Each bin of files is ordered along a curve of its own, which is cut into parts with one task
        each.
        """
        ...

    def by_stages(self, stages: Sequence[Stage], slots: int) -> list[Any]:
        """Run the stages in order, and return the results of the tasks of the last stage.

        If the engine has other processes, rows never pass through the calling process.
        """
        ...
