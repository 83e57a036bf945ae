"""The run of a JobSpec's operation on Spark, and its JobResult.

Most operations run by themselves, on their table or at its path. This module has the operations
that return something other than a JobResult: findings, and rows to show or to export.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from opal_lake import layout as paths
from opal_lake.cli.render import Style
from opal_lake.cli.shown_rows import rows_lines, shown_result
from opal_lake.data.shown_values import json_rows
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.look import Check
from opal_lake.operations.read import ShowChanges, ShowRows
from opal_lake.operations.sql import Sql
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import CHANGE_TYPE, COMMIT_VERSION, INSERT, POSTIMAGE
from opal_lake.result import JobResult
from opal_lake.scripts import script_result, steps_of, stored_results
from opal_lake.sql.script import ScriptStep
from opal_spark.engine.columns import columns_named
from opal_spark.engine.failures import observed_count, unwritable_error
from opal_spark.spark_sql.catalog import catalog
from opal_spark.spark_sql.script import run_script
from opal_spark.table import OpalTable, SparkPlace


def run_job(spark: SparkSession, spec: JobSpec[Any]) -> JobResult:
    """Run the operation of a spec, and return its result."""
    run = _RUNS.get(spec.operation.title)
    if run is not None:
        return run(spark, spec)
    location = SparkPlace(spark=spark, uri=spec.table)
    target: Any = location.open() if spec.operation.needs_table else location
    result: JobResult = spec.job.run(target)
    return result


def check(spark: SparkSession, spec: JobSpec[Check]) -> JobResult:
    """Check the table, and return its findings as the examples of a result."""
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
    """Export the rows of a version, or return the first ones in the result."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    # The version is fixed now, so that the result can name it
    version = table.snapshot_at(job.version, job.timestamp, job.business_snapshot).version
    rows = job.at(version).run(table)
    result = JobResult(operation="read", table=table.uri, version=version, token=spec.token)
    return _shown_or_exported(rows, job, result)


def changes(spark: SparkSession, spec: JobSpec[ShowChanges]) -> JobResult:
    """Export the changes of versions, or return the first ones in the result."""
    job, table = spec.operation, OpalTable.for_path(spark, spec.table)
    versions = version_range(table.log, job.start, job.end)
    result = JobResult(
        operation="changes", table=table.uri, version=versions.last, token=spec.token
    )
    rows = job.of_versions(table, versions)
    if job.to is None:
        names = [field.name for field in versions.head.spec.keys]
        keys = columns_named(name for name in names if name in rows.columns)
        # False sorts before true: the old row of an update comes before the new one
        is_new_row = F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE)
        rows = rows.orderBy(COMMIT_VERSION, *keys, is_new_row)
    return _shown_or_exported(rows, job, result)


def sql(spark: SparkSession, spec: JobSpec[Sql]) -> JobResult:
    """Run the statements of a script, and log the first rows of each result."""
    job = spec.operation
    on_tables = steps_of(job)
    for name, root in job.catalogs.items():
        catalog(spark, name, root)
    for step in run_script(spark, job.script, job.args, spec.token, _print_start):
        _print_rows(step.rows, job.limit)
    results: list[JobResult | None] = [None] * len(on_tables)
    if spec.token is not None:
        results = stored_results(on_tables, spec.token, partial(OpalTable.for_path, spark))
    return script_result(on_tables, results, uri=spec.table, token=spec.token)


def _print_start(step: ScriptStep) -> None:
    text = f"statement {step.number} of {step.total}, line {step.line}: {step.first_line}"
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # the log of the job


def _print_rows(rows: DataFrame, limit: int) -> None:
    """Print the first rows of a result as `opal sql` does."""
    limited = rows.limit(limit + 1) if limit else rows
    shown = json_rows(limited.toArrow())
    has_more = bool(limit) and len(shown) > limit
    if has_more:
        shown = shown[:limit]
    lines = list(rows_lines(shown, Style.of(sys.stderr), None))
    if rows.columns:
        lines.append(count_text(len(shown), "row") + (_MORE_ROWS if has_more else ""))
    for line in lines:
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the log of the job


def _shown_or_exported(
    rows: DataFrame, job: ShowRows | ShowChanges, result: JobResult
) -> JobResult:
    if job.to is None:
        # One row more than is shown, to know whether there are more
        first_rows = rows.limit(job.shown_rows + 1).toArrow()
        return shown_result(result, first_rows, job.shown_rows)
    _check_target(job.to, result.table)
    if job.limit is not None:
        rows = rows.limit(job.limit)
    observed = Observation("export")
    mode = "overwrite" if job.overwrite else "error"
    options = {**_WRITER_OPTIONS.get(job.format, {}), **(job.writer_options or {})}
    counted_rows = rows.observe(observed, _count())
    writer = counted_rows.write.mode(mode).format(job.format).options(**options)
    try:
        writer.save(job.to)
    except Exception as error:
        problem = unwritable_error(error, job.to)
        if problem is not None:
            raise problem from error
        raise
    return replace(
        result,
        counts={"rows": observed_count(observed, "rows")},
        notes=(f"exported to {job.to} as {job.format}",),
    )


def _check_target(to: str, uri: str) -> None:
    """Raise InvalidInputError for a table's folder: an export may replace it."""
    target, table = _plain(to) + "/", _plain(uri) + "/"
    if target.startswith(table) or table.startswith(target):
        raise InvalidInputError(
            f"{to} would overwrite the table {uri} or a part of it; export to a folder of its own"
        )
    if to.startswith("s3"):
        return
    # The folder of another table, or a folder directly in such a folder
    for folder in (target, os.path.join(target, "..")):
        if os.path.isdir(os.path.join(folder, paths.META)):
            raise InvalidInputError(
                f"{to} belongs to an Opal table, which an export would damage; "
                "export to a folder of its own"
            )


def _plain(uri: str) -> str:
    """Return a URI in a form in which two URIs of one folder are equal."""
    scheme, _, path = uri.rpartition("://")
    if scheme.startswith("s3"):
        return f"s3://{path.rstrip('/')}"
    return os.path.realpath(path if scheme == "file" else uri)


_WRITER_OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def _count() -> Column:
    return F.count(F.lit(1)).alias("rows")


_RUNS: Mapping[str, Callable[[SparkSession, JobSpec[Any]], JobResult]] = {
    "check": check,
    "read": read,
    "changes": changes,
    "sql": sql,
}
_MORE_ROWS = "; there are more rows, a higher limit shows them"
