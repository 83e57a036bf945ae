"""Spark for a command in a terminal: it starts with the command, prints nothing, and then stops."""

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
# A package that Spark's Ivy could not fetch
_UNRESOLVED = re.compile(r"unresolved dependency: ([^#\s]+)#([^;\s]+);(\S+): not found")


@contextmanager
def launched(name: str, conf: Mapping[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    """Yield a session that ends with the block.

    The output of the JVM and its workers goes to a log file, which is kept only if Spark fails.
    With `verbose` the output goes to standard error.
    """
    with _log_file(verbose) as log, ExitStack() as stack:
        with _submit_arguments({**_QUIET, **conf}), _output_into(log):
            spark = stack.enter_context(session(name))
        yield spark


@contextmanager
def own_stderr() -> Iterator[TextIO]:
    """Yield the current standard error, also while it is redirected for new processes."""
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
        missing = _UNRESOLVED.search(log.read_text(encoding="utf-8", errors="replace"))
        if missing is not None:
            package = ":".join(missing.groups())
            raise InvalidInputError(
                f"Spark could not fetch {package}; its log is {log}. Check the network, name "
                "another version with --conf spark.jars.packages=..., or name the package's files "
                "with --conf spark.jars=..."
            ) from error
        if exit_code(error) in (RETRY, BUG) and log.stat().st_size:
            error.add_note(f"Spark's log: {log}")
        else:
            log.unlink()
        raise
    log.unlink()


@contextmanager
def _submit_arguments(conf: Mapping[str, str]) -> Iterator[None]:
    """Set the arguments of a JVM that starts within the block, such as its memory.

    The user's own PYSPARK_SUBMIT_ARGS follow, so they override these settings.
    """
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    words: list[str] = []
    for name, value in conf.items():
        words += ["--conf", f"{name}={value}"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(words)} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


@contextmanager
def _output_into(log: Path | None) -> Iterator[None]:
    """Redirect the output of processes that start within the block to the log."""
    if log is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    # Redirect the file descriptors, because a JVM does not know Python's streams
    duplicates = {number: os.dup(number) for number in (1, 2)}
    with log.open("ab") as sink:
        for number in duplicates:
            os.dup2(sink.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, duplicate in duplicates.items():
            os.dup2(duplicate, number)
            os.close(duplicate)
