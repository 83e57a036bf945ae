"""A flush without a commit: each partition's rows go into a file for the committer.

A file is named by its first offset. So if two processes read one partition, only one of them can
write the next file. The name alone is not enough if the committer has already committed and deleted
the other process's file. So each flush also checks that the table stands where a file of this
process ends.
"""

import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pyarrow.compute as pc

from opal_lake.data.rejects import SOURCE, UNCHANGED, Rejects, split_bad_rows
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import ConflictError, NotFoundError
from opal_lake.log.snapshot import Snapshot
from opal_lake.result import JobResult
from opal_lake.storage.protocol import READERS
from opal_stream.errors import BadMessageError, TakenOverError
from opal_stream.flush.writer import RETRYABLE, Batch, Writer, taken_over_error
from opal_stream.formats.batch import from_partition
from opal_stream.formats.rows import DecodedRows
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
    # Offsets where this process's files, and the files that it found at its start, begin or end
    _bounds: dict[Application, set[int]] = field(init=False, default_factory=dict)
    # Known topic ids, by stream and topic name
    _topics: Mapping[tuple[str, str], set[str]] = field(init=False, default_factory=dict)

    def read_positions(self) -> Mapping[str, int]:
        """Return where the table will stand when all gathered files are committed."""
        # The files before the head: rows of a file that is committed in between are in the head
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
        """Write a file for each partition of a batch.

        If the flush fails halfway, the files that it wrote stay, and the partitions count as read.
        """
        if not batch.consumed:
            return None
        backoff = self.backoff()
        unpublished = dict(batch.consumed)
        for partition, consumed in unpublished.items():
            bounds = self._bounds.setdefault(self.applications[partition], set())
            bounds.add(consumed.high)
        while unpublished:
            try:
                before_commit()
                head = self._read_head()
                rows = self._checked(batch, head.spec)
                writes: dict[Partition, Future[None]] = {}
                with ThreadPoolExecutor(READERS) as pool:
                    for partition, consumed in unpublished.items():
                        writes[partition] = pool.submit(
                            self._publish, partition, consumed, rows, head
                        )
                for partition, write in writes.items():
                    write.result()
                    self.positions[partition] = unpublished.pop(partition).high
            except TakenOverError:  # a ConflictError, too, but another attempt would not help
                raise
            except RETRYABLE as error:
                backoff.wait(error, while_waiting)
        return JobResult(operation="ingest", table=self.table.uri)

    @property
    def folder(self) -> GatheredFolder:
        """The folder of gathered files of the table that this process began with.

        It refuses files of a table that was created again at the same URI: its id is another one.
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

    def _checked(self, batch: Batch, spec: TableSpec) -> DecodedRows:
        """Return the rows of a batch.

        Raise BadMessageError for rows that a commit would reject.

        The check is made here, as the committer does not know --on-bad-message of this process.
        """
        rows = DecodedRows(rows=batch.rows_for(spec), schema=spec.schema).fitted(spec)
        rejects = Rejects(keep=False)
        # Values that did not change are not checked: only the committer can look them up
        is_whole = pc.is_null(rows.rows[UNCHANGED])
        incomplete = rows.rows.filter(pc.invert(is_whole)).drop_columns([UNCHANGED])
        split_bad_rows(rows.rows.filter(is_whole), spec, rejects)
        split_bad_rows(incomplete, spec, rejects, checks_constraints=False)
        if self.on_bad_message != "quarantine" and rejects.counts.total() > batch.bad:
            raise BadMessageError(
                "the table refuses rows of these messages, and none of them was committed: "
                f"{dict(rejects.counts)}, for example {rejects.examples[:1]}. Correct the source, "
                "or put such messages aside with on_bad_message='quarantine'"
            )
        return rows

    def _publish(
        self, partition: Partition, consumed: Consumed, rows: DecodedRows, head: Snapshot
    ) -> None:
        """Write the file of one partition.

        `rows` are those of all partitions of the batch.

        Raises TakenOverError if another process writes files or commits for the partition.
        """
        application = self.applications[partition]
        begin = self.positions[partition]
        committed = head.positions.get(str(application))
        bounds = self._bounds[application]
        if committed is not None and committed not in bounds:
            raise taken_over_error(
                partition,
                f"the table stands at offset {committed}, where no file of this process ends",
            )
        if committed == consumed.high:
            return  # an earlier attempt seemed to fail, but its file was written and committed
        if committed is not None:
            bounds -= {bound for bound in bounds if bound < committed}
        # The file begins where the last one ends: so offsets that the stream passes over do not
        # break the chain of files
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
        own_rows = rows
        if len(self.applications) > 1:
            is_own = from_partition(rows.rows[SOURCE], partition.topic, partition.number)
            own_rows = replace(rows, rows=rows.rows.filter(is_own))
        size = self.folder.put(header, own_rows)
        self.gate.count_file(size)
        if not size and self._writer_of(header.path) != self.name:
            raise taken_over_error(
                partition, f"gathered rows from offset {span.low} on exist already"
            )

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
            raise ConflictError(f"{path} was committed and deleted meanwhile; try again") from error
