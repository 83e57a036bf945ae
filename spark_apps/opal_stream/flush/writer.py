"""A flush: rows and positions in one commit. If the store fails it is tried again; if another process was first, it stops."""

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
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import check_id, check_same
from opal_stream.timeouts import BROKER_TIMEOUT_S, GIVE_UP_S

PASSING = (StorageError, CommitUnknownError, ConflictError, ClockError)
logger = logging.getLogger(__name__)


class Batch(Protocol):
    """Messages for one commit: how far they take each partition, how many of them are known to be bad, and their rows."""

    @property
    def taken(self) -> Mapping[Partition, Taken]: ...
    @property
    def bad(self) -> int: ...
    def rows_for(self, spec: TableSpec) -> Rows: ...


@dataclass(slots=True, kw_only=True)
class Writer:
    """Knows where the table stands; None for a partition of which it knows nothing."""

    event: ClassVar[str] = "flush"
    table: OpenTable
    on_bad_message: str = "fail"
    row_form: JsonForm | None = None
    give_up_s: float = GIVE_UP_S
    broker_timeout_s: float = BROKER_TIMEOUT_S
    is_ending: Callable[[], bool] = lambda: False
    applications: dict[Partition, Application] = field(default_factory=dict)
    positions: dict[Partition, int | None] = field(default_factory=dict)
    spec: TableSpec | None = None  # of the table, as the last commit met it
    _root: Root | None = field(init=False, default=None)  # as it was when this process began

    def stands(self) -> Mapping[str, int]:
        """Where to go on, by application."""
        head = self.table.log.head()
        self._root = self._root or head.root
        check_id(self.table.uri, head.root, self._root)
        return head.positions

    def backoff(self) -> Backoff:
        """Return how long one flush waits."""
        return Backoff(
            what="a flush",
            give_up_s=self.give_up_s,
            broker_s=self.broker_timeout_s,
            is_ending=self.is_ending,
        )

    def is_held_back(self, now_s: float) -> bool:
        """Whether nothing more is to be read for now."""
        return False

    def flush(
        self, batch: Batch, before_commit: Callable[[], None], while_waiting: Callable[[], None]
    ) -> JobResult | None:
        """Commit what a batch holds. `before_commit` looks whether it may still be committed; failures of the store are waited out."""
        advances = {
            str(self.applications[partition]): self._advance(partition, taken.low, taken.high)
            for partition, taken in batch.taken.items()
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
                result = self._own(
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
        for partition, taken in batch.taken.items():
            self.positions[partition] = taken.high
        return result

    def flush_once(
        self, batch: Batch, token: str, partition_key: str | None, while_waiting: Callable[[], None]
    ) -> JobResult:
        """Commit what a batch holds under a token, or find that it is there. No position is moved."""
        backoff = self.backoff()
        is_first = True
        while True:
            try:
                result = self._ingest(
                    batch, Ingest(batch, token=token, partition_key=partition_key)
                )
                return (
                    result if is_first else replace(result, repeated=False)
                )  # it may have landed when it was said to have failed
            except PASSING as error:
                backoff.wait(error, while_waiting)
                is_first = False

    def _advance(self, partition: Partition, low: int, high: int) -> Advance:
        """From where the table stands, which a gap that the caller goes over can be before the first message."""
        position = self.positions[partition]
        return (
            Advance(start=low, end=high, first=True)
            if position is None
            else Advance(start=position, end=high)
        )

    def _ingest(self, batch: Batch, asked: Ingest) -> JobResult:
        everything = self.on_bad_message == "quarantine"
        asked = replace(
            asked,
            metadata="inline",
            on_bad_rows="quarantine" if everything or batch.bad else "fail",
            reject_threshold=batch.bad if batch.bad and not everything else None,
        )
        try:
            return ingest(
                self.table,
                lambda spec, _: self._rows(batch, spec),
                asked,
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

    def _own(
        self,
        error: FencedError,
        advances: dict[str, Advance] | None,
        wait: Callable[[Exception], None],
    ) -> JobResult:
        """The commit before a fence, if a former try made it, of these `advances`. A store that fails is asked again."""
        while True:
            try:
                if self._root is not None:
                    check_same(self.table.log, self._root)
                if advances is None or not self._stands_at(advances):
                    raise self._taken_over(error) from error
                return _landed(self.table)
            except TakenOverError:
                raise
            except PASSING as passing:
                wait(passing)

    def _has_landed(self, advances: dict[str, Advance]) -> bool:
        try:
            return self._stands_at(advances)
        except PASSING:
            return False

    def _stands_at(self, advances: dict[str, Advance]) -> bool:
        """Whether the table stands at the ends: then the same messages are in it, whoever committed them."""
        positions = self.table.log.head().positions
        return all(positions.get(name) == advance.end for name, advance in advances.items())

    def _taken_over(self, error: FencedError) -> TakenOverError:
        partition = next(
            (
                part
                for part, application in self.applications.items()
                if str(application) == error.application
            ),
            None,
        )
        stands = (
            f"the table stands at offset {error.position}, this process left it at {error.expected}"
        )
        return taken_over(partition, stands, f" ({error})")


def taken_over(partition: Partition | None, stands: str, more: str = "") -> TakenOverError:
    return TakenOverError(
        f"{partition}: another process reads it for this table: {stands}. Nothing was committed twice. Stop one of both, or give them "
        f"different --partitions{more}"
    )


def _landed(table: OpenTable) -> JobResult:
    """Of a commit that was made, although its writer was told that it failed."""
    return JobResult(operation="ingest", table=table.uri, repeated=True)
