"""The port between operations and what runs them: tasks, and rows in and out.

An operation says what a task does; an executor says where, and with which rows. It also reads what
is to be ingested, and returns rows in its own frames: tables of Arrow, or DataFrames.

A task may be attempted more than once, and two attempts of one may run at the same time. So an attempt puts its name into those of its
files, and only the result of one attempt comes back: what the others wrote, nothing refers to. Tasks and results are pickled where they
leave the process.
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

# A noun, how many of them are done, and of how many; 0 where that is unknown
AtStep = Callable[[str, int, int], None]

W = TypeVar("W")
T = TypeVar("T")
Rows = Any  # whatever the executor works on: a table of Arrow, a DataFrame of Spark
Batches = Iterable[pa.RecordBatch]


def no_step(noun: str, done: int, total: int) -> None:
    """Report no progress."""


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


class SplitRows(Protocol):
    """Rows that can be parted by the texts in a column: dates as 2022-07-15, None for null."""

    def values(self, most: int) -> Mapping[str | None, int]:
        """How many rows have each text; more than `most` texts need not be told apart."""

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> Rows:
        """Return the rows with these texts, for the executor.

        Rows with a bad text are noted as bad, with the reason. Columns that the table got since the
        rows were parted are null.
        """


class Source(Protocol):
    """What is to be ingested, as an engine reads it."""

    def rows(self, spec: TableSpec, number: int) -> Rows:
        """Return the rows with the table's columns; `number` is that of the job."""

    def new_columns(self, spec: TableSpec) -> pa.Schema:
        """Return the columns of the source that the table lacks."""

    def split(self, spec: TableSpec, number: int, column: str) -> SplitRows:
        """Return the rows, to be parted by the texts in a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """How a source is read: the rows that delete their key, and what an ingest does with them.

    `ignores_new_columns` leaves out columns that the table lacks. `in_partitions` is for rows that
    are written in the partitions in which they come: inline another shuffle follows.
    """

    deleted: Any = None
    ignores_new_columns: bool = False
    in_partitions: bool = True


class Executor(Protocol):
    """Results come in the order of the works or partitions, whatever order they are done in."""

    def fit(
        self, source: Any, how: ReadAs, spec_of: Callable[[], TableSpec]
    ) -> AbstractContextManager[Source]:
        """Read what is to be ingested. Errors of the source within the context name it."""
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
        """Return rows of this engine as a change feed in which a version inserted all of them."""
        ...

    def no_rows(self, spec: TableSpec) -> Any:
        """Return a source of this engine with the table's columns and without a row."""
        ...

    def column_types(self, columns: Mapping[str, Any]) -> NewColumns:
        """Return columns with types of this engine as types of Arrow, or their names."""
        ...

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
