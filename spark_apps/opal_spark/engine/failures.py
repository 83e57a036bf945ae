"""Spark's errors as OpalErrors, so that callers and schedulers can react to them."""

import re
import sys
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
from pyspark.sql import Observation

import opal_lake.errors
from opal_lake.definition.conditions.condition import DIVIDES_BY_ZERO, GUARD, SOME_ROW
from opal_lake.definition.schema import RESERVED_PREFIX
from opal_lake.errors import InvalidInputError, OpalError, StorageError

# Errors that the caller's query or values cause
_CALLER_ERRORS = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
)
_JAVA_CAUSE = re.compile(
    r"\A(?=An error occurred while calling)[\s\S]*^(?:Caused by)?: ?([\w.$]+: .*)$", re.MULTILINE
)
_GONE = re.compile(
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+?)\.? +"
    r"File does not exist"
)
_CHECKSUM = re.compile(r"ChecksumException: Checksum error: (\S+) at ")
_OTHER_PYTHON = re.compile(
    r"No module named '(?:opal_lake|opal_spark|pyarrow|pyroaring|numpy)\b[^']*'"
    r"|PYTHON_VERSION_MISMATCH"
    r"|PACKAGE_NOT_INSTALLED\] PyArrow"
    r'|Cannot run program "[^"]*python[^"]*"'
)
# The beginning of Spark's plan or stack, which follows the words of a message
_PLAN_OR_STACK = re.compile(r";?\n\s*['+:]|\n\s*at |\nDriver stacktrace|\nJVM stacktrace")
# A column that belongs to another DataFrame, in classic Spark and in Connect
_OTHER_FRAME = re.compile(
    r"\[(?:MISSING_ATTRIBUTES\.\w+|CANNOT_RESOLVE_DATAFRAME_COLUMN)\][^\"]*\"([^\"]+)\""
)
_SUGGESTED = re.compile(r"( Did you mean one of the following\? \[)([^\]]*)\]\.")
_BAD_PATTERN = re.compile(r"PatternSyntaxException: ([^\n]*)")
# The message that `opal_spark.engine.conditions` raises for a row in which a condition divides by 0
_DIVIDED = re.compile(
    rf"\[USER_RAISED_EXCEPTION\] ([\s\S]*? {DIVIDES_BY_ZERO} in {SOME_ROW}; {re.escape(GUARD)})"
)
# The end of the message that `opal_spark.engine.stored_values` raises for a value
UNSTORABLE = "cannot hold it; write a value that fits"
_UNSTORED = re.compile(rf"\[USER_RAISED_EXCEPTION\] ([\s\S]*?{UNSTORABLE})")
# The end of the message that `opal_spark.read.overwrite` raises for a row outside of its region
OUTSIDE = "outside of the rows that it replaces; leave it out, or widen the condition"
_OUTSIDE = re.compile(rf"\[USER_RAISED_EXCEPTION\] ([\s\S]*?{OUTSIDE})")
# The end of the message that `opal_spark.read.replaced_rows` raises for a row that would stay
OUTLASTED = (
    "the source has only rows with a lower delta or tie-break than the row that they should "
    "replace, so that they would stay invisible; give them a delta that is not lower"
)
_OUTLASTED = re.compile(rf"\[USER_RAISED_EXCEPTION\] ([\s\S]*?{OUTLASTED})")
_OF_ROWS = (_DIVIDED, _UNSTORED, _OUTSIDE, _OUTLASTED)
_UNWRITABLE = re.compile(
    r"Mkdirs failed to create \S+|Parent path is not a directory\S*|Read-only file system"
    r"|(?:Permission denied|AccessControlException|AccessDeniedException)[^\n]{0,200}"
)
# The last line of a worker's traceback, up to what the JVM adds
_RAISED_BY_A_TASK = re.compile(
    r"opal_lake\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\n\w+(?:\.\w+)+(?:Exception|Error)\b|\Z)",
    re.DOTALL,
)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise an OpalError in place of Spark's error, if it is not a bug."""
    try:
        yield
    except Exception as error:
        understood = as_opal_error(error)
        if understood is error:
            raise
        raise understood from error


def as_opal_error(error: Exception) -> Exception:
    """Return the OpalError that a task raised, or that explains a failure of Spark.

    An error that nothing explains is returned unchanged: it is a bug.
    """
    if isinstance(error, OpalError):
        return error
    if (raised := _raised_by_a_task(str(error))) is not None:
        return raised
    if (problem := _file_problem(str(error))) is not None:
        return problem
    if (problem := python_problem(error)) is not None:
        return problem
    if (problem := _expression_problem(str(error))) is not None:
        return problem
    if "NullPointerException" in str(error) and "OrcFilters" in str(error):
        return InvalidInputError(
            "Spark cannot filter ORC files by an IN with a NULL in its list: leave the NULL out, "
            "or set spark.sql.orc.filterPushdown=false"
        )
    if isinstance(error, _CALLER_ERRORS):
        return InvalidInputError(short_message(error))
    if isinstance(error, PythonException):
        return error
    is_of_a_gateway = type(error).__module__.startswith(("py4j.", "grpc."))
    if isinstance(error, PySparkException) or is_of_a_gateway:
        return StorageError(
            f"Spark failed: {short_message(error)}; look into Spark's log, then try again"
        )
    return error


def _expression_problem(text: str) -> InvalidInputError | None:
    """Return the error for an expression that Spark cannot compute in some row."""
    if (problem := _raised_problem(text)) is not None:
        return problem
    if (pattern := _BAD_PATTERN.search(text)) is not None:
        return InvalidInputError(
            f"a regular expression of a filter is not valid in Java: {pattern[1]}; "
            "correct the expression"
        )
    if (other := _OTHER_FRAME.search(text)) is not None:
        name = other[1]
        return InvalidInputError(
            f"a Column of another DataFrame, such as df[{name!r}], is unknown here; write "
            f"F.col({name!r}), in a merge F.col('s.{name}') for the source, or F.col('t.{name}')"
        )
    return None


def _raised_problem(text: str) -> InvalidInputError | None:
    """Return the error that one of our expressions raised for a row."""
    for pattern in _OF_ROWS:
        raised = pattern.search(text)
        if raised is not None:
            return InvalidInputError(raised[1])
    return None


def _file_problem(text: str) -> OpalError | None:
    """Return the error for a file that was deleted or changed."""
    if (gone := _GONE.search(text)) is not None:
        return StorageError(
            f"{gone[1]} was deleted while Spark read it. If it is a file of an Opal table, "
            "retention removed the version: read the table again, and give it a longer retention "
            "window. `opal check` reports whether the table still needs the file"
        )
    if (changed := _CHECKSUM.search(text)) is not None:
        folder, _, name = changed[1].rpartition("/")
        return InvalidInputError(
            f"{changed[1]} does not match its checksum: the file was changed after Spark wrote it, "
            f"or is damaged. If the change was on purpose, delete {folder}/.{name}.crc, then try "
            "again"
        )
    return None


def python_problem(error: Exception) -> InvalidInputError | None:
    """Return the error for workers with an unsuitable Python, otherwise None.

    The error says what to do, which Spark's message or an import error does not.
    """
    match = _OTHER_PYTHON.search(str(error))
    if match is None:
        return None
    return InvalidInputError(
        f"Spark's Python workers cannot run this ({match[0]}): they run another Python than "
        f"{sys.executable}. Set PYSPARK_PYTHON to this Python, or on a cluster to a Python there "
        "that has opal-lake. Set it before the Spark session or the Connect server starts"
    )


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise InvalidInputError for a wrong Python of workers, or a refused row.

    Our own expressions refuse rows. Other errors are raised unchanged: they may be the caller's.
    """
    try:
        yield
    except Exception as error:
        problem = python_problem(error) or _raised_problem(str(error))
        if problem is not None:
            raise problem from error
        raise


def unwritable_error(error: Exception, folder: str) -> InvalidInputError | None:
    """Return the error for a folder that Spark may not write to, otherwise None."""
    match = _UNWRITABLE.search(str(error))
    if match is None:
        return None
    return InvalidInputError(
        f"{folder} cannot be written ({match[0]}): give this user the right to write there, "
        "or name another folder"
    )


def observed_count(observed: Observation, name: str) -> int:
    """Return a count that an observation made; 0 if Spark read no row."""
    try:
        counts = observed.get
        return int(counts.get(name, 0))
    except Exception as error:
        # If Spark learns during the job that the rows are empty, it makes no count, and `get` fails
        if "PythonSQLUtils.toPyRow" not in str(error):
            raise
        return 0


def _raised_by_a_task(text: str) -> OpalError | None:
    """Return the OpalError of a worker's traceback; None if there is none."""
    match = _RAISED_BY_A_TASK.search(text)
    if match is None:
        return None
    name, message = match[1], match[2]
    error_class = getattr(opal_lake.errors, name, None)
    if not isinstance(error_class, type) or not issubclass(error_class, OpalError):
        return None
    return error_class(message.strip())


def short_message(error: Exception) -> str:
    """Return the message of an error in one line, without Spark's plan and stack.

    If PySpark does not know the error, return the message of the innermost cause.
    """
    causes: list[str] = _JAVA_CAUSE.findall(str(error))
    text = causes[-1] if causes else str(error)
    message = _PLAN_OR_STACK.split(text, maxsplit=1)[0]
    return _SUGGESTED.sub(_own_suggestions, " ".join(message.split()))


def _own_suggestions(match: re.Match[str]) -> str:
    """Return Spark's suggestions of names without those of the format."""
    hidden = f"`{RESERVED_PREFIX}"
    names = [name for name in match[2].split(", ") if hidden not in name]
    return f"{match[1]}{', '.join(names)}]." if names else ""
