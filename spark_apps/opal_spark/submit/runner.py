"""The app for spark-submit, and the run of a JobSpec that it shares with the command line."""

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from opal_lake.cli import OPAL
from opal_lake.cli.progress import ProgressLine
from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import FINDINGS, OK, RETRY, exit_code
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_spark.engine.failures import spark_errors
from opal_spark.engine.progress import SparkSteps
from opal_spark.engine.session import is_connect, open_session
from opal_spark.submit.jobs import run_job


def run_app(argv: Sequence[str] | None = None) -> int:
    """Run the app, and return its exit code.

    The result is the last line of standard output; errors and progress go to standard error. In
    client mode spark-submit may write other lines to standard output before the result.
    """
    steps = SparkSteps()
    try:
        spec = read_spec(argv)
        operation = spec.operation.title
        with (
            ProgressLine(operation, steps.where),
            session(f"opal {operation} {spec.table}") as spark,
        ):
            steps.watch(spark)
            _print_ui_lines(spark)
            result = perform(spark, spec)
    except Exception as error:  # noqa: BLE001  # the last stop: every error becomes an exit code
        return OPAL.report(error, traced=exit_code(error) == RETRY)
    print(result.to_json(), flush=True)  # noqa: T201  # its output
    return FINDINGS if result.counts.get("findings") else OK


def _print_ui_lines(spark: SparkSession) -> None:
    """Print the URLs of the Spark UI and its history, for links in schedulers."""
    if is_connect(spark):
        return
    pages = {"Spark UI": spark.sparkContext.uiWebUrl, "Spark history": _history_url(spark)}
    for name, url in pages.items():
        if url:
            print(f"{name}: {url}", file=sys.stderr, flush=True)  # noqa: T201  # its output


def _history_url(spark: SparkSession) -> str | None:
    """Return the URL of the application in the history server; None without a server."""
    server = spark.conf.get("spark.yarn.historyServer.address", "")
    if not server or spark.conf.get("spark.eventLog.enabled", "false") != "true":
        return None
    root = server if "://" in server else f"http://{server}"
    return f"{root.rstrip('/')}/history/{spark.sparkContext.applicationId}"


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Yield a session that ends with the block, unless it existed before."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    # This logger prints errors with their plans, and the app reports errors itself
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with spark_errors():
        spark = open_session(name)
    try:
        yield spark
    finally:
        with suppress(Exception):  # the job has committed: a failed stop changes nothing
            spark.stop()


def read_spec(argv: Sequence[str] | None) -> JobSpec[Any]:
    """Return the JobSpec of `--spec`, given as JSON or as @file."""
    parser = argparse.ArgumentParser(
        prog="app.py", description="Run an operation on an Opal table under spark-submit."
    )
    parser.add_argument(
        "--spec",
        required=True,
        metavar="JSON|@FILE",
        help="a JobSpec: operation, table, arguments, token",
    )
    text: str = parser.parse_args(argv).spec
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(
                f"--spec {text}: the file cannot be read ({error}); correct the path"
            ) from error
    spec: JobSpec[Any] = JobSpec.from_json(text)
    return spec


def perform(spark: SparkSession, spec: JobSpec[Any]) -> JobResult:
    """Run the spec's operation; raise Spark's errors as OpalErrors."""
    started_s = time.monotonic()
    with spark_errors():
        result = run_job(spark, spec)
    if result.repeated:
        return result
    return result.timed(time.monotonic() - started_s)
