"""Spark's errors as ours, so that a caller and a scheduler know what to do about them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
    PySparkException,
    PythonException,
)

import opal_lake.errors
from opal_lake.errors import InvalidInputError, OpalError, StorageError

_CALLER = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
)
_JAVA_CAUSE = re.compile(r"\A(?=An error occurred while calling)[\s\S]*^(?:Caused by)?: ?([\w.$]+: .*)$", re.MULTILINE)
# The last line of a worker's traceback, up to what the JVM adds
_RAISED_BY_A_TASK = re.compile(r"opal_lake\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\w+(?:\.\w+)+(?:Exception|Error)\b|\Z)", re.DOTALL)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise our error instead of Spark's."""
    try:
        yield
    except Exception as error:
        understood = as_opal_error(error)
        if understood is error:
            raise
        raise understood from error


def as_opal_error(error: Exception) -> Exception:
    """The error that a task raised, or what Spark's own failure means; a bug stays what it is."""
    if isinstance(error, OpalError):
        return error
    if (raised := _raised_by_a_task(str(error))) is not None:
        return raised
    if isinstance(error, _CALLER):
        return InvalidInputError(first_words(error))
    if isinstance(error, PythonException):
        return error
    if isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j.", "grpc.")):
        return StorageError(f"Spark failed: {first_words(error)}; look into Spark's log, then try again")
    return error


def _raised_by_a_task(text: str) -> OpalError | None:
    found = _RAISED_BY_A_TASK.search(text)
    kind = getattr(opal_lake.errors, found[1], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, OpalError):
        return None
    return kind(found[2].strip())


def first_words(error: Exception) -> str:
    """Without the plan and the stack that Spark adds; of an error that PySpark has no name for, its cause."""
    causes: list[str] = _JAVA_CAUSE.findall(str(error))
    text = re.split(r";?\n\s*['+:]|\n\s*at |\nDriver stacktrace|\nJVM stacktrace", causes[-1] if causes else str(error), maxsplit=1)[0]
    return " ".join(text.split())
