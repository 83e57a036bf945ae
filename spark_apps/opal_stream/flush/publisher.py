"""A flush that makes no commit: each partition's rows go into a file of the table's own store, for the committer (`committer.py`).

The file is named by its first offset, so that of two processes which read a partition only one can go on. The name alone would not do where
the committer has registered and deleted the file of the other: so each flush looks whether the table stands where a file of its own ends.
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
from opal_stream.gathered.file import MOST_BEFORE, Header
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application, ids_by_name, known_positions
from opal_stream.kafka.taken import Taken
from opal_stream.kafka.topics import Partition
from opal_stream.same_table import follow


@dataclass(slots=True, kw_only=True)
class Publisher(Writer):
    """`positions` are where the table will stand when all is committed that lies there."""

    event: ClassVar[str] = "gathered"
    gate: Gate
    name: str = field(
        default_factory=lambda: secrets.token_hex(8)
    )  # of this process: a file of its own is known by it
    _folder: GatheredFolder | None = field(init=False, default=None)
    _head: Snapshot | None = field(init=False, default=None)
    _bounds: dict[Application, set[int]] = field(init=False, default_factory=dict)
    _topics: Mapping[tuple[str, str], set[str]] = field(
        init=False, default_factory=dict
    )  # that anything is known of

    def stands(self) -> Mapping[str, int]:
        """The files before the head: one that is committed in between is in the head."""
        listing = self.folder.look()
        positions = self._look().positions
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
        """Publish what a batch holds. Of a flush that fails halfway, what is there stays, and counts."""
        if not batch.taken:
            return None
        backoff, left = self.backoff(), dict(batch.taken)
        for partition, taken in left.items():
            self._bounds.setdefault(self.applications[partition], set()).add(taken.high)
        while left:
            try:
                before_commit()
                head = self._look()
                rows = self._checked(batch, head.spec)
                with ThreadPoolExecutor(READERS) as pool:
                    published = {
                        part: pool.submit(self._publish, part, taken, rows, head)
                        for part, taken in left.items()
                    }
                for partition, outcome in published.items():
                    outcome.result()
                    self.positions[partition] = left.pop(partition).high
            except TakenOverError:
                raise
            except PASSING as error:
                backoff.wait(error, while_waiting)
        return JobResult(operation="ingest", table=self.table.uri)

    @property
    def folder(self) -> GatheredFolder:
        if self._folder is None:
            self._folder = GatheredFolder(self.table.storage, self._look().root.table_id)
        return self._folder

    def _look(self) -> Snapshot:
        self._head = (
            self.table.log.head() if self._head is None else follow(self.table.log, self._head)
        )
        self.spec = self._head.spec
        return self._head

    def _checked(self, batch: Batch, spec: TableSpec) -> pa.Table:
        """What the committer would have to refuse stops this process, which knows what becomes of bad messages."""
        rows = fitted(batch.rows_for(spec), spec)
        rejects = Rejects(keep=False)
        complete = rows.drop_columns(
            [UNCHANGED]
        )  # the committer, which knows what came before, fills them
        split_bad_rows(complete, spec, rejects)
        if self.on_bad_message != "quarantine" and rejects.counts.total() > batch.bad:
            raise BadMessageError(
                f"messages cannot go into the table, and nothing of them was committed: {dict(rejects.counts)}, as {rejects.examples[:1]}. "
                "Correct the source, or put such messages aside with --on-bad-message quarantine"
            )
        return rows

    def _publish(self, partition: Partition, taken: Taken, rows: pa.Table, head: Snapshot) -> None:
        application, begin = self.applications[partition], self.positions[partition]
        stands, bounds = head.positions.get(str(application)), self._bounds[application]
        if stands is not None and stands not in bounds:
            raise taken_over(
                partition,
                f"the table stands at offset {stands}, where no file of this process ends",
            )
        if stands == taken.high:
            return  # a try that was said to have failed
        bounds -= {bound for bound in bounds if stands is not None and bound < stands}
        own = taken if begin is None else replace(taken, low=begin)
        header = Header(
            table_id=head.root.table_id,
            application=application,
            writer=self.name,
            taken=own,
            first=begin is None,
            after=self._before(application),
            quarantine=self.on_bad_message == "quarantine",
        )
        part = (
            rows
            if len(self.applications) == 1
            else rows.filter(from_partition(rows[SOURCE], partition.topic, partition.number))
        )
        size = self.folder.put(header, part)
        self.gate.wrote(size)
        if not size and self._writer_of(header.path) != self.name:
            raise taken_over(partition, f"there are gathered rows from offset {own.low} on already")

    def _before(self, application: Application) -> tuple[str, ...] | None:
        before = self._topics.get(application.named, set()) - {application.topic_id}
        return tuple(sorted(before)) if len(before) <= MOST_BEFORE else None

    def _writer_of(self, path: str) -> str:
        try:
            return self.folder.read_header(path).writer
        except NotFoundError as error:
            raise ConflictError(f"{path} was committed and deleted meanwhile") from error
