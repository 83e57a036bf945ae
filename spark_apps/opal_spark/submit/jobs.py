"""The steps of a job: a JobSpec in, the operation on a table, a JobResult out.

Most operations run as they are, on their table or at its path. This module has those that need
Spark itself, or whose result is not a JobResult: rows to show or to export, findings.
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
    location = SparkPlace(spark=spark, uri=spec.table)
    target: Any = location.open() if spec.operation.needs_table else location
    result: JobResult = spec.job.run(target)
    return result


def check(spark: SparkSession, spec: JobSpec[Check]) -> JobResult:
    """Check the table. With findings the app has an exit code for them."""
    table = OpalTable.for_path(spark, spec.table)
    findings = spec.operation.run(table)
    looked_at = findings.looked_at
    counts = {"findings": len(findings)}
    if looked_at is not None:
        counts |= {
            "versions": looked_at.versions,
            "files": looked_at.files,
            "rows": looked_at.rows,
        }
    examples = [
        {"invariant": finding.invariant, "path": finding.path, "message": finding.message}
        for finding in findings
    ]
    return JobResult(
        operation="check",
        table=table.uri,
        token=spec.token,
        counts=counts,
        notes=findings.notes,
        examples=tuple(examples),
    )


def read(spark: SparkSession, spec: JobSpec[ShowRows]) -> JobResult:
    """Show rows as they are, or were, in the result's examples, or export them."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    # Fixed now, so that the result can name the version
    version = table.snapshot_at(job.version, job.timestamp, job.business_snapshot).version
    rows = job.at(version).run(table)
    result = JobResult(operation="read", table=table.uri, version=version, token=spec.token)
    return _shown_or_exported(rows, job, result)


def changes(spark: SparkSession, spec: JobSpec[ShowChanges]) -> JobResult:
    """Show the changes of versions in the result's examples, or export them."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    versions = version_range(table.log, job.start, job.end)
    result = JobResult(
        operation="changes", table=table.uri, version=versions.last, token=spec.token
    )
    rows = job.of_versions(table, versions)
    if job.to is None:
        names = [field.name for field in versions.head.spec.keys]
        keys = [quoted(name) for name in names if name in rows.columns]
        # The row before a change comes before the one after it
        rows = rows.orderBy(COMMIT_VERSION, *keys, F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE))
    return _shown_or_exported(rows, job, result)


def _shown_or_exported(
    rows: DataFrame, job: ShowRows | ShowChanges, result: JobResult
) -> JobResult:
    if job.to is None:
        # One more than is shown, to know whether there are others
        shown = rows.limit(job.shown_rows + 1).toArrow()
        return shown_result(result, shown, job.shown_rows)
    _check_target(job.to, result.table)
    if job.limit is not None:
        rows = rows.limit(job.limit)
    observed = Observation("export")
    mode = "overwrite" if job.overwrite else "error"
    writer = rows.observe(observed, _count()).write.mode(mode).format(job.format)
    writer.options(**{**_WRITER_OPTIONS.get(job.format, {}), **(job.writer_options or {})})
    try:
        writer.save(job.to)
    except Exception as error:
        problem = unwritable(error, job.to)
        if problem is not None:
            raise problem from error
        raise
    return replace(
        result,
        counts={"rows": observed_count(observed, "rows")},
        notes=(f"exported to {job.to} as {job.format}",),
    )


def _check_target(to: str, uri: str) -> None:
    """Raise InvalidInputError for a folder of a table: an export replaces it."""
    target, own = _plain(to) + "/", _plain(uri) + "/"
    if target.startswith(own) or own.startswith(target):
        raise InvalidInputError(
            f"{to} would overwrite the table {uri} or a part of it; export to a folder of its own"
        )
    if to.startswith("s3"):
        return
    # The folder of another table, or a folder directly in one
    for folder in (target, os.path.join(target, "..")):
        if os.path.isdir(os.path.join(folder, paths.META)):
            raise InvalidInputError(
                f"{to} belongs to an Opal table, which an export would damage; "
                "export to a folder of its own"
            )


def _plain(uri: str) -> str:
    """Return a URI in a form for comparisons."""
    scheme, _, rest = uri.rpartition("://")
    if scheme.startswith("s3"):
        return f"s3://{rest.rstrip('/')}"
    return os.path.realpath(rest if scheme == "file" else uri)


_WRITER_OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def _count() -> Column:
    return F.count(F.lit(1)).alias("rows")


_STEPS: Mapping[str, Callable[[SparkSession, JobSpec[Any]], JobResult]] = {
    "check": check,
    "read": read,
    "changes": changes,
}
