"""A table without Spark: open, create, look at it, and carry a small one's whole life over Arrow in one process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from opal_lake import layout
from opal_lake.bitmap import Bitmaps
from opal_lake.claim import claim_number
from opal_lake.clock import Clock, SystemClock
from opal_lake.commit import Actions, Commit
from opal_lake.commit_log import CommitLog
from opal_lake.data_file import decode_file
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.ids import IdSource, RandomIds
from opal_lake.ingest import IngestTask, ingest_rows
from opal_lake.ingest_job import IngestRun, check_on_bad_rows, commit_ingest
from opal_lake.inline import inline_rows
from opal_lake.job import JobResult, check_metadata, check_visible
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.key_store.entries import concat_entries
from opal_lake.metagen import entries_of_rows, rule_columns
from opal_lake.metagen_job import MetaGenPlan, commit_metagen, plan_metagen
from opal_lake.ordering import encode_order
from opal_lake.read import event_time_of, narrowed, plan_read, read_rows, segments_after, segments_of_partition
from opal_lake.readable import is_readable
from opal_lake.results import run_once
from opal_lake.retention import Terms, retain
from opal_lake.ruled import Ruled, slot_writer
from opal_lake.savepoint import release_savepoint, set_savepoint
from opal_lake.schema import DELETED, Atomic
from opal_lake.segment import DataFile
from opal_lake.slot import Slot, SlotOutput, process_slot
from opal_lake.snapshot import Snapshot
from opal_lake.spec_change import Changes, set_properties
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.verified import read_verified
from opal_lake.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.visibility import invalid_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table at a URI. Nothing is cached between calls: each looks at the head anew."""

    log: CommitLog
    cache: RunCache

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str] | None = None, cache: CacheSettings | None = None) -> "Table":
        """The table at a URI; NotFoundError when there is none."""
        table = table_on(open_storage(uri, options), cache=cache)
        table.snapshot_at()
        return table

    @classmethod
    def create(cls, uri: str, schema: pa.Schema, layout: TableLayout, options: Mapping[str, str] | None = None) -> "Table":
        """A new, empty table."""
        return create_on(open_storage(uri, options), plan_spec(schema, layout))

    @property
    def uri(self) -> str:
        return self.log.storage.uri

    @property
    def storage(self) -> Storage:
        return self.log.storage

    def snapshot_at(self, version: int | None = None, timestamp: object | None = None) -> Snapshot:
        """The state at a version, or at the last one committed at or before a moment; by default the newest."""
        if version is not None and timestamp is not None:
            raise InvalidInputError("version and timestamp name the same axis: give one of them")
        if version is not None and not hasattr(version, "__index__"):
            raise InvalidInputError(f"version={version!r} is no version; give a whole number, as `opal history` lists them")
        if timestamp is not None:
            version = self._version_at(encode_order(timestamp, Atomic(name="timestamp"), name="timestamp"))
        return self.log.head() if version is None else self.log.at(version)

    def _version_at(self, moment_us: int) -> int:
        root = self.log.head().root
        low, high = root.oldest_version, root.version
        if self.log.at(low).root.timestamp_us > moment_us:
            oldest = f"the oldest version {low} is of {_iso(self._time(low))}"
            raise NotFoundError(f"{self.uri}: nothing is readable as of {_iso(moment_us)}; {oldest}")
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._time(middle) <= moment_us else (low, middle - 1)
        return low

    def _time(self, version: int) -> int:
        try:
            return self.log.read_commit(version).timestamp_us
        except NotFoundError:
            return self.log.at(version).root.timestamp_us  # its commit has expired, its checkpoint has not

    def history(self, limit: int | None = None) -> Iterator[Commit]:
        """Commits, newest first."""
        head, oldest = self.log.head().version, self.log.oldest()
        for shown, version in enumerate(range(head, oldest - 1, -1)):
            if limit is not None and shown >= limit:
                return
            try:
                yield self.log.read_commit(version)
            except NotFoundError:
                return

    def ingest(
        self,
        rows: pa.Table,
        deleted: Sequence[bool] | None = None,
        *,
        token: str | None = None,
        on_bad_rows: str = "fail",
        partition_key: str | None = None,
        metadata: str = "batch",
    ) -> JobResult:
        """Append rows, pending until a MetaGen, or visible at once when their metadata are made inline.

        `deleted` marks the rows that delete their key.
        """
        check_metadata(metadata)
        run = self.start_ingest(token, on_bad_rows)
        if isinstance(run, JobResult):
            return run if metadata == "batch" else check_visible(run)
        run = replace(run, partition_key=partition_key)
        task = IngestTask(storage=self.storage, spec=run.base.spec, number=run.number, task=0, attempt="0", quarantine=run.quarantine)
        batches = _marked(rows, deleted, run.base.spec).to_batches()
        if metadata == "batch":
            return commit_ingest(self.log, run, [ingest_rows(batches, task)])
        writer = slot_writer(run.base, run.number, self.cache)
        output = inline_rows(batches, task, writer, Slot(number=0, count=1, stem=task.stem(0)))
        return commit_ingest(self.log, run, [output.ingested], Ruled(writer=writer, outputs=(output.ruled,), slots=1))

    def start_ingest(self, token: str | None, on_bad_rows: str, application: tuple[str, int] | None = None) -> IngestRun | JobResult:
        """Claim a number; or the result, if this was done before."""
        quarantine, started_us = check_on_bad_rows(on_bad_rows), self.log.clock.now_us()
        base = self.log.head()
        if (earlier := self.log.earlier_result(base, "ingest", token, application)) is not None:
            return earlier
        return IngestRun(
            number=claim_number(self.storage, base.root, "ingest", self.log.clock),
            base=base,
            started_us=started_us,
            token=token,
            application=application,
            quarantine=quarantine,
        )

    def metagen(self, *, token: str | None = None) -> JobResult:
        """Apply the rule to all pending rows and make them visible."""
        plan = self.start_metagen(token)
        if isinstance(plan, JobResult):
            return plan
        base = plan.base
        writer = slot_writer(base, plan.number, self.cache)
        entries = [entries_of_rows(self._rule_rows(file, base), base.spec) for file in plan.files]
        outputs: tuple[SlotOutput, ...] = ()
        if entries:
            slot = Slot(number=0, count=1, stem=layout.job_file_name(plan.number, 0, "0"))
            outputs = (process_slot(concat_entries(entries), writer, slot),)
        return commit_metagen(self.log, plan, Ruled(writer=writer, outputs=outputs, slots=1), token)

    def start_metagen(self, token: str | None) -> MetaGenPlan | JobResult:
        """Claim a number and take up what is pending; or the result, if this was done before."""
        started_us, base = self.log.clock.now_us(), self.log.head()
        if (earlier := self.log.earlier_result(base, "metagen", token)) is not None:
            return earlier
        return plan_metagen(base, claim_number(self.storage, base.root, "metagen", self.log.clock), started_us)

    def set_properties(self, properties: Changes, *, token: str | None = None) -> JobResult:
        """Change properties; None gives one its default again."""
        return set_properties(self.log, properties, token)

    def savepoint(self, name: str, version: int | None = None) -> JobResult:
        """Keep a version readable, whatever retention does, until it is released; by default the newest."""
        return set_savepoint(self.log, name, version)

    def release(self, name: str) -> JobResult:
        """Give a savepoint up."""
        return release_savepoint(self.log, name)

    def retain(self, *, window: str | None = None, grace: str | None = None, dry_run: bool = False, token: str | None = None) -> JobResult:
        """Delete what no version of the last `window` needs, nor a savepoint, nor a job that began within `grace`.

        By default the table's own window, and a day. A dry run tells what would go.
        """
        terms = Terms(window=window, grace=grace, dry_run=dry_run)
        return run_once(self.log, "retain", None if dry_run else token, lambda: retain(self.log, terms))

    def _rule_rows(self, file: DataFile, base: Snapshot) -> pa.Table:
        return decode_file(read_verified(self.storage, file), base.spec, rule_columns(base.spec), file.path)

    def read(
        self,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
        columns: Sequence[str] | None = None,
        *,
        partition_key: str | None = None,
        after: int | None = None,
    ) -> pa.Table:
        """The visible rows, into memory. Of the ingests of one partition key, or of those that became visible after a version."""
        snapshot = self.snapshot_at(version, timestamp)
        until = event_time_of(snapshot, event_time)
        invalid = self.narrow(snapshot, invalid_rows(snapshot, until), partition_key, after)
        return read_rows(plan_read(snapshot, until, invalid=invalid), columns)

    def narrow(self, snapshot: Snapshot, invalid: Bitmaps, partition_key: str | None, after: int | None) -> Bitmaps:
        """The bitmaps of a read that wants only what came with a partition key, or after a version."""
        if partition_key is not None:
            invalid = narrowed(snapshot, segments_of_partition(snapshot, partition_key), invalid)
        if after is not None:
            invalid = narrowed(snapshot, segments_after(snapshot, self.seen_at(after)), invalid)
        return invalid

    def seen_at(self, version: int) -> Snapshot:
        """The state that somebody saw at a version: of an expired one that of the oldest version, if that shows the same rows."""
        root = self.log.head().root
        if version < root.oldest_version and not is_readable(root, version):
            oldest = self.log.at(root.oldest_version)
            if oldest.root.viewed <= version:
                return oldest
        return self.log.at(version)


def table_on(storage: Storage, clock: Clock | None = None, ids: IdSource | None = None, cache: CacheSettings | None = None) -> Table:
    """A table in an open store; whether there is one shows at the first look."""
    log = CommitLog(storage=storage, clock=clock or SystemClock(), ids=ids or RandomIds())
    return Table(log=log, cache=NearRuns(storage=storage, settings=cache or CacheSettings()))


def create_on(
    storage: Storage, spec: TableSpec, clock: Clock | None = None, ids: IdSource | None = None, cache: CacheSettings | None = None
) -> Table:
    """Write version 0. Of two that create at once, one loses.

    The name of version 0 may be free again in a table that is there: retention deletes it. So the log is looked at before and after.
    """
    table = table_on(storage, clock, ids, cache)
    if any(storage.list(layout.LOG)):
        raise _exists(storage)
    commit = Commit(
        version=0,
        table_id=table.log.ids.new_id(),
        write_id=table.log.ids.new_id(),
        previous_write_id=None,
        timestamp_us=table.log.clock.now_us(),
        operation="create",
        changes_view=True,
        result=JobResult(operation="create", table=storage.uri, version=0).to_dict(),
        actions=Actions(spec=spec),
    )
    if not table.log.put(commit) or any(storage.list(layout.CHECKPOINTS)):
        raise _exists(storage)
    return table


def _exists(storage: Storage) -> TableExistsError:
    way_out = "open it with OpalTable.for_path, create it only if_absent (`opal create --if-absent`), or choose another path"
    return TableExistsError(f"{storage.uri} is an Opal table already; {way_out}")


def _marked(rows: pa.Table, deleted: Sequence[bool] | None, spec: TableSpec) -> pa.Table:
    names = spec.schema.names
    if sorted(set(rows.column_names) - {DELETED}) != sorted(names):
        raise InvalidInputError(f"the rows have the columns {rows.column_names}, the table has {names}; give it exactly these")
    if deleted is None:
        return rows
    if spec.deletes is None:
        raise InvalidInputError("rows are marked as deletes, but the table knows none; create it with deletes='an SQL condition'")
    return rows.append_column(DELETED, pa.array(deleted, pa.bool_()))


def _iso(moment_us: int) -> str:
    return datetime.fromtimestamp(moment_us / 1e6, UTC).isoformat()
