"""Spark for a terminal: starts on first use, stays quiet, stops at the end."""

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import BUG, RETRY, exit_code
from opal_spark.submit.runner import session

# A command needs no web page, and has a progress line of its own
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# As Spark's Ivy reports it, before the JVM gives up
_UNRESOLVED = re.compile(r"unresolved dependency: ([^#\s]+)#([^;\s]+);(\S+): not found")


@contextmanager
def launched(name: str, conf: Mapping[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    """A session that ends with the block. What the JVM and its workers say goes to a file, which is kept only when Spark fails;
    with `verbose` to standard error.
    """
    with _log_file(verbose) as log, ExitStack() as stack:
        with _submit_arguments({**_QUIET, **conf}), _said_into(log):
            spark = stack.enter_context(session(name))
        yield spark


@contextmanager
def own_stderr() -> Iterator[TextIO]:
    """The current standard error, also while it is redirected for new processes."""
    try:
        number = sys.stderr.fileno()
    except OSError:  # captured
        yield sys.stderr
        return
    with os.fdopen(os.dup(number), "w", encoding=sys.stderr.encoding) as stream:
        yield stream


@contextmanager
def _log_file(verbose: bool) -> Iterator[Path | None]:
    if verbose:
        yield None
        return
    handle, name = tempfile.mkstemp(prefix="opal-spark-", suffix=".log")
    os.close(handle)
    log = Path(name)
    try:
        yield log
    except Exception as error:
        if missing := _UNRESOLVED.search(log.read_text(encoding="utf-8", errors="replace")):
            raise InvalidInputError(
                f"Spark could not fetch {':'.join(missing.groups())}, see {log}: check the network, name another version "
                "by --conf spark.jars.packages=..., or its files by --conf spark.jars=..."
            ) from error
        if exit_code(error) in (RETRY, BUG) and log.stat().st_size:
            error.add_note(f"Spark's log: {log}")
        else:
            log.unlink()
        raise
    log.unlink()


@contextmanager
def _submit_arguments(conf: Mapping[str, str]) -> Iterator[None]:
    """The one way to say what a JVM must know when it starts, as its memory. A user's own PYSPARK_SUBMIT_ARGS come later and win."""
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    ours = shlex.join(
        [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    )
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{ours} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


@contextmanager
def _said_into(log: Path | None) -> Iterator[None]:
    """Processes that start within the block write all their output to the log."""
    if log is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with log.open("ab") as sink:
        for number in kept:
            os.dup2(sink.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, duplicate in kept.items():
            os.dup2(duplicate, number)
            os.close(duplicate)
