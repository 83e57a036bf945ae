"""The public face: OpalTable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from opal_lake.bootstrap import BootstrapPlan
from opal_lake.check import Finding, check_table
from opal_lake.compaction import CompactOptions, compact
from opal_lake.describe import describe, file_rows, history_rows, segment_rows
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.job import JobResult, check_metadata, check_visible
from opal_lake.maintenance import Runner, compact_if_due
from opal_lake.results import run_once
from opal_lake.rewrite import target_bytes_of
from opal_lake.source import BATCH_MB, Files, Jdbc
from opal_lake.spec_change import Changes
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on
from opal_lake.table_spec import TableLayout, plan_spec, refuse_another_spec
from opal_lake.z_value import z_fields
from opal_lake.zorder import zorder
from opal_lake.zorder_plan import ZOrderOptions
from opal_spark.bootstrap import Bootstrap, refuse_overlap, source_table
from opal_spark.columns import arrow_of_spark
from opal_spark.failures import first_words
from opal_spark.ingest import ingest
from opal_spark.inline import ingest_inline
from opal_spark.maintenance import maintain
from opal_spark.metagen import metagen
from opal_spark.reader import View, explain_read, read
from opal_spark.rebuild import rebuild_key_store
from opal_spark.session import cache_settings, is_connect, storage_options, use_this_python
from opal_spark.sources import source_errors, source_rows
from opal_spark.sources.tables import plan_source
from opal_spark.spread import spread_over
from opal_spark.zorder import ZOrdering


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpalTable:
    """A mutable table on files. Make one with `create`, find one with `for_path`."""

    spark: SparkSession
    table: Table

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
        """A new table. `deletes` is an SQL condition on a row that says that its key is gone from then on."""
        layout = TableLayout(
            keys=keys,
            delta=delta,
            tie_break=tie_break,
            deletes=deletes,
            partition_by=partition_by,
            file_format=file_format,
            properties=properties or {},
        )
        spec = plan_spec(arrow_of_spark(schema), layout)
        if deletes is not None:
            _check_condition(spark, schema, deletes)
        return cls(spark=spark, table=create_on(open_storage(uri, _options(spark, uri, options)), spec, cache=cache_settings(spark)))

    @classmethod
    def for_path(cls, spark: SparkSession, uri: str, *, options: Mapping[str, str] | None = None) -> Self:
        """The table at a path. S3 settings come from Spark's own (`spark.hadoop.fs.s3a.*`) unless `options` are given."""
        return cls(spark=spark, table=Table.open(uri, _options(spark, uri, options), cache_settings(spark)))

    def __post_init__(self) -> None:
        use_this_python(self.spark)

    def __repr__(self) -> str:
        return f"OpalTable({self.table.uri!r})"

    def ingest(
        self,
        rows: DataFrame | Files | Jdbc,
        *,
        metadata: str = "batch",
        token: str | None = None,
        application: tuple[str, int] | None = None,
        on_bad_rows: str = "fail",
        refuse_empty: bool = False,
        partition_key: str | None = None,
    ) -> JobResult:
        """Append the rows of a DataFrame, of files or of a database.

        They become visible by the next `metagen`, or, with metadata="inline", by this call.

        The same token twice applies once. `refuse_empty` makes a source without a row an error. By its `partition_key` (a day, say) what
        was ingested can be read again, whatever columns it has.
        """
        check_metadata(metadata)
        write = ingest_inline if metadata == "inline" else ingest
        run = self.table.start_ingest(token, on_bad_rows, application)
        if isinstance(run, JobResult):
            return run if metadata == "batch" else check_visible(run)
        run = replace(run, refuse_empty=refuse_empty, partition_key=partition_key)
        with source_errors(self.spark, rows, run.base.spec):
            return write(self.table, source_rows(self.spark, rows, run.base.spec), run)

    def metagen(self, *, token: str | None = None) -> JobResult:
        """Apply the rule to all pending rows and make them visible."""
        return metagen(self.spark, self.table, token)

    def read(
        self,
        version: int | None = None,
        timestamp: object = None,
        event_time: object = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        *,
        partition_key: str | None = None,
        after: int | None = None,
    ) -> DataFrame:
        """The visible rows: now, or as of a version or commit time, and as of an event time; both axes may be combined.

        With `partition_key` only those that were ingested under it, with `after` only those that became visible after that version.
        """
        view = View(
            version=version,
            timestamp=timestamp,
            event_time=event_time,
            columns=columns,
            where=where,
            partition_key=partition_key,
            after=after,
        )
        return read(self.spark, self.table, view)

    def explain(
        self, where: str | None = None, version: int | None = None, timestamp: object = None, event_time: object = None
    ) -> dict[str, Any]:
        """Which files a read would open and which it would skip, and why: by bounds, and by which condition; as dead; by event time.

        Also how far the table is in Z-order. Looks at metadata only.
        """
        return explain_read(self.spark, self.table, View(version=version, timestamp=timestamp, event_time=event_time, where=where))

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

    def check(self) -> list[Finding]:
        """Every broken invariant; empty when all is well."""
        return check_table(self.table)

    def set_properties(self, properties: Changes, *, token: str | None = None) -> JobResult:
        """Change properties; None gives one its default again."""
        return self.table.set_properties(properties, token=token)

    def savepoint(self, name: str, version: int | None = None) -> JobResult:
        """Keep a version readable, whatever retention does, until it is released; by default the newest."""
        return self.table.savepoint(name, version)

    def release(self, name: str) -> JobResult:
        """Give a savepoint up."""
        return self.table.release(name)

    def retain(self, *, window: str | None = None, grace: str | None = None, dry_run: bool = False, token: str | None = None) -> JobResult:
        """Delete what no version of the last `window` needs, nor a savepoint, nor a job that began within `grace` (a day by default)."""
        return self.table.retain(window=window, grace=grace, dry_run=dry_run, token=token)

    def rebuild_key_store(self, *, token: str | None = None) -> JobResult:
        """Make the key store anew from the data files, for when runs of it are lost or damaged.

        After a failure the same call does only what is left. Pending rows stay pending, and others may write meanwhile.
        """
        return rebuild_key_store(self.spark, self.table, token)

    def compact(
        self,
        *,
        mode: str = "minor",
        look_back: str | int | None = None,
        target_mb: int | None = None,
        archive_after: str | int | None = None,
        archive_codec: str = "zstd:19",
        only_if_due: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Fewer, larger files, with the same content at every version and event time.

        mode="major" also drops what no event time from `look_back` before now on shows ("30d"; a number where the delta is one): from
        then on that is the oldest readable event time. Partitions without rows of the time since `archive_after` are compressed harder.
        With `only_if_due` it does nothing while the properties small_files and dead_share allow it. Upserts may go on meanwhile.
        """
        options = CompactOptions(
            mode=mode,
            look_back=look_back,
            target_bytes=target_bytes_of(target_mb),
            archive_after=archive_after,
            archive_codec=archive_codec,
        )
        run = compact_if_due if only_if_due else compact
        return run_once(self.table.log, "compact", token, lambda: run(self.table, options, spread_over(self.spark)))

    def zorder(
        self,
        columns: Sequence[str],
        *,
        target_mb: int | None = None,
        whole: bool = False,
        only_if_due: bool = False,
        token: str | None = None,
    ) -> JobResult:
        """Sort rows so that files hold close values of all these columns, and reads that filter by any of them open few.

        Takes what came since the last time, and now and then larger parts of the table; `whole` takes all. With `only_if_due` it does
        nothing while less than the property unclustered_share, in percent, is new. Upserts may go on meanwhile.
        """
        fields = z_fields(self.table.snapshot_at().spec, columns)
        ids = tuple(field.id for field in fields)
        options = ZOrderOptions(columns=ids, target_bytes=target_bytes_of(target_mb), whole=whole, only_if_due=only_if_due)
        arrange = ZOrdering(spark=self.spark, table=self.table)
        return run_once(self.table.log, "zorder", token, lambda: zorder(self.table, fields, options, arrange))

    def maintain(
        self, *, policy: Mapping[str, Any] | None = None, dry_run: bool = False, delete: bool = True, token: str | None = None
    ) -> JobResult:
        """Compaction, Z-order and retention, as far as they are due by the table's properties; what `policy` says counts before these.

        Without `delete` no retention. A dry run only says what is due, and why.
        """
        runner: Runner = {
            "compact": lambda arguments: self.compact(**arguments),
            "zorder": lambda arguments: self.zorder(**arguments),
        }
        return maintain(self.table, policy or {}, runner, token, dry_run=dry_run, delete=delete)

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
        """Take a folder of Parquet or ORC files, a Delta or an Iceberg table over, into a table that is made if it is not there.

        The source's files are listed once, at the first try. After a failure the same call does only what is left; when all is done it
        changes nothing. `source_version` is a version of Delta or the id of an Iceberg snapshot; without one the newest is taken.
        """
        wanted = source_table(source, format, source_version)
        refuse_overlap(wanted, uri)
        layout = TableLayout(
            keys=keys,
            delta=delta,
            tie_break=tie_break,
            deletes=deletes,
            partition_by=partition_by,
            file_format=file_format,
            properties=properties or {},
        )
        plan: BootstrapPlan | None = None
        try:
            found = cls.for_path(spark, uri, options=options)
        except NotFoundError:
            use_this_python(spark)
            plan = plan_source(spark, wanted, schema, batch_mb << 20)
            found = cls._made(spark, uri, schema or StructType.fromJson(dict(plan.schema)), layout, options)
        made = found.table.snapshot_at().spec
        refuse_another_spec(found.table.uri, made, None if schema is None else arrow_of_spark(schema), layout)
        return Bootstrap(spark=spark, table=found.table, source=wanted, on_bad_rows=on_bad_rows).run(
            lambda: plan or plan_source(spark, wanted, schema, batch_mb << 20)
        )

    @classmethod
    def _made(cls, spark: SparkSession, uri: str, schema: StructType, layout: TableLayout, options: Mapping[str, str] | None) -> Self:
        """A new table, or the one that another job made this moment."""
        wanted = {name: getattr(layout, name) for name in TableLayout.__dataclass_fields__}
        try:
            return cls.create(spark, uri, schema, **wanted, options=options)
        except TableExistsError:
            return cls.for_path(spark, uri, options=options)


def _options(spark: SparkSession, uri: str, options: Mapping[str, str] | None) -> Mapping[str, str]:
    return storage_options(spark, uri) if options is None else options


def _check_condition(spark: SparkSession, schema: StructType, condition: str) -> None:
    try:
        marked = spark.createDataFrame([], schema).selectExpr("*", f"({condition}) AS marker")
        kind = marked.schema[-1].dataType.simpleString()
    except AnalysisException as error:
        raise InvalidInputError(
            f"the delete condition {condition!r} does not fit the columns {schema.names}: {first_words(error)}"
        ) from error
    plan: Any = None if is_connect(spark) else marked._jdf.queryExecution().analyzed()  # noqa: SLF001  # Connect has no such question
    if plan is not None and not plan.deterministic():
        raise InvalidInputError(f"the delete condition {condition!r} says something else each time that it is asked; a task may run twice")
    if kind != "boolean":
        raise InvalidInputError(f"the delete condition {condition!r} is a {kind}; write a condition, as \"op = 'D'\"")
