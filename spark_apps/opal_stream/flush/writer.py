"""A flush: rows and positions in one commit.

A commit is tried again while the store fails. If another process has committed for a partition,
this one stops.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from opal_lake.data.json_rows import JsonForm
from opal_lake.definition.positions import Advance
from opal_lake.definition.schema import Schema
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

# Errors after which a commit is tried again, or checked whether it has landed
RETRYABLE = (StorageError, CommitUnknownError, ConflictError, ClockError)
logger = logging.getLogger(__name__)


class Batch(Protocol):
    """Messages for one commit, and how many of them are known to be bad.

    `schemas_of_bad` are the table's columns with which messages were found bad; empty if they are
    those of the commit.
    """

    @property
    def consumed(self) -> Mapping[Partition, Consumed]: ...
    @property
    def bad(self) -> int: ...
    @property
    def schemas_of_bad(self) -> Collection[Schema]: ...
    def rows_for(self, spec: TableSpec) -> Rows: ...


@dataclass(slots=True, kw_only=True)
class Writer:
    """The writer of a stream's commits.

    `positions` are where the table stands in each partition; None if it has no position there.
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
    spec: TableSpec | None = None  # the table's spec at the last commit
    _root: Root | None = field(init=False, default=None)  # the table's root when the process began

    def read_positions(self) -> Mapping[str, int]:
        """Return the positions at which reading continues, by application."""
        head = self.table.log.head()
        if self._root is None:
            self._root = head.root
        check_id(self.table.uri, head.root, self._root)
        return head.positions

    def backoff(self) -> Backoff:
        """Return the backoff of one flush."""
        return Backoff(
            what="a flush",
            give_up_s=self.give_up_s,
            broker_give_up_s=self.broker_timeout_s,
            is_ending=self.is_ending,
        )

    def is_held_back(self, now_s: float) -> bool:
        """Return whether reading has to wait for a committer; a direct writer has none."""
        return False

    def flush(
        self, batch: Batch, before_commit: Callable[[], None], while_waiting: Callable[[], None]
    ) -> JobResult | None:
        """Commit a batch, and wait out failures of the store; None if the batch is empty.

        `before_commit` raises if the batch must not be committed any more. `while_waiting` is
        called before each pause.
        """
        advances: dict[str, Advance] = {}
        for partition, consumed in batch.consumed.items():
            name = str(self.applications[partition])
            advances[name] = self._advance(partition, consumed.low, consumed.high)
        if not advances:
            return None
        backoff = self.backoff()
        # The advances of earlier attempts: before the first failure none can have landed
        tried: dict[str, Advance] | None = None
        result: JobResult | None = None
        while result is None:
            try:
                before_commit()
                result = self._ingest(batch, Ingest(batch, positions=advances))
            except FencedError as error:
                result = self._own_commit(
                    error, tried, lambda passing: backoff.wait(passing, while_waiting)
                )
            except RETRYABLE as error:
                if self._has_landed(advances):
                    result = _landed_result(self.table)
                    continue
                backoff.wait(error, while_waiting)
                tried = advances
        for partition, consumed in batch.consumed.items():
            self.positions[partition] = consumed.high
        return result

    def flush_once(
        self, batch: Batch, token: str, partition_key: str | None, while_waiting: Callable[[], None]
    ) -> JobResult:
        """Commit a batch under a token, or find its earlier commit; move no position."""
        backoff = self.backoff()
        is_first = True
        while True:
            operation = Ingest(batch, token=token, partition_key=partition_key)
            try:
                result = self._ingest(batch, operation)
            except RETRYABLE as error:
                backoff.wait(error, while_waiting)
                is_first = False
                continue
            if is_first:
                return result
            # The commit that was found is of this run: an attempt that seemed to fail has landed
            return replace(result, repeated=False)

    def _advance(self, partition: Partition, low: int, high: int) -> Advance:
        """Return the advance of a partition from where the table stands to `high`.

        The table may stand before `low`, the first message, if the stream passes over a gap.
        """
        position = self.positions[partition]
        if position is None:
            return Advance(start=low, end=high, first=True)
        return Advance(start=position, end=high)

    def _ingest(self, batch: Batch, operation: Ingest) -> JobResult:
        """Commit a batch once; raise BadMessageError for rows that the table refuses."""
        on_bad_rows, max_bad = "fail", None
        if self.on_bad_message == "quarantine":
            on_bad_rows = "quarantine"
        elif batch.bad:  # messages with new columns, which --on-new-columns puts aside
            on_bad_rows, max_bad = "quarantine", batch.bad
        operation = replace(
            operation, metadata="inline", on_bad_rows=on_bad_rows, reject_threshold=max_bad
        )
        try:
            return ingest(
                self.table,
                lambda spec, _: self._rows(batch, spec),
                operation,
                hurried=True,
                row_form=self._row_form_of(batch),
            )
        except InvalidInputError as error:
            raise BadMessageError(
                "the table refuses these messages, and none of them was committed (with "
                f"on_bad_message='quarantine' a stream puts bad ones aside): {error}"
            ) from error

    def _row_form_of(self, batch: Batch) -> JsonForm | None:
        """Return the form by which bad messages can be read again; None if they cannot be.

        A file of rejected rows has one form: messages that were read with different columns of the
        table do not fit into it.
        """
        if self.row_form is None or not batch.schemas_of_bad:
            return self.row_form
        if len(batch.schemas_of_bad) > 1:
            return None
        [schema] = batch.schemas_of_bad
        return replace(self.row_form, schema=schema)

    def _rows(self, batch: Batch, spec: TableSpec) -> Rows:
        self.spec = spec
        return batch.rows_for(spec)

    def _own_commit(
        self,
        error: FencedError,
        advances: dict[str, Advance] | None,
        wait: Callable[[Exception], None],
    ) -> JobResult:
        """Return the result of the commit that fenced this one off, if this flush made it.

        `advances` are those of earlier attempts of the flush, None before the first one. Raises
        TakenOverError if another process made the commit. Asks again while the store fails.
        """
        while True:
            try:
                if self._root is not None:
                    check_same(self.table.log, self._root)
                if advances is None or not self._stands_at(advances):
                    raise self._taken_over(error) from error
                return _landed_result(self.table)
            except TakenOverError:  # a ConflictError, too, but another attempt would not help
                raise
            except RETRYABLE as passing:
                wait(passing)

    def _has_landed(self, advances: dict[str, Advance]) -> bool:
        try:
            return self._stands_at(advances)
        except RETRYABLE:
            return False

    def _stands_at(self, advances: dict[str, Advance]) -> bool:
        """Return whether the table stands at the ends of the advances.

        If so, their messages are committed, by this process or another one.
        """
        positions = self.table.log.head().positions
        return all(positions.get(name) == advance.end for name, advance in advances.items())

    def _taken_over(self, error: FencedError) -> TakenOverError:
        partitions = {str(name): partition for partition, name in self.applications.items()}
        partition = partitions.get(error.application)
        progress = (
            f"the table stands at offset {error.position}, this process left it at {error.expected}"
        )
        return taken_over_error(partition, progress, f" ({error})")


def taken_over_error(partition: Partition | None, progress: str, more: str = "") -> TakenOverError:
    """Return the error of a partition that another process reads for the same table.

    `progress` says how far the table and this process are. `more` is put at the end.
    """
    return TakenOverError(
        f"{partition}: another process reads it for this table: {progress}. No message was "
        f"committed twice. Stop one of the two, or give them different partitions{more}"
    )


def _landed_result(table: OpenTable) -> JobResult:
    """Return the result of a commit that landed although its attempt seemed to fail."""
    return JobResult(operation="ingest", table=table.uri, repeated=True)
