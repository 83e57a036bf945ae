"""The public face: OpalTable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.duration import Duration
from opal_lake.errors import NotFoundError, TableExistsError
from opal_lake.inspect.check import CheckedList, CheckOptions
from opal_lake.inspect.describe import describe, file_rows, history_rows, segment_rows
from opal_lake.job.job import JobResult
from opal_lake.job.operations.declared import given_fields
from opal_lake.job.operations.rows import MetaGen
from opal_lake.job.operations.table import Restore
from opal_lake.job.operations.upkeep import Compact
from opal_lake.job.source import BATCH_MB, Files, Jdbc
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import FeedOptions
from opal_lake.spec.table_spec import TableLayout, plan_spec, refuse_another_spec
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on
from opal_lake.write.bootstrap import refuse_overlap, source_table
from opal_lake.write.bootstrap_job import bootstrap
from opal_lake.write.ingest_job import IngestOptions
from opal_spark.engine.columns import arrow_of_spark
from opal_spark.engine.executor import on_spark
from opal_spark.engine.session import cache_settings, storage_options, use_this_python
from opal_spark.inspect.check import check
from opal_spark.kept_table import KeptOpalTable
from opal_spark.read.changes import changes
from opal_spark.read.history_view import history_of_keys, history_view
from opal_spark.read.reader import View, explain_read, read
from opal_spark.write.bootstrap import SparkSource
from opal_spark.write.ingest import Sink, SourceOf, ingest_source


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpalTable(KeptOpalTable):
    """A mutable table on files. `create` makes a new one, `for_path` opens one."""

    @classmethod
    def create(  # the public face: every argument but the first three has a name
        cls,
        spark: SparkSession,
        uri: str,
        schema: StructType,
        *,
        keys: Sequence[str],
        delta: str,
        tie_break: Sequence[str] = (),
        deletes: str | None = None,
        partition_by: Sequence[str] = (),
        file_format: str = "parquet",
        properties: Mapping[str, int | str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Create a table. A row that meets the condition `deletes` deletes its key, from the row's delta on."""
        layout = TableLayout(**given_fields(TableLayout, locals()))
        spec = plan_spec(arrow_of_spark(schema), layout)
        return cls(
            spark=spark,
            table=create_on(
                open_storage(uri, _options(spark, uri, options)), spec, cache=cache_settings(spark)
            ),
        )

    @classmethod
    def for_path(
        cls, spark: SparkSession, uri: str, *, options: Mapping[str, str] | None = None
    ) -> Self:
        """Open the table at a path. S3 settings are Spark's own (`spark.hadoop.fs.s3a.*`), unless `options` are given."""
        return cls(
            spark=spark, table=Table.open(uri, _options(spark, uri, options), cache_settings(spark))
        )

    def __post_init__(self) -> None:
        use_this_python(self.spark)

    def __repr__(self) -> str:
        return f"OpalTable({self.table.uri!r})"

    @property
    def _on_spark(self) -> Table:
        """The same table with its tasks on Spark."""
        return on_spark(self.spark, self.table)

    def ingest(
        self,
        rows: DataFrame | Files | Jdbc,
        *,
        metadata: str = "batch",
        token: str | None = None,
        application: tuple[str, int] | None = None,
        on_bad_rows: str = "fail",
        reject_threshold: int | str | None = None,
        refuse_empty: bool = False,
        on_new_columns: str = "fail",
        partition_key: str | None = None,
        business_snapshot: str | None = None,
        business_snapshot_column: str | None = None,
        replaces: Sequence[str] | None = None,
    ) -> JobResult:
        """Append the rows of a DataFrame, of files or of a database.

        The rows become visible with the next `metagen`, or, with `metadata="inline"`, with this call. The same token twice applies once.

        `partition_key`, such as a day, names the rows: `read` finds them by it. `refuse_empty` makes a source without a row an error.
        With `on_bad_rows="quarantine"` bad rows are put aside; if there are more than `reject_threshold`, as 100 or "5%", the ingest fails
        before it commits.

        `on_new_columns` says what becomes of columns of the source that the table lacks: "fail", "add" them to the table, or "ignore" them.
        Columns that were added to the table may be missing in the source, and are null then.

        `business_snapshot`, as "2022-07-15", says which one the rows belong to. `business_snapshot_column` names a column of the table that
        says it; then each business snapshot has a commit of its own, and rows of a later one than the open one are held back for the drift
        time (property `drift`).

        `replaces` are tokens of earlier tries of the same task: what is pending of them is discarded in the commit that adds these rows.
        What is visible of them already stays.
        """
        options = IngestOptions(**given_fields(IngestOptions, locals()))
        return ingest_source(
            self._on_spark, SourceOf(spark=self.spark, rows=rows), options, business_snapshot_column
        )

    def sink(
        self,
        *,
        application: str,
        metadata: str = "inline",
        on_bad_rows: str = "fail",
        reject_threshold: int | str | None = None,
        on_new_columns: str = "fail",
    ) -> Sink:
        """For `writeStream.foreachBatch`: each micro-batch is an ingest, and one that comes again is applied once.

        `application` names the query, and no other. A query with a new checkpoint counts its micro-batches from 0: give it another name.
        """
        options = IngestOptions(**given_fields(IngestOptions, {**locals(), "application": None}))
        return Sink(table=self.table, application=application, options=options)

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
        return self._on_spark.metagen(**MetaGen.among(locals()), token=token)

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
    ) -> DataFrame:
        """The visible rows: now, as of a version or a commit time (`timestamp`), and as of an event time. Both axes may be combined.

        `business_snapshot` reads the table as of its end. The open one is read as it is now.

        With `partition_key` only the rows that were ingested under it. With `after` only those that became visible after that version.
        With `partition_key` and `net` all rows of this partition key that no later row of the same partition key replaced or deleted,
        whatever other partition keys brought.
        """
        return read(self.spark, self.table, View(**given_fields(View, locals())))

    def get(
        self,
        keys: Sequence[Mapping[str, Any]],
        *,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of some keys, as `[{"id": 7}, {"id": 9}]`, in their order, as Arrow; a key without a row has none. Spark runs no job."""
        return self.table.get(
            keys, version=version, timestamp=timestamp, event_time=event_time, columns=columns
        )

    def history_view(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        keys: Sequence[Mapping[str, Any]] | None = None,
        version: int | None = None,
        timestamp: object = None,
    ) -> DataFrame:
        """When each row was the valid one of its key: `valid_from` its delta, `valid_until` the next one's, null if `is_current`.

        `deleted` says that the key had no valid row then. With `keys`, as `[{"id": 7}]`, only their rows are looked for, by this
        process and through the key store.
        """
        snapshot = self.table.snapshot_at(version, timestamp)
        if keys is None:
            return history_view(self.spark, snapshot, columns, where)
        of_keys = partial(self.table.history_view, keys=keys, version=snapshot.version)
        return history_of_keys(
            self.spark, snapshot, lambda names: of_keys(columns=names), columns, where
        )

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
    ) -> DataFrame:
        """The rows that the versions `start` to `end` changed, both included; by default up to the newest.

        A bound is a version, a commit time, or the name of a savepoint, which as `start` stands for the version after it. `start="latest"`
        is the version that comes next. `_change_type` says what happened to each row: `insert`, `delete`, or `update_preimage` and
        `update_postimage`, for which `compute_updates=False` has `delete` and `insert`. `mode="netChanges"` leaves out what later versions
        of the range undid. `_commit_version` and `_commit_timestamp` say when it happened. With `axis="event_time"` the feed tells what
        became of the rows of the history view, late rows that change only the past among them; the driver reads it.
        """
        feed = FeedOptions(mode=mode, compute_updates=compute_updates, columns=columns, axis=axis)
        return changes(
            self.spark, self.table, version_range(self.table.log, start, end), feed, where
        )

    def explain(
        self,
        where: str | None = None,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
    ) -> dict[str, Any]:
        """Which files a read opens and which it skips, and why: by bounds and which condition, by event time, or without a visible row.

        It also says how much of the table is in Z-order. It reads metadata only.
        """
        return explain_read(
            self.table,
            View(version=version, timestamp=timestamp, event_time=event_time, where=where),
        )

    def describe(self) -> dict[str, Any]:
        """What the table is and how much it holds."""
        return describe(self.table)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Commits, newest first."""
        return history_rows(self.table, limit)

    def files(self) -> list[dict[str, Any]]:
        """Data files of the newest version."""
        return file_rows(self.table)

    def segments(self) -> list[dict[str, Any]]:
        """Segments of the newest version, with the number of rows that are not visible."""
        return segment_rows(self.table)

    def check(
        self,
        *,
        sample: str | None = None,
        all: bool = False,  # noqa: A002  # as the operation's argument
    ) -> CheckedList:
        """Every broken invariant of the format; an empty list if there is none. Spark's tasks look at the rows of a large table.

        A `sample`, as "1%", checks all metadata, and all rows of that share of the keys. Which keys these are depends on the version.
        `all` checks the files of savepoints and of all readable versions, too. `looked_at` of the list says what was looked at.
        """
        return CheckedList(check(self.spark, self.table, CheckOptions(sample=sample, all=all)))

    def retain(
        self,
        *,
        window: Duration | None = None,
        grace: Duration | None = None,
        dry_run: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Delete files that no version of the last `window`, no savepoint and no job of the last `grace` (a day by default) needs."""
        return self.table.retain(window=window, grace=grace, dry_run=dry_run, token=token)

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
        """A new version that shows what an older one showed, and waits for a metagen with what was pending then. A dry run counts changes.

        With `business_snapshots` those that began or were finished since are taken back, too.
        """
        return self.table.restore(**Restore.among(locals()), token=token)

    def rebuild_key_store(self, *, token: str | None = None) -> JobResult:
        """Build the key store again from the data files, after runs of it were lost; after a failure the same call does what is left."""
        return self._on_spark.rebuild_key_store(token=token)

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
        return self._on_spark.compact(**Compact.among(locals()), token=token)

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
        return self._on_spark.zorder(
            columns, target_mb=target_mb, whole=whole, only_if_due=only_if_due, token=token
        )

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
        return self._on_spark.maintain(policy=policy, dry_run=dry_run, delete=delete, token=token)

    @classmethod
    def bootstrap(
        cls,
        spark: SparkSession,
        uri: str,
        source: str,
        *,
        format: str,
        keys: Sequence[str],
        delta: str,
        schema: StructType | None = None,
        tie_break: Sequence[str] = (),
        deletes: str | None = None,
        partition_by: Sequence[str] = (),
        file_format: str = "parquet",
        properties: Mapping[str, int | str] | None = None,
        options: Mapping[str, str] | None = None,
        source_version: int | None = None,
        batch_mb: int = BATCH_MB,
        on_bad_rows: str = "fail",
    ) -> JobResult:
        """Take over a folder of Parquet or ORC files, a Delta or an Iceberg table. The table is created if it does not exist.

        The first try fixes the list of files. After a failure the same call does what is left. When all is done, it changes nothing.
        `source_version` is a version of Delta or the id of an Iceberg snapshot; without it the newest is taken.
        """
        source_at = source_table(source, format, source_version)
        refuse_overlap(source_at, uri)
        layout = TableLayout(**given_fields(TableLayout, locals()))
        reader = SparkSource(
            spark=spark, source=source_at, schema=schema, batch_bytes=batch_mb << 20
        )
        try:
            opened = cls.for_path(spark, uri, options=options)
        except NotFoundError:
            use_this_python(spark)
            plan = reader.plan()
            reader = replace(reader, known=plan)
            opened = cls._made(
                spark, uri, schema or StructType.fromJson(dict(plan.schema)), layout, options
            )
        made = opened.table.snapshot_at().spec
        refuse_another_spec(
            opened.table.uri, made, None if schema is None else arrow_of_spark(schema), layout
        )
        return bootstrap(on_spark(spark, opened.table), reader, on_bad_rows)

    @classmethod
    def _made(
        cls,
        spark: SparkSession,
        uri: str,
        schema: StructType,
        layout: TableLayout,
        options: Mapping[str, str] | None,
    ) -> Self:
        """A new table, or the one that another job created at the same time."""
        arguments = {name: getattr(layout, name) for name in TableLayout.__dataclass_fields__}
        try:
            return cls.create(spark, uri, schema, **arguments, options=options)
        except TableExistsError:
            return cls.for_path(spark, uri, options=options)


def _options(spark: SparkSession, uri: str, options: Mapping[str, str] | None) -> Mapping[str, str]:
    return storage_options(spark, uri) if options is None else options
