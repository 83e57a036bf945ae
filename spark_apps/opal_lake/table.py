"""The face of a table: open, create, look at it, and every operation. Without Spark, this process runs the tasks, over Arrow.

What keeps a table is imported when it is asked for: most processes only write or read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa

import opal_lake.retention.missing_file  # noqa: F401  # from here on a missing file is distinguished from one that has expired
from opal_lake import layout
from opal_lake.after_commit import tell_of_commit
from opal_lake.clock import Clock, SystemClock
from opal_lake.data.prune import Predicate
from opal_lake.data.z_value import z_fields
from opal_lake.duration import Duration
from opal_lake.engine.executor import Executor
from opal_lake.engine.in_process import InProcess
from opal_lake.engine.results import run_once
from opal_lake.errors import InvalidInputError, StorageError, TableExistsError
from opal_lake.events.bitmap import Bitmaps
from opal_lake.ids import IdSource, RandomIds
from opal_lake.job.job import JobResult
from opal_lake.job.operations.declared import given_fields
from opal_lake.job.operations.rows import MetaGen
from opal_lake.job.operations.table import Restore
from opal_lake.job.operations.upkeep import Retain
from opal_lake.kept_table import KeptTable
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import history, version_at
from opal_lake.log.pending import Selection
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.store_clock import writer_now_us
from opal_lake.log.version_window import is_readable
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.change_range import VersionRange, version_range
from opal_lake.read.changed_rows import FEED_TYPES, FeedOptions, read_changes
from opal_lake.read.changes import plan_changes
from opal_lake.read.get import get_rows
from opal_lake.read.history_changes import history_changes, history_fields
from opal_lake.read.history_view import (
    history_of_all,
    history_of_keys,
    view_fields,
    view_types,
)
from opal_lake.read.partition_net import key_of_net, plan_net, read_net
from opal_lake.read.read import (
    event_time_of,
    narrowed,
    plan_read,
    read_rows,
    segments_after,
    segments_of_partition,
)
from opal_lake.read.where import matching, needed_names, where_condition, where_predicate, without
from opal_lake.retention.business_snapshot import read_business_snapshot
from opal_lake.retention.retention import retain
from opal_lake.retention.savepoint import savepoint_version
from opal_lake.rewrite.rewrite_plan import target_bytes_of
from opal_lake.spec.ordering import encode_order
from opal_lake.spec.positions import Advance
from opal_lake.spec.schema import Atomic
from opal_lake.spec.table_spec import TableLayout, TableSpec, delete_condition, plan_spec
from opal_lake.storage import Storage, open_storage
from opal_lake.write.arrow_rows import ArrowRows, ingest_arrow
from opal_lake.write.ingest_job import IngestOptions
from opal_lake.write.metagen_job import metagen
from opal_lake.write.restore import restore

# Files below a new table's root among which another table is looked for: three requests of S3
MAX_LOOKED_AT = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(KeptTable):
    """A table at a URI. Each call looks for the head; an ingest, from the version that it wrote last. Tasks run in this process."""

    executor: Executor = field(default_factory=InProcess)

    @classmethod
    def open(
        cls, uri: str, options: Mapping[str, str] | None = None, cache: CacheSettings | None = None
    ) -> "Table":
        """The table at a URI; NotFoundError when there is none."""
        table = table_on(open_storage(uri, options), cache=cache)
        table.snapshot_at()
        return table

    @classmethod
    def create(
        cls,
        uri: str,
        schema: pa.Schema,
        layout: TableLayout,
        options: Mapping[str, str] | None = None,
    ) -> "Table":
        """A new, empty table."""
        return create_on(open_storage(uri, options), plan_spec(schema, layout))

    def snapshot_at(
        self,
        version: int | None = None,
        timestamp: object | None = None,
        business_snapshot: str | None = None,
    ) -> Snapshot:
        """The state at a version, at the last one committed at or before a moment, or of a business snapshot; by default the newest."""
        if (version, timestamp, business_snapshot).count(None) < 2:
            raise InvalidInputError(
                "version, timestamp and business_snapshot each choose the version that is read: give only one of them"
            )
        if business_snapshot is not None:
            return read_business_snapshot(self.log, business_snapshot)
        if isinstance(version, bool) or (version is not None and not hasattr(version, "__index__")):
            raise InvalidInputError(
                f"version={version!r} is no version; give a whole number, as `opal history` lists them"
            )
        if timestamp is not None:
            version = version_at(
                self.log.head(), encode_order(timestamp, Atomic(name="timestamp"), name="timestamp")
            )
        return self.log.head() if version is None else self.log.at(version)

    def history(self, limit: int | None = None) -> Iterator[Commit]:
        """Commits, newest first; of a table whose clock was repaired with their corrected times."""
        head = self.log.head()
        read_commit = self.log.reading_back(head.root.oldest_version)
        return islice(history(head, read_commit), limit)

    def position(self, application: str) -> int | None:
        """The next position that an application has to read, as its commits say; None if it has not begun."""
        return self.log.head().positions.get(application)

    def ingest(
        self,
        rows: pa.Table | Iterable[pa.RecordBatch],
        deleted: Sequence[bool] | None = None,
        *,
        metadata: str = "batch",
        token: str | None = None,
        application: tuple[str, int] | None = None,
        positions: Mapping[str, Advance] | None = None,
        on_bad_rows: str = "fail",
        reject_threshold: int | str | None = None,
        refuse_empty: bool = False,
        on_new_columns: str = "fail",
        partition_key: str | None = None,
        business_snapshot: str | None = None,
        business_snapshot_column: str | None = None,
        replaces: Sequence[str] | None = None,
    ) -> JobResult:
        """Append rows, pending until a MetaGen, or visible at once when their metadata are made inline.

        The table's delete condition says which rows delete their key; `deleted`, of each row, replaces it. With
        `on_bad_rows="quarantine"` more than `reject_threshold` bad rows, as 100 or "5%", fail it. `refuse_empty` makes rows that are none
        an error. `on_new_columns` says what becomes of columns that the table lacks: "fail", "add" them to it, or "ignore" them.
        `business_snapshot`, as "2022-07-15", says which one the rows are of; `business_snapshot_column` names a column that says it, with a
        commit for each.
        `replaces` are tokens of earlier tries: what is pending of them is discarded in the same commit, what is visible stays.
        `positions` says how far each application has read its source with these rows; FencedError if another one has read on for it.
        """
        options = IngestOptions(**given_fields(IngestOptions, locals()))
        return ingest_arrow(
            self, ArrowRows(rows=rows, deleted=deleted), options, business_snapshot_column
        )

    def metagen(
        self,
        *,
        partition_key: str | None = None,
        tokens: Sequence[str] | None = None,
        all: bool = False,  # noqa: A002  # the name that every surface has
        token: str | None = None,
    ) -> JobResult:
        """Make pending rows visible: find out which rows they replace or delete.

        With `partition_key` those that were ingested under it, with `tokens` those of the ingests with these tokens, with `all`
        everything. With none of them only what was ingested without a partition key. `token` is this job's own. Notes of the result
        say what stays pending.
        """
        job = MetaGen(partition_key=partition_key, tokens=tokens, all=all)
        return metagen(self, token, Selection.of_job(job))

    def compact(
        self,
        *,
        mode: str = "minor",
        look_back: Duration | int | None = None,
        target_mb: int | None = None,
        archive_after: Duration | int | None = None,
        archive_codec: str | None = None,
        only_if_due: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Merge small files into larger ones. The content stays the same at every version and event time. Upserts may go on meanwhile.

        `mode="major"` also drops history: rows that no event time since `look_back` before now shows, as "30d", or a number if the delta
        column is one. From then on that is the oldest readable event time. Partitions without rows younger than `archive_after` are
        compressed harder, by `archive_codec` or the property of that name. With `only_if_due` nothing happens while the properties
        `small_files` and `dead_share` allow it.
        """
        from opal_lake.upkeep.compaction import CompactOptions, compact
        from opal_lake.upkeep.maintenance import compact_if_due

        options = CompactOptions(
            **given_fields(CompactOptions, locals()), target_bytes=target_bytes_of(target_mb)
        )
        run = compact_if_due if only_if_due else compact
        return run_once(self.log, "compact", token, lambda: run(self, options))

    def zorder(
        self,
        columns: Sequence[str],
        *,
        target_mb: int | None = None,
        whole: bool = False,
        only_if_due: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Sort rows so that a file holds close values of all these columns. Reads that filter by any of them open fewer files.

        It sorts what is new since the last time, and now and then larger parts of the table; `whole` sorts all. With `only_if_due` nothing
        happens while a smaller share is new than the property `unclustered_share` says. Upserts may go on meanwhile.
        """
        from opal_lake.upkeep.zorder import zorder
        from opal_lake.upkeep.zorder_plan import ZOrderOptions

        fields = z_fields(self.snapshot_at().spec, columns)
        ids = tuple(field.id for field in fields)
        options = ZOrderOptions(
            columns=ids,
            target_bytes=target_bytes_of(target_mb),
            whole=whole,
            only_if_due=only_if_due,
        )
        return run_once(self.log, "zorder", token, lambda: zorder(self, fields, options))

    def maintain(
        self,
        *,
        policy: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        delete: bool = True,
        token: str | None = None,
    ) -> JobResult:
        """Do what is due of compaction, Z-order and retention, by the table's properties. `policy` counts before these.

        `delete=False` leaves retention out. A dry run only says what is due, and why.
        """
        from opal_lake.upkeep.maintenance import Runner, policy_of, run_maintenance

        effective = policy_of(self.snapshot_at().spec, policy or {})
        steps: Runner = {
            "compact": lambda arguments: self.compact(**arguments),
            "zorder": lambda arguments: self.zorder(**arguments),
        }
        return run_once(
            self.log,
            "maintain",
            None if dry_run else token,
            lambda: run_maintenance(self, effective, steps, dry_run=dry_run, delete=delete),
        )

    def rebuild_key_store(self, *, token: str | None = None) -> JobResult:
        """Build the key store again from the data files, after runs were lost or damaged.

        After a failure the same call does what is left. Pending rows stay pending. Others may write meanwhile.
        """
        from opal_lake.upkeep.rebuild import rebuild_key_store

        return rebuild_key_store(self, token)

    def restore(
        self,
        *,
        version: int | None = None,
        timestamp: object = None,
        savepoint: str | None = None,
        business_snapshots: bool = False,
        dry_run: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """A new version that shows what an older one showed. All versions stay readable as before; a dry run counts what would change.

        Rows that were pending then are pending again. Properties, savepoints and the oldest readable event time stay as they are, and so
        does what was applied: a retry of an ingest that this undoes ingests nothing. `business_snapshots` also undoes those since.
        """
        Restore.check_together(
            {"version": version, "timestamp": timestamp, "savepoint": savepoint}, lambda _: False
        )
        kept = version if savepoint is None else savepoint_version(self.log.head(), savepoint)
        return restore(
            self.log,
            self.snapshot_at(kept, timestamp),
            business_snapshots=business_snapshots,
            dry_run=dry_run,
            token=token,
        )

    def retain(
        self,
        *,
        window: Duration | None = None,
        grace: Duration | None = None,
        dry_run: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Delete what no version of the last `window` needs, nor a savepoint, nor a job that began within `grace`.

        By default the table's own window, and a day. A dry run tells what would go.
        """
        job = Retain(window=window, grace=grace, dry_run=dry_run)
        return run_once(
            self.log, "retain", None if dry_run else token, lambda: retain(self.log, job)
        )

    def read(
        self,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        *,
        business_snapshot: str | None = None,
        partition_key: str | None = None,
        after: int | None = None,
        net: bool = False,
    ) -> pa.Table:
        """The visible rows, into memory. Of the ingests of one partition key, or of those that became visible after a version.

        With `where` those for which a condition is true. Files that cannot hold one are not read.

        `business_snapshot` reads the table as of its end; of the open one, as it is now.

        With `net` the key's own: also those that other keys' rows have replaced.
        """
        snapshot = self.snapshot_at(version, timestamp, business_snapshot)
        as_of = event_time_of(snapshot, event_time)
        condition = where_condition(where, snapshot.spec)
        if net:
            plan_of_net = plan_net(snapshot, key_of_net(partition_key, after), as_of)
            shown, read = needed_names(snapshot.spec, columns, condition)
            return matching(read_net(plan_of_net, read), condition).select(shown)
        invalid = self.narrow(snapshot, invalid_rows(snapshot, as_of), partition_key, after)
        plan = plan_read(snapshot, as_of, where_predicate(condition), invalid)
        return read_rows(plan, columns, condition)

    def get(
        self,
        keys: Sequence[Mapping[str, Any]],
        *,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of some keys, as `[{"id": 7}, {"id": 9}]`, in the order of these; a key without a row has none.

        The key store is asked where they are: of the table nothing else is searched.
        """
        snapshot = self.snapshot_at(version, timestamp)
        return get_rows(snapshot, self.cache, keys, event_time_of(snapshot, event_time), columns)

    def history_view(
        self,
        *,
        keys: Sequence[Mapping[str, Any]] | None = None,
        version: int | None = None,
        timestamp: object = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """When each row was the valid one of its key: `valid_from` its delta, `valid_until` the next one's, null if `is_current`.

        `deleted` says that the key had no valid row then. With `keys`, as `[{"id": 7}]`, only their rows are looked for, through
        the key store. With `where` those for which a condition is true.
        """
        snapshot = self.snapshot_at(version, timestamp)
        if where is None:
            return self._history(snapshot, keys, columns)
        condition = where_condition(where, snapshot.spec, view_types(snapshot.spec))
        shown = [field.name for field in view_fields(snapshot, columns)]
        _, read = needed_names(snapshot.spec, shown, condition)
        return without(matching(self._history(snapshot, keys, read), condition), read, shown)

    def _history(
        self,
        snapshot: Snapshot,
        keys: Sequence[Mapping[str, Any]] | None,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        if keys is None:
            return history_of_all(snapshot, columns)
        return history_of_keys(snapshot, self.cache, keys, columns)

    def changes(
        self,
        start: object,
        end: object = None,
        *,
        mode: str = "none",
        compute_updates: bool = True,
        axis: str = "commit",
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """The rows that the versions `start` to `end` changed, both included, in the order of the versions; by default up to the newest.

        A bound is a version, a commit time, or the name of a savepoint, which as `start` stands for the version after it. `start="latest"`
        is the version that comes next. `_change_type` says what happened to each row: `insert`, `delete`, or `update_preimage` and
        `update_postimage`, for which `compute_updates=False` has `delete` and `insert`. `mode="netChanges"` leaves out what later versions
        of the range undid. With `axis="event_time"` it tells what became of the rows of the history view: late rows that change only the
        past among them. With `where` only changes for which a condition is true, on the table's columns and on those of the feed.
        """
        feed = FeedOptions(mode=mode, compute_updates=compute_updates, columns=columns, axis=axis)
        versions = version_range(self.log, start, end)
        if where is None:
            return self._changes(versions, feed)
        spec = versions.head.spec
        own = {**FEED_TYPES, **view_types(spec)} if feed.is_of_history else FEED_TYPES
        condition = where_condition(where, spec, own)
        fields = history_fields(spec, columns) if feed.is_of_history else feed.fields(spec)
        shown = [field.name for field in fields]
        _, read = needed_names(spec, shown, condition)
        rows = self._changes(versions, replace(feed, columns=read), where_predicate(condition))
        return without(matching(rows, condition), read, shown)

    def _changes(
        self, versions: VersionRange, feed: FeedOptions, predicate: Predicate | None = None
    ) -> pa.Table:
        if feed.is_of_history:
            return history_changes(self.log, self.cache, versions, feed)
        return read_changes(plan_changes(self.log, versions, predicate, is_net=feed.is_net), feed)

    def narrow(
        self, snapshot: Snapshot, invalid: Bitmaps, partition_key: str | None, after: int | None
    ) -> Bitmaps:
        """The bitmaps of a read that wants only what came with a partition key, or after a version."""
        if partition_key is not None:
            invalid = narrowed(snapshot, segments_of_partition(snapshot, partition_key), invalid)
        if after is not None:
            earlier = self.snapshot_for_consumer(after)
            fresh = segments_after(snapshot, earlier, self.log.read_commit)
            invalid = narrowed(snapshot, fresh, invalid)
        return invalid

    def snapshot_for_consumer(self, version: int) -> Snapshot | None:
        """The state that a consumer saw at a version: if that has expired, the oldest version's, provided that it shows the same rows.

        None for version 0 once it has expired: it held nothing.
        """
        root = self.log.head().root
        if version == 0 and not is_readable(root, version):
            return None
        if version < root.oldest_version and not is_readable(root, version):
            oldest = self.log.at(root.oldest_version)
            if oldest.root.viewed <= version:
                return oldest
        return self.log.at(version)


def table_on(
    storage: Storage,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    cache: CacheSettings | None = None,
) -> Table:
    """A table in an open store; whether there is one shows at the first look."""
    log = CommitLog(storage=storage, clock=clock or SystemClock(), ids=ids or RandomIds())
    return Table(log=log, cache=NearRuns(storage=storage, settings=cache or CacheSettings()))


def create_on(
    storage: Storage,
    spec: TableSpec,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    cache: CacheSettings | None = None,
) -> Table:
    """Write version 0. Of two that create at once, one loses.

    The name of version 0 may be free again in a table that is there: retention deletes it. So the log is looked at before and after.
    """
    delete_condition(spec)  # an error before anything is written
    table = table_on(storage, clock, ids, cache)
    if any(storage.list(layout.LOG)):
        raise _exists(storage)
    _refuse_within_a_table(storage)
    _refuse_around_a_table(storage)
    own_us = table.log.clock.now_us()
    commit = Commit(
        version=0,
        table_id=table.log.ids.new_id(),
        write_id=table.log.ids.new_id(),
        previous_write_id=None,
        timestamp_us=writer_now_us(own_us, storage.now_us(), spec, storage.uri),
        operation="create",
        changes_view=True,
        result=JobResult(operation="create", table=storage.uri, version=0).to_dict(),
        actions=Actions(spec=spec),
    )
    if not table.log.put(commit) or any(storage.list(layout.CHECKPOINTS)):
        raise _exists(storage)
    tell_of_commit(table.log, table.log.head)
    return table


def _refuse_within_a_table(storage: Storage) -> None:
    """Raise InvalidInputError where a folder above is a table, which would take the files for its own.

    A folder above that may not be listed is passed over: credentials may reach the table alone.
    """
    above = storage.parent()
    while above is not None:
        try:
            is_table = any(above.list(layout.LOG))
        except StorageError:
            is_table = False
        if is_table:
            raise InvalidInputError(
                f"{storage.uri} lies inside the Opal table {above.uri}, and a table cannot hold "
                "another one; choose a path outside of it"
            )
        above = above.parent()


def _refuse_around_a_table(storage: Storage) -> None:
    """Raise InvalidInputError where a folder below holds a table, which would lie inside the new one.

    An empty root costs one listing. Of a root with many other files only so many are looked at, first
    in the folders that retention walks; behind these, retention itself spares what it meets.
    """
    for prefix in ("", layout.DATA, layout.META):
        looked_at = 0
        with suppress(StorageError):  # a folder that may not be listed is passed over
            for entry in islice(storage.list(prefix), MAX_LOOKED_AT):
                looked_at += 1
                inner = layout.inner_table(entry.path)
                if inner is not None:
                    raise InvalidInputError(
                        f"{storage.uri} cannot become an Opal table, since another one lies inside "
                        f"it: {storage.uri}/{inner.rstrip('/')}; choose a path that holds no table"
                    )
        if prefix == "" and looked_at == 0:
            return


def _exists(storage: Storage) -> TableExistsError:
    way_out = "open it with OpalTable.for_path, create it only if_absent (`opal create --if-absent`), or choose another path"
    return TableExistsError(f"{storage.uri} is an Opal table already; {way_out}")
