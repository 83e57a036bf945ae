"""The engines on which programs run, and their rows as Python's values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.in_process import InProcess
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.tuning import Tuning
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

Row = Mapping[str, Any]


@dataclass(slots=True)
class MeddledStore(ForwardingStore):
    """A store in which another job runs, once, while a job is under way.

    It runs after the job has claimed its number, or before the job puts its commit.
    """

    inner: Storage
    after_claim: Callable[[], None] | None = None
    before_commit: Callable[[], None] | None = None

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        before = self.before_commit
        if before is not None and path.startswith(layout.LOG):
            self.before_commit = None
            before()
        is_put = self.inner.put_if_absent(path, data)
        after = self.after_claim
        if is_put and after is not None and layout.claim_number(path) is not None:
            self.after_claim = None
            after()
        return is_put


class Engine(Protocol):
    """Makes a table, and turns rows into frames of an engine and back."""

    is_spark: bool
    # Errors of the engine's own with which it refuses a statement
    errors: tuple[type[Exception], ...]

    def create(self, spec: TableSpec, clock: ManualClock) -> Table[Any]:
        """Create a table."""
        ...

    def reopened(self, table: Table[Any]) -> Table[Any]:
        """Return the table without what it has cached."""
        ...

    def frame(self, rows: pa.Table) -> Any:
        """Return rows as a source."""
        ...

    def rows(self, frame: Any) -> list[dict[str, Any]]:
        """Return the rows of a frame."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Tables in memory, and tasks in this process."""

    tasks: int = 1
    fold_at_logs: int = 32
    is_spark: bool = False
    errors: tuple[type[Exception], ...] = ()

    def create(self, spec: TableSpec, clock: ManualClock) -> Table[Any]:
        storage, ids = MeddledStore(MemoryStorage(clock=clock)), CountingIds()
        create_on(storage, spec, clock, ids)
        tuning = Tuning(fold_at_logs=self.fold_at_logs)
        log = CommitLog(storage=storage, clock=clock, ids=ids, tuning=tuning)
        return self._table(log)

    def reopened(self, table: Table[Any]) -> Table[Any]:
        log = table.log
        return self._table(
            CommitLog(storage=log.storage, clock=log.clock, ids=log.ids, tuning=log.tuning)
        )

    def _table(self, log: CommitLog) -> Table[Any]:
        executor = InProcess(tasks=self.tasks)
        return Table(log=log, cache=MemoryRuns(storage=log.storage), executor=executor)

    def frame(self, rows: pa.Table) -> Any:
        return pa.Table.from_batches(rows.to_batches(max_chunksize=2), rows.schema)

    def rows(self, frame: Any) -> list[dict[str, Any]]:
        assert isinstance(frame, pa.Table)
        return frame.to_pylist()
