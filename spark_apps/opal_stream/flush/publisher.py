"""A flush without a commit: each partition's rows go into a file for the committer.

The file is named by its first offset, so that of two processes that read a partition only one can
go on. The name alone is not enough where the committer has committed and deleted the other's file:
so each flush checks that the table stands where a file of this process ends.
"""

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow as pa

from opal_lake.data.rejects import SOURCE, UNCHANGED, Rejects, split_bad_rows
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import ConflictError, NotFoundError
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.storage.protocol import READERS
from opal_stream.errors import BadMessageError, TakenOverError
from opal_stream.flush.writer import PASSING, Batch, Writer, taken_over
from opal_stream.formats.batch import from_partition
from opal_stream.formats.rows import fitted
from opal_stream.gathered.backlog import Gate
from opal_stream.gathered.file import MAX_BEFORE, Header
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application, ids_by_name, known_positions
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import follow


@dataclass(slots=True, kw_only=True)
class Publisher(Writer):
    """The writer of gathered files.

    Its `positions` are where the table will stand when all gathered files are committed.
    """

    event: ClassVar[str] = "gathered"
    gate: Gate
    # The name of this process, by which it recognizes its own files
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    _folder: GatheredFolder | None = field(init=False, default=None)
    _head: Snapshot | None = field(init=False, default=None)
    # Offsets at which this process's files begin or end, and those that it found at its start
    _bounds: dict[Application, set[int]] = field(init=False, default_factory=dict)
    # Known topic ids, by stream and topic name
    _topics: Mapping[tuple[str, str], set[str]] = field(init=False, default_factory=dict)

    def read_positions(self) -> Mapping[str, int]:
        """Return where the table will stand when all gathered files are committed."""
        # The files before the head: what is committed in between is in the head
        listing = self.folder.look()
        positions = self._read_head().positions
        ends = listing.ends(positions)
        self._topics = ids_by_name({*known_positions(ends), *listing.headers})
        for application in known_positions(ends):
            chain = listing.chain(application, positions.get(str(application)))
            self._bounds.setdefault(application, set()).update(chain.bounds)
        return ends

    def is_held_back(self, now_s: float) -> bool:
        return self.gate.is_shut(now_s)

    def flush(
        self, batch: Batch, before_commit: Callable[[], None], while_waiting: Callable[[], None]
    ) -> JobResult | None:
        """Publish a batch. Files of a flush that fails halfway stay, and count."""
        if not batch.consumed:
            return None
        backoff, unpublished = self.backoff(), dict(batch.consumed)
        for partition, consumed in unpublished.items():
            self._bounds.setdefault(self.applications[partition], set()).add(consumed.high)
        while unpublished:
            try:
                before_commit()
                head = self._read_head()
                rows = self._checked(batch, head.spec)
                with ThreadPoolExecutor(READERS) as pool:
                    published = {
                        partition: pool.submit(self._publish, partition, consumed, rows, head)
                        for partition, consumed in unpublished.items()
                    }
                for partition, outcome in published.items():
                    outcome.result()
                    self.positions[partition] = unpublished.pop(partition).high
            except TakenOverError:  # also a ConflictError, which would be tried again
                raise
            except PASSING as error:
                backoff.wait(error, while_waiting)
        return JobResult(operation="ingest", table=self.table.uri)

    @property
    def folder(self) -> GatheredFolder:
        """The table's folder of gathered files.

        It accepts files of the table id that was read first: a table created again has another id.
        """
        if self._folder is None:
            self._folder = GatheredFolder(self.table.storage, self._read_head().root.table_id)
        return self._folder

    def _read_head(self) -> Snapshot:
        if self._head is None:
            self._head = self.table.log.head()
        else:
            self._head = follow(self.table.log, self._head)
        self.spec = self._head.spec
        return self._head

    def _checked(self, batch: Batch, spec: TableSpec) -> pa.Table:
        """Return the rows of a batch; refuse what the committer would refuse.

        Only this process knows what becomes of bad messages.
        """
        rows = fitted(batch.rows_for(spec), spec)
        rejects = Rejects(keep=False)
        # The committer fills values that did not change: it knows what came before
        complete = rows.drop_columns([UNCHANGED])
        split_bad_rows(complete, spec, rejects)
        if self.on_bad_message != "quarantine" and rejects.counts.total() > batch.bad:
            raise BadMessageError(
                "messages cannot go into the table, and nothing of them was committed: "
                f"{dict(rejects.counts)}, as {rejects.examples[:1]}. Correct the source, or put "
                "such messages aside with --on-bad-message quarantine"
            )
        return rows

    def _publish(
        self, partition: Partition, consumed: Consumed, rows: pa.Table, head: Snapshot
    ) -> None:
        application, begin = self.applications[partition], self.positions[partition]
        committed, bounds = head.positions.get(str(application)), self._bounds[application]
        if committed is not None and committed not in bounds:
            raise taken_over(
                partition,
                f"the table stands at offset {committed}, where no file of this process ends",
            )
        if committed == consumed.high:
            return  # an attempt that seemed to fail was committed
        if committed is not None:
            bounds -= {bound for bound in bounds if bound < committed}
        # The file begins where the last one ends, so that a gap which the stream passes over does
        # not break the chain
        span = consumed if begin is None else replace(consumed, low=begin)
        header = Header(
            table_id=head.root.table_id,
            application=application,
            writer=self.name,
            consumed=span,
            first=begin is None,
            after=self._ids_before(application),
            quarantine=self.on_bad_message == "quarantine",
        )
        part = rows
        if len(self.applications) > 1:
            is_own = from_partition(rows[SOURCE], partition.topic, partition.number)
            part = rows.filter(is_own)
        size = self.folder.put(header, part)
        self.gate.wrote(size)
        if not size and self._writer_of(header.path) != self.name:
            raise taken_over(partition, f"gathered rows from offset {span.low} on exist already")

    def _ids_before(self, application: Application) -> tuple[str, ...] | None:
        """Return the ids of earlier topics of the name; None if they are too many to list."""
        before = self._topics.get(application.stream_topic, set()) - {application.topic_id}
        if len(before) <= MAX_BEFORE:
            return tuple(sorted(before))
        return None

    def _writer_of(self, path: str) -> str:
        try:
            return self.folder.read_header(path).writer
        except NotFoundError as error:
            raise ConflictError(f"{path} was committed and deleted meanwhile") from error
