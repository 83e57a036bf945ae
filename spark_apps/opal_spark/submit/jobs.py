"""What a job does: a JobSpec in, the operation on a table, a JobResult out.

Most operations run on their table as they are. Here stand those that have no table yet, or whose
result is not a JobResult: rows to show or to export, findings.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake import layout as paths
from opal_lake.arguments.declared import given_fields
from opal_lake.cli.shown_rows import json_rows
from opal_lake.definition.table_spec import TableLayout, refuse_another_spec
from opal_lake.errors import InvalidInputError, NotFoundError, TableExistsError
from opal_lake.operations.create import Bootstrap, Create, NewTable
from opal_lake.operations.ingest import IngestSource
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.operations.mutate import Mutate
from opal_lake.operations.read import ShowChanges, ShowRows
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, POSTIMAGE
from opal_lake.result import JobResult
from opal_lake.source import Files, source_from_json
from opal_spark.engine.columns import arrow_of_spark, quoted
from opal_spark.engine.failures import observed_count, unwritable
from opal_spark.mutate import mutate as mutate_folder
from opal_spark.sources import source_schema
from opal_spark.table import OpalTable

SHOWN_ROWS = 20
NO_ROW = "false"  # the delete condition of tables whose deletes come in files of their own


def run_job(spark: SparkSession, spec: JobSpec[Any]) -> JobResult:
    """Run the operation of a spec."""
    steps = _STEPS.get(spec.operation.title)
    if steps is not None:
        return steps(spark, spec)
    result: JobResult = spec.job.run(OpalTable.for_path(spark, spec.table))
    return result


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
    return JobResult(operation="create", table=table.uri, version=0, token=spec.token)


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
        table = OpalTable.for_path(spark, uri)
    except NotFoundError:
        return None
    columns = None if schema is None else arrow_of_spark(_schema(spark, schema, None))
    refuse_another_spec(uri, table.snapshot_at().spec, columns, layout)
    return JobResult(operation="create", table=table.uri, version=0, repeated=True)


def ingest(spark: SparkSession, spec: JobSpec[IngestSource]) -> JobResult:
    """Ingest from the source that the job names, into a table that is made if the job may make it."""
    job = spec.job
    source = source_from_json(job.source)  # before a table is made
    if job.create is not None:
        like = None if job.create.schema is not None else job.source
        made = NewTable.among(vars(job.create))
        if isinstance(source, Files) and source.deletes is not None:
            made.setdefault("deletes", NO_ROW)
        operation = Create(**made, like=like, if_absent=True)
        create(spark, JobSpec(operation=operation, table=spec.table))
    return job.with_source(source).run(OpalTable.for_path(spark, spec.table))


def check(spark: SparkSession, spec: JobSpec[Check]) -> JobResult:
    """Check the table. With findings the app's exit code is theirs."""
    table = OpalTable.for_path(spark, spec.table)
    findings = spec.operation.run(table)
    looked = findings.looked_at
    counts = {"findings": len(findings)}
    if looked is not None:
        counts |= {"versions": looked.versions, "files": looked.files, "rows": looked.rows}
    return JobResult(
        operation="check",
        table=table.uri,
        token=spec.token,
        counts=counts,
        notes=findings.notes,
        examples=tuple(
            {"invariant": finding.invariant, "path": finding.path, "message": finding.message}
            for finding in findings
        ),
    )


def bootstrap(spark: SparkSession, spec: JobSpec[Bootstrap]) -> JobResult:
    """Take a table of another kind over. Its own record, and no token, makes a repeat harmless."""
    given = dict(vars(spec.operation))
    del given["token"]
    given["schema"] = spec.operation.schema and _schema(spark, spec.operation.schema, None)
    return replace(OpalTable.bootstrap(spark, spec.table, **given), token=spec.token)


def mutate(spark: SparkSession, spec: JobSpec[Mutate]) -> JobResult:
    """Merge files into a folder of files. The spec's table is the folder."""
    return mutate_folder(spark, spec.table, spec.operation, spec.token)


def read(spark: SparkSession, spec: JobSpec[ShowRows]) -> JobResult:
    """Show rows as they are, or were, in the result's examples, or export them."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    # Fixed now, so that the result can say which version it was
    version = table.snapshot_at(job.version, job.timestamp, job.business_snapshot).version
    rows = job.at(version).run(table)
    result = JobResult(operation="read", table=table.uri, version=version, token=spec.token)
    return _shown_or_exported(rows, job, result)


def changes(spark: SparkSession, spec: JobSpec[ShowChanges]) -> JobResult:
    """Show what versions changed in the result's examples, or export it."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    versions = version_range(table.log, job.start, job.end)
    result = JobResult(
        operation="changes", table=table.uri, version=versions.last, token=spec.token
    )
    rows = job.of_versions(table, versions)
    if job.to is None:
        keys = [
            quoted(field.name) for field in versions.head.spec.keys if field.name in rows.columns
        ]
        # The row before a change comes before the one after it
        rows = rows.orderBy(COMMIT_VERSION, *keys, F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE))
    return _shown_or_exported(rows, job, result)


def _shown_or_exported(
    rows: DataFrame, job: ShowRows | ShowChanges, result: JobResult
) -> JobResult:
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


_STEPS: Mapping[str, Callable[[SparkSession, JobSpec[Any]], JobResult]] = {
    "create": create,
    "ingest": ingest,
    "check": check,
    "bootstrap": bootstrap,
    "mutate": mutate,
    "read": read,
    "changes": changes,
}
