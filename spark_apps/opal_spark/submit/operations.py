"""What the apps do, one function an operation: a JobSpec with its declaration (`opal_lake.job.operations`) in, a JobResult out."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake import layout as paths
from opal_lake.cli.shown_rows import json_rows
from opal_lake.errors import InvalidInputError, NoRowsError, NotFoundError, TableExistsError
from opal_lake.inspect.check import CheckOptions
from opal_lake.job.job import JobResult, JobSpec
from opal_lake.job.operations.declared import given_fields
from opal_lake.job.operations.folder import Mutate
from opal_lake.job.operations.rows import (
    Changes,
    Check,
    Consume,
    Discard,
    MetaGen,
    Read,
    RebuildKeyStore,
    Shown,
)
from opal_lake.job.operations.table import (
    AddColumns,
    Bootstrap,
    Create,
    Ingest,
    Restore,
    SetProperties,
)
from opal_lake.job.operations.upkeep import Compact, Maintain, Retain, UpkeepPolicy, ZOrder
from opal_lake.job.source import Files, source_from_json
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, POSTIMAGE, FeedOptions
from opal_lake.spec.table_spec import TableLayout, refuse_another_spec
from opal_spark.engine.columns import arrow_of_spark, quoted, spark_schema
from opal_spark.engine.failures import observed_count, unwritable
from opal_spark.inspect.check import check as check_table
from opal_spark.mutate import mutate as mutate_folder
from opal_spark.read.changes import changes as changed_rows
from opal_spark.sources import source_schema
from opal_spark.submit.consume import Change
from opal_spark.submit.consume import consume as call_consumer
from opal_spark.table import OpalTable

SHOWN_ROWS = 20
NO_ROW = "false"  # the delete condition of tables whose deletes come in files of their own


def create(spark: SparkSession, spec: JobSpec[Create]) -> JobResult:
    """With the columns of an SQL schema, or with those of a file."""
    job, layout = spec.operation, given_fields(TableLayout, vars(spec.operation))
    if (
        job.if_absent
        and (standing := _standing(spark, spec.table, job.schema, TableLayout(**layout)))
        is not None
    ):
        return standing
    columns = _schema(spark, job.schema, job.like, job.delta)
    try:
        table = OpalTable.create(spark, spec.table, columns, **layout)
    except TableExistsError:
        if (
            job.if_absent
            and (standing := _standing(spark, spec.table, job.schema, TableLayout(**layout)))
            is not None
        ):
            return standing  # another job made it meanwhile
        raise
    return JobResult(operation="create", table=table.table.uri, version=0, token=spec.token)


def _schema(
    spark: SparkSession,
    schema: str | None,
    like: Mapping[str, Any] | None,
    delta: str | None = None,
) -> StructType:
    if schema is None and like is None:
        raise InvalidInputError(
            "create is given no columns; give schema='id BIGINT, at TIMESTAMP', or like={'files': ...}"
        )
    if schema is not None and like is not None:
        raise InvalidInputError(
            "create is given its columns twice, as schema= and as like=; leave out one of them"
        )
    if like is not None:
        return source_schema(spark, source_from_json(like), delta)
    return spark.createDataFrame([], schema).schema


def _standing(
    spark: SparkSession, uri: str, schema: str | None, layout: TableLayout
) -> JobResult | None:
    """The result for a table that is there already, None when there is none. Without a schema its own columns are as good as any."""
    try:
        table = OpalTable.for_path(spark, uri).table
    except NotFoundError:
        return None
    columns = None if schema is None else arrow_of_spark(_schema(spark, schema, None))
    refuse_another_spec(uri, table.snapshot_at().spec, columns, layout)
    return JobResult(operation="create", table=table.uri, version=0, repeated=True)


def ingest(spark: SparkSession, spec: JobSpec[Ingest]) -> JobResult:
    """From the source that the job names, into a table that is made if the job may make it."""
    job = spec.operation
    source = source_from_json(job.source)  # before a table is made
    if job.create is not None:
        columns: dict[str, Any] = {} if job.create.schema is not None else {"like": job.source}
        made = dict(vars(job.create))
        if isinstance(source, Files) and source.deletes is not None:
            made["deletes"] = made["deletes"] or NO_ROW
        operation = Create(**made, **columns, if_absent=True)
        create(spark, JobSpec(operation=operation, table=spec.table))
    table = OpalTable.for_path(spark, spec.table)
    ingest_rows = partial(
        table.ingest,
        metadata=job.metadata,
        token=spec.token,
        partition_key=job.partition_key,
        business_snapshot=job.business_snapshot,
        business_snapshot_column=job.business_snapshot_column,
        on_new_columns=job.on_new_columns,
        replaces=job.replaces,
    )
    refuse_empty = job.on_empty == "fail"
    try:
        return ingest_rows(
            source,
            on_bad_rows=job.on_bad_rows,
            reject_threshold=job.reject_threshold,
            refuse_empty=refuse_empty,
        )
    except NoRowsError:
        if refuse_empty:
            raise
        return ingest_rows(
            spark.createDataFrame([], spark_schema(table.table.snapshot_at().spec, physical=False))
        )


def metagen(spark: SparkSession, spec: JobSpec[MetaGen]) -> JobResult:
    """Make pending rows visible."""
    return OpalTable.for_path(spark, spec.table).metagen(**vars(spec.operation), token=spec.token)


def discard(spark: SparkSession, spec: JobSpec[Discard]) -> JobResult:
    """Withdraw pending rows. It needs no tasks."""
    return OpalTable.for_path(spark, spec.table).discard(
        **vars(spec.operation), job_token=spec.token
    )


def rebuild_key_store(spark: SparkSession, spec: JobSpec[RebuildKeyStore]) -> JobResult:
    """Make the key store anew from the data files."""
    return OpalTable.for_path(spark, spec.table).rebuild_key_store(token=spec.token)


def check(spark: SparkSession, spec: JobSpec[Check]) -> JobResult:
    """With findings the app's exit code is theirs."""
    table = OpalTable.for_path(spark, spec.table).table
    checked = check_table(
        spark,
        table,
        CheckOptions(
            sample=spec.operation.sample, deep=not spec.operation.quick, all=spec.operation.all
        ),
    )
    looked = checked.looked_at
    counts = {"findings": len(checked.findings)}
    if looked is not None:
        counts |= {"versions": looked.versions, "files": looked.files, "rows": looked.rows}
    return JobResult(
        operation="check",
        table=table.uri,
        token=spec.token,
        counts=counts,
        notes=checked.notes,
        examples=tuple(
            {"invariant": finding.invariant, "path": finding.path, "message": finding.message}
            for finding in checked.findings
        ),
    )


def compact(spark: SparkSession, spec: JobSpec[Compact]) -> JobResult:
    """Fewer, larger files."""
    return OpalTable.for_path(spark, spec.table).compact(**vars(spec.operation), token=spec.token)


def set_properties(spark: SparkSession, spec: JobSpec[SetProperties]) -> JobResult:
    """Change properties of the table."""
    return OpalTable.for_path(spark, spec.table).set_properties(
        spec.operation.properties, token=spec.token
    )


def add_columns(spark: SparkSession, spec: JobSpec[AddColumns]) -> JobResult:
    """Give the table more columns."""
    return OpalTable.for_path(spark, spec.table).add_columns(
        spec.operation.columns, token=spec.token
    )


def restore(spark: SparkSession, spec: JobSpec[Restore]) -> JobResult:
    """A new version that shows what an older one showed."""
    return OpalTable.for_path(spark, spec.table).restore(**vars(spec.operation), token=spec.token)


def zorder(spark: SparkSession, spec: JobSpec[ZOrder]) -> JobResult:
    """Rows close in all these columns into the same files."""
    return OpalTable.for_path(spark, spec.table).zorder(**vars(spec.operation), token=spec.token)


def retain(spark: SparkSession, spec: JobSpec[Retain]) -> JobResult:
    """Let old versions expire, and delete what nothing needs any more."""
    return OpalTable.for_path(spark, spec.table).retain(**vars(spec.operation), token=spec.token)


def maintain(spark: SparkSession, spec: JobSpec[Maintain]) -> JobResult:
    """What is due, by what is given and the table's properties."""
    job, policy = spec.operation, UpkeepPolicy.among(vars(spec.operation))
    return OpalTable.for_path(spark, spec.table).maintain(
        policy=policy, dry_run=job.dry_run, delete=job.delete, token=spec.token
    )


def bootstrap(spark: SparkSession, spec: JobSpec[Bootstrap]) -> JobResult:
    """Take a table of another kind over. Its own record, and no token, is what makes a repeat harmless."""
    given = {
        **vars(spec.operation),
        "schema": spec.operation.schema and _schema(spark, spec.operation.schema, None),
    }
    return replace(OpalTable.bootstrap(spark, spec.table, **given), token=spec.token)


def mutate(spark: SparkSession, spec: JobSpec[Mutate]) -> JobResult:
    """Merge files into a folder of files. The spec's table is the folder."""
    return mutate_folder(spark, spec.table, spec.operation, spec.token)


def consume(spark: SparkSession, spec: JobSpec[Consume]) -> JobResult:
    """Call a function with what came under a partition key, or after a version."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    version = table.table.snapshot_at(job.version).version
    change = Change(
        spark=spark,
        table=table,
        version=version,
        partition_key=job.partition_key,
        after=job.after,
        rows_are=job.rows,
        arguments=job.arguments,
    )
    return call_consumer(change, job.function, spec.token)


def read(spark: SparkSession, spec: JobSpec[Read]) -> JobResult:
    """Rows as they are, or were: shown in the result's examples, or exported."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    snapshot = table.table.snapshot_at(
        job.version, job.timestamp, job.business_snapshot
    )  # so that the result can say which version it was
    rows = table.read(
        snapshot.version,
        None,
        job.event_time,
        job.columns,
        job.where,
        partition_key=job.partition_key,
        net=job.net,
    )
    return _shown_or_exported(
        rows,
        job,
        JobResult(
            operation="read", table=table.table.uri, version=snapshot.version, token=spec.token
        ),
    )


def changes(spark: SparkSession, spec: JobSpec[Changes]) -> JobResult:
    """What versions changed: shown in the result's examples, or exported."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table).table
    versions = version_range(table.log, job.start, job.end)
    feed = FeedOptions(
        mode=job.mode, compute_updates=job.compute_updates, columns=job.columns, axis=job.axis
    )
    result = JobResult(
        operation="changes", table=table.uri, version=versions.last, token=spec.token
    )
    rows = changed_rows(spark, table, versions, feed, job.where)
    if job.to is None:
        keys = [
            quoted(field.name) for field in versions.head.spec.keys if field.name in rows.columns
        ]
        rows = rows.orderBy(
            COMMIT_VERSION, *keys, F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE)
        )  # what was there before what is
    return _shown_or_exported(rows, job, result)


def _shown_or_exported(rows: DataFrame, job: Shown, result: JobResult) -> JobResult:
    if job.to is None:
        return _shown(rows, SHOWN_ROWS if job.limit is None else job.limit, result)
    _check_target(job.to, result.table)
    rows = rows if job.limit is None else rows.limit(job.limit)
    observed = Observation("export")
    writer = (
        rows.observe(observed, _count())
        .write.mode("overwrite" if job.overwrite else "error")
        .format(job.format)
    )
    writer.options(**{**_WRITER_OPTIONS.get(job.format, {}), **(job.writer_options or {})})
    try:
        writer.save(job.to)
    except Exception as error:
        if (problem := unwritable(error, job.to)) is not None:
            raise problem from error
        raise
    return replace(
        result,
        counts={"rows": observed_count(observed, "rows")},
        notes=(f"exported to {job.to} as {job.format}",),
    )


def _check_target(to: str, uri: str) -> None:
    """An export replaces a folder: never one that holds this table, or another, or a part of one."""
    target, own = _plain(to), _plain(uri)
    if (target + "/").startswith(own + "/") or (own + "/").startswith(target + "/"):
        raise InvalidInputError(
            f"{to} would overwrite the table {uri} or a part of it; export to a folder of its own"
        )
    if not to.startswith("s3") and any(
        os.path.isdir(os.path.join(_plain(to), *part))
        for part in ((paths.META,), ("..", paths.META))
    ):
        raise InvalidInputError(
            f"{to} belongs to an Opal table, which an export would damage; export to a folder of its own"
        )


def _plain(uri: str) -> str:
    """For comparing places."""
    scheme, _, rest = uri.rpartition("://")
    return (
        f"s3://{rest.rstrip('/')}"
        if scheme.startswith("s3")
        else os.path.realpath(rest if scheme == "file" else uri)
    )


_WRITER_OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def _count() -> Column:
    return F.count(F.lit(1)).alias("rows")


def _shown(rows: DataFrame, limit: int, result: JobResult) -> JobResult:
    shown = json_rows(rows.limit(limit + 1).toArrow())
    notes = ("there are more rows; a higher limit shows them",) if len(shown) > limit else ()
    return replace(
        result, counts={"rows": min(len(shown), limit)}, notes=notes, examples=tuple(shown[:limit])
    )
