"""A flush: rows and positions in one commit.

A store that fails is tried again. If another process was first, this one stops.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from opal_lake.data.json_rows import JsonForm
from opal_lake.definition.positions import Advance
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Rows
from opal_lake.engine.open_table import OpenTable
from opal_lake.errors import (
    ClockError,
    CommitUnknownError,
    ConflictError,
    FencedError,
    InvalidInputError,
    StorageError,
)
from opal_lake.log.snapshot import Root
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.write.ingest_job import ingest
from opal_stream.backoff import Backoff
from opal_stream.errors import BadMessageError, TakenOverError
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import check_id, check_same
from opal_stream.timeouts import BROKER_TIMEOUT_S, GIVE_UP_S

PASSING = (StorageError, CommitUnknownError, ConflictError, ClockError)
logger = logging.getLogger(__name__)


class Batch(Protocol):
    """Messages for one commit, and how many of them are known to be bad."""

    @property
    def consumed(self) -> Mapping[Partition, Consumed]: ...
    @property
    def bad(self) -> int: ...
    def rows_for(self, spec: TableSpec) -> Rows: ...


@dataclass(slots=True, kw_only=True)
class Writer:
    """The writer of a stream's commits, which tracks where the table stands.

    A position is None for a partition of which the table has none.
    """

    event: ClassVar[str] = "flush"
    table: OpenTable
    on_bad_message: str = "fail"
    row_form: JsonForm | None = None
    give_up_s: float = GIVE_UP_S
    broker_timeout_s: float = BROKER_TIMEOUT_S
    is_ending: Callable[[], bool] = lambda: False
    applications: dict[Partition, Application] = field(default_factory=dict)
    positions: dict[Partition, int | None] = field(default_factory=dict)
    spec: TableSpec | None = None  # the table's, as of the last commit
    _root: Root | None = field(init=False, default=None)  # as it was when this process began

    def read_positions(self) -> Mapping[str, int]:
        """Return the positions at which reading goes on, by application."""
        head = self.table.log.head()
        self._root = self._root or head.root
        check_id(self.table.uri, head.root, self._root)
        return head.positions

    def backoff(self) -> Backoff:
        """Return the pauses of one flush."""
        return Backoff(
            what="a flush",
            give_up_s=self.give_up_s,
            broker_s=self.broker_timeout_s,
            is_ending=self.is_ending,
        )

    def is_held_back(self, now_s: float) -> bool:
        """Return whether nothing more is to be read for now."""
        return False

    def flush(
        self, batch: Batch, before_commit: Callable[[], None], while_waiting: Callable[[], None]
    ) -> JobResult | None:
        """Commit a batch, and wait out failures of the store.

        `before_commit` raises if the batch must not be committed any more.
        """
        advances = {
            str(self.applications[partition]): self._advance(partition, consumed.low, consumed.high)
            for partition, consumed in batch.consumed.items()
        }
        if not advances:
            return None
        backoff = self.backoff()
        result, is_first = None, True
        while result is None:
            try:
                before_commit()
                result = self._ingest(batch, Ingest(batch, positions=advances))
            except FencedError as error:
                # Before the first failure nothing of this flush can have landed
                result = self._own_commit(
                    error,
                    None if is_first else advances,
                    lambda passing: backoff.wait(passing, while_waiting),
                )
            except PASSING as error:
                if self._has_landed(advances):
                    result = _landed(self.table)
                    continue
                backoff.wait(error, while_waiting)
                is_first = False
        for partition, consumed in batch.consumed.items():
            self.positions[partition] = consumed.high
        return result

    def flush_once(
        self, batch: Batch, token: str, partition_key: str | None, while_waiting: Callable[[], None]
    ) -> JobResult:
        """Commit a batch under a token, or find its commit. No position is moved."""
        backoff = self.backoff()
        is_first = True
        while True:
            operation = Ingest(batch, token=token, partition_key=partition_key)
            try:
                result = self._ingest(batch, operation)
            except PASSING as error:
                backoff.wait(error, while_waiting)
                is_first = False
                continue
            if is_first:
                return result
            # An attempt that seemed to fail may have landed: the commit is this run's own
            return replace(result, repeated=False)

    def _advance(self, partition: Partition, low: int, high: int) -> Advance:
        """Return the advance from where the table stands.

        That can be before the first message, where the caller continues over a gap.
        """
        position = self.positions[partition]
        if position is None:
            return Advance(start=low, end=high, first=True)
        return Advance(start=position, end=high)

    def _ingest(self, batch: Batch, operation: Ingest) -> JobResult:
        accepts_all = self.on_bad_message == "quarantine"
        # With "fail" a batch may hold bad messages, too: those that --on-new-columns puts aside
        operation = replace(
            operation,
            metadata="inline",
            on_bad_rows="quarantine" if accepts_all or batch.bad else "fail",
            reject_threshold=batch.bad if batch.bad and not accepts_all else None,
        )
        try:
            return ingest(
                self.table,
                lambda spec, _: self._rows(batch, spec),
                operation,
                hurried=True,
                row_form=self.row_form,
            )
        except InvalidInputError as error:
            raise BadMessageError(
                f"messages cannot go into the table, and nothing of them was committed: {error}"
            ) from error

    def _rows(self, batch: Batch, spec: TableSpec) -> Rows:
        self.spec = spec
        return batch.rows_for(spec)

    def _own_commit(
        self,
        error: FencedError,
        advances: dict[str, Advance] | None,
        wait: Callable[[Exception], None],
    ) -> JobResult:
        """Return the commit before a fence, if an earlier attempt of this flush made it.

        `advances` are those of the earlier attempts, None if there were none. Raises TakenOverError
        for a commit of another process. A store that fails is asked again.
        """
        while True:
            try:
                if self._root is not None:
                    check_same(self.table.log, self._root)
                if advances is None or not self._stands_at(advances):
                    raise self._taken_over(error) from error
                return _landed(self.table)
            except TakenOverError:  # also a ConflictError, which would be tried again
                raise
            except PASSING as passing:
                wait(passing)

    def _has_landed(self, advances: dict[str, Advance]) -> bool:
        try:
            return self._stands_at(advances)
        except PASSING:
            return False

    def _stands_at(self, advances: dict[str, Advance]) -> bool:
        """Return whether the table stands at the ends of the advances.

        Then the same messages are in it, whoever committed them.
        """
        positions = self.table.log.head().positions
        return all(positions.get(name) == advance.end for name, advance in advances.items())

    def _taken_over(self, error: FencedError) -> TakenOverError:
        partitions = {str(name): partition for partition, name in self.applications.items()}
        partition = partitions.get(error.application)
        progress = (
            f"the table stands at offset {error.position}, this process left it at {error.expected}"
        )
        return taken_over(partition, progress, f" ({error})")


def taken_over(partition: Partition | None, progress: str, more: str = "") -> TakenOverError:
    """Return the error of a partition that another process reads for the same table."""
    return TakenOverError(
        f"{partition}: another process reads it for this table: {progress}. Nothing was committed "
        f"twice. Stop one of the two, or give them different --partitions{more}"
    )


def _landed(table: OpenTable) -> JobResult:
    """Return the result of a commit that landed although its attempt seemed to fail."""
    return JobResult(operation="ingest", table=table.uri, repeated=True)
