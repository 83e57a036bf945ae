"""The operations of a JobSpec, one function each: its keyword-only parameters are the arguments that a spec may give."""

import os
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake import layout as paths
from opal_lake.errors import InvalidInputError, NoRowsError, NotFoundError, TableExistsError
from opal_lake.job import ON_EMPTY, JobResult, JobSpec
from opal_lake.source import BATCH_MB, Files, Jdbc, source_from_json
from opal_lake.table_spec import TableLayout, refuse_another_spec
from opal_spark.arguments import checked_arguments
from opal_spark.columns import arrow_of_spark, spark_schema
from opal_spark.consume import Change
from opal_spark.consume import consume as call_consumer
from opal_spark.shown import json_rows
from opal_spark.sources import source_schema
from opal_spark.table import OpalTable

SHOWN_ROWS = 20
EXPORT_FORMATS = ("parquet", "csv", "json", "orc")


def create(
    spark: SparkSession,
    spec: JobSpec,
    *,
    keys: list[str],
    delta: str,
    schema: str | None = None,
    like: dict[str, Any] | None = None,
    tie_break: list[str] | None = None,
    deletes: str | None = None,
    partition_by: list[str] | None = None,
    file_format: str = "parquet",
    properties: dict[str, int | str] | None = None,
    if_absent: bool = False,
) -> JobResult:
    """A new table with the columns of an SQL schema, or with those of a file. `if_absent` lets an equal table stand."""
    layout = TableLayout(
        keys=keys,
        delta=delta,
        tie_break=tie_break or (),
        deletes=deletes,
        partition_by=partition_by or (),
        file_format=file_format,
        properties=properties or {},
    )
    if if_absent and (standing := _standing(spark, spec.table, schema, layout)) is not None:
        return standing
    columns = _schema(spark, schema, like)
    wanted = {name: getattr(layout, name) for name in TableLayout.__dataclass_fields__}
    try:
        table = OpalTable.create(spark, spec.table, columns, **wanted)
    except TableExistsError:
        if if_absent and (standing := _standing(spark, spec.table, schema, layout)) is not None:
            return standing  # another job made it meanwhile
        raise
    return JobResult(operation="create", table=table.table.uri, version=0, token=spec.token)


_create = create  # ingest has an argument of that name


def _schema(spark: SparkSession, schema: str | None, like: dict[str, Any] | None) -> StructType:
    if (schema is None) == (like is None):
        raise InvalidInputError("create needs the columns once: as schema='id BIGINT, at TIMESTAMP', or as like={'files': ...}")
    if like is not None:
        return source_schema(spark, source_from_json(like))
    return spark.createDataFrame([], schema).schema


def _standing(spark: SparkSession, uri: str, schema: str | None, layout: TableLayout) -> JobResult | None:
    """The result for a table that is there already, None when there is none. Without a schema its own columns are as good as any."""
    try:
        table = OpalTable.for_path(spark, uri).table
    except NotFoundError:
        return None
    columns = None if schema is None else arrow_of_spark(_schema(spark, schema, None))
    refuse_another_spec(uri, table.snapshot_at().spec, columns, layout)
    return JobResult(operation="create", table=table.uri, version=0, repeated=True)


def ingest(
    spark: SparkSession,
    spec: JobSpec,
    *,
    source: dict[str, Any],
    metadata: str = "batch",
    on_bad_rows: str = "fail",
    on_empty: str = "fail",
    create: dict[str, Any] | None = None,
    partition_key: str | None = None,
) -> JobResult:
    """Append the rows of files or of a database: `source` is `{"files": {...}}` or `{"jdbc": {...}}`.

    `create` has the arguments of a create, for a table that is not there yet; without a schema its columns are the source's. `on_empty`
    says whether a source without files or rows fails, or is accepted as no change. With metadata="inline" the rows are visible at once,
    else by the next metagen.
    """
    if on_empty not in ON_EMPTY:
        raise InvalidInputError(f"on_empty={on_empty!r} is unknown; use one of {', '.join(ON_EMPTY)}")
    rows: Files | Jdbc | DataFrame = source_from_json(source)
    if create is not None:
        columns = {} if "schema" in create else {"like": source}
        wanted = JobSpec(operation="create", table=spec.table, arguments={**columns, **create, "if_absent": True})
        _create(spark, wanted, **checked_arguments(_create, wanted))
    table = OpalTable.for_path(spark, spec.table)
    ingest_rows = partial(table.ingest, metadata=metadata, token=spec.token, partition_key=partition_key)
    try:
        return ingest_rows(rows, on_bad_rows=on_bad_rows, refuse_empty=on_empty == "fail")
    except NoRowsError:
        if on_empty == "fail":
            raise
        return ingest_rows(spark.createDataFrame([], spark_schema(table.table.snapshot_at().spec, physical=False)))


def metagen(spark: SparkSession, spec: JobSpec) -> JobResult:
    """Make all pending rows visible."""
    return OpalTable.for_path(spark, spec.table).metagen(token=spec.token)


def rebuild_key_store(spark: SparkSession, spec: JobSpec) -> JobResult:
    """Make the key store anew from the data files."""
    return OpalTable.for_path(spark, spec.table).rebuild_key_store(token=spec.token)


def compact(
    spark: SparkSession,
    spec: JobSpec,
    *,
    mode: str = "minor",
    look_back: str | int | None = None,
    target_mb: int | None = None,
    archive_after: str | int | None = None,
    archive_codec: str = "zstd:19",
    only_if_due: bool = False,
) -> JobResult:
    """Fewer, larger files; by mode="major" also without what no event time after the look-back shows."""
    return OpalTable.for_path(spark, spec.table).compact(
        mode=mode,
        look_back=look_back,
        target_mb=target_mb,
        archive_after=archive_after,
        archive_codec=archive_codec,
        only_if_due=only_if_due,
        token=spec.token,
    )


def set_properties(spark: SparkSession, spec: JobSpec, *, properties: dict[str, int | str | list[str] | None]) -> JobResult:
    """Change properties of the table; null gives one its default again."""
    return OpalTable.for_path(spark, spec.table).set_properties(properties, token=spec.token)


def zorder(
    spark: SparkSession,
    spec: JobSpec,
    *,
    columns: list[str],
    target_mb: int | None = None,
    whole: bool = False,
    only_if_due: bool = False,
) -> JobResult:
    """Rows close in all these columns into the same files."""
    table = OpalTable.for_path(spark, spec.table)
    return table.zorder(columns, target_mb=target_mb, whole=whole, only_if_due=only_if_due, token=spec.token)


def retain(spark: SparkSession, spec: JobSpec, *, window: str | None = None, grace: str | None = None, dry_run: bool = False) -> JobResult:
    """Let old versions expire, and delete what nothing needs any more."""
    return OpalTable.for_path(spark, spec.table).retain(window=window, grace=grace, dry_run=dry_run, token=spec.token)


def maintain(
    spark: SparkSession,
    spec: JobSpec,
    *,
    zorder: str | list[str] | None = None,
    window: str | None = None,
    look_back: str | int | None = None,
    target_mb: int | None = None,
    small_files: int | None = None,
    dead_share: int | float | None = None,
    unclustered_share: int | float | None = None,
    archive_after: str | int | None = None,
    archive_codec: str | None = None,
    delete: bool = True,
    dry_run: bool = False,
) -> JobResult:
    """Compaction, Z-order and retention, as far as they are due; what is given counts before the table's properties."""
    policy = {
        "zorder": zorder,
        "window": window,
        "look_back": look_back,
        "target_mb": target_mb,
        "small_files": small_files,
        "dead_share": dead_share,
        "unclustered_share": unclustered_share,
        "archive_after": archive_after,
        "archive_codec": archive_codec,
    }
    table = OpalTable.for_path(spark, spec.table)
    return table.maintain(policy=policy, dry_run=dry_run, delete=delete, token=spec.token)


def bootstrap(
    spark: SparkSession,
    spec: JobSpec,
    *,
    source: str,
    format: str,
    keys: list[str],
    delta: str,
    schema: str | None = None,
    tie_break: list[str] | None = None,
    deletes: str | None = None,
    partition_by: list[str] | None = None,
    file_format: str = "parquet",
    properties: dict[str, int | str] | None = None,
    source_version: int | None = None,
    batch_mb: int = BATCH_MB,
    on_bad_rows: str = "fail",
) -> JobResult:
    """Take a table of another kind over. Its own record, and no token, is what makes a repeat harmless."""
    result = OpalTable.bootstrap(
        spark,
        spec.table,
        source,
        format=format,
        keys=keys,
        delta=delta,
        schema=None if schema is None else _schema(spark, schema, None),
        tie_break=tie_break or (),
        deletes=deletes,
        partition_by=partition_by or (),
        file_format=file_format,
        properties=properties,
        source_version=source_version,
        batch_mb=batch_mb,
        on_bad_rows=on_bad_rows,
    )
    return replace(result, token=spec.token)


def consume(
    spark: SparkSession,
    spec: JobSpec,
    *,
    function: str,
    partition_key: str | None = None,
    after: int | None = None,
    version: int | None = None,
    arguments: dict[str, Any] | None = None,
) -> JobResult:
    """Call a function with what came under a partition key, or after a version."""
    if (partition_key is None) == (after is None):
        raise InvalidInputError("consume needs one of: partition_key='2026-11-01', or after=7, the last version that was seen")
    table = OpalTable.for_path(spark, spec.table)
    at = table.table.snapshot_at(version).version
    change = Change(spark=spark, table=table, version=at, partition_key=partition_key, after=after, arguments=arguments or {})
    return call_consumer(change, function, spec.token)


def read(
    spark: SparkSession,
    spec: JobSpec,
    *,
    columns: list[str] | None = None,
    where: str | None = None,
    version: int | None = None,
    timestamp: str | None = None,
    event_time: str | int | None = None,
    limit: int | None = None,
    to: str | None = None,
    format: str = "parquet",
    overwrite: bool = False,
    writer_options: dict[str, str] | None = None,
) -> JobResult:
    """Rows as they are, or were: shown in the result's examples, or exported."""
    table = OpalTable.for_path(spark, spec.table)
    snapshot = table.table.snapshot_at(version, timestamp)  # so that the result can say which version it was
    rows = table.read(version=snapshot.version, event_time=event_time, columns=columns, where=where)
    result = JobResult(operation="read", table=table.table.uri, version=snapshot.version, token=spec.token)
    if to is None:
        return _shown(rows, SHOWN_ROWS if limit is None else limit, result)
    _check_target(to, table.table.uri)
    if format not in EXPORT_FORMATS:
        raise InvalidInputError(f"format {format!r} is unknown; use one of {', '.join(EXPORT_FORMATS)}")
    rows = rows if limit is None else rows.limit(limit)
    observed = Observation("export")
    writer = rows.observe(observed, _count()).write.mode("overwrite" if overwrite else "error").format(format)
    writer.options(**{**_WRITER_OPTIONS.get(format, {}), **(writer_options or {})}).save(to)
    return replace(result, counts={"rows": int(observed.get["rows"])}, notes=(f"exported to {to} as {format}",))


def _check_target(to: str, uri: str) -> None:
    """An export replaces a folder: never one that holds this table, or another, or a part of one."""
    target, own = _plain(to), _plain(uri)
    if (target + "/").startswith(own + "/") or (own + "/").startswith(target + "/"):
        raise InvalidInputError(f"{to} would overwrite the table {uri} or a part of it; export to a folder of its own")
    if not to.startswith("s3") and any(os.path.isdir(os.path.join(_plain(to), *part)) for part in ((paths.META,), ("..", paths.META))):
        raise InvalidInputError(f"{to} belongs to an Opal table, which an export would damage; export to a folder of its own")


def _plain(uri: str) -> str:
    """For comparing places."""
    scheme, _, rest = uri.rpartition("://")
    return f"s3://{rest.rstrip('/')}" if scheme.startswith("s3") else os.path.realpath(rest if scheme == "file" else uri)


_WRITER_OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def _count() -> Column:
    return F.count(F.lit(1)).alias("rows")


def _shown(rows: DataFrame, limit: int, result: JobResult) -> JobResult:
    found = json_rows(rows.limit(limit + 1))
    notes = ("there are more rows; a higher limit shows them",) if len(found) > limit else ()
    return replace(result, counts={"rows": min(len(found), limit)}, notes=notes, examples=tuple(found[:limit]))
