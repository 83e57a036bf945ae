"""What a job does: a JobSpec in, the operation on a table, a JobResult out.

Most operations run as they are, on their table or at its place. Here stand those that need Spark
itself, or whose result is not a JobResult: rows to show or to export, findings.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from opal_lake import layout as paths
from opal_lake.cli.shown_rows import shown_result
from opal_lake.errors import InvalidInputError
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.operations.read import ShowChanges, ShowRows
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, POSTIMAGE
from opal_lake.result import JobResult
from opal_spark.engine.columns import quoted
from opal_spark.engine.failures import observed_count, unwritable
from opal_spark.table import OpalTable, SparkPlace


def run_job(spark: SparkSession, spec: JobSpec[Any]) -> JobResult:
    """Run the operation of a spec."""
    steps = _STEPS.get(spec.operation.title)
    if steps is not None:
        return steps(spark, spec)
    place = SparkPlace(spark=spark, uri=spec.table)
    result: JobResult = spec.job.run(place.open() if spec.operation.needs_table else place)
    return result


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
        return shown_result(result, rows.limit(job.shown_rows + 1).toArrow(), job.shown_rows)
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
    """Refuse a folder that holds a table or a part of one: an export replaces it."""
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
            f"{to} belongs to an Opal table, which an export would damage; "
            "export to a folder of its own"
        )


def _plain(uri: str) -> str:
    """Return a URI in a form for comparisons."""
    scheme, _, rest = uri.rpartition("://")
    return (
        f"s3://{rest.rstrip('/')}"
        if scheme.startswith("s3")
        else os.path.realpath(rest if scheme == "file" else uri)
    )


_WRITER_OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def _count() -> Column:
    return F.count(F.lit(1)).alias("rows")


_STEPS: Mapping[str, Callable[[SparkSession, JobSpec[Any]], JobResult]] = {
    "check": check,
    "read": read,
    "changes": changes,
}
