"""Exit codes of commands and apps: a scheduler decides by them whether to retry.

In Airflow `OpalSparkOperator._verdict` decides by them, and `hooks/causes.py` by signals and log
lines. A lost race alone does not end a program: `commit_log` tries again first.
"""

from opal_lake.errors import (
    ClockError,
    CommitUnknownError,
    ConflictError,
    FormatError,
    FunctionError,
    InvalidInputError,
    NotFoundError,
    PreReleaseError,
    ReadOnlyError,
    StorageError,
)

OK = 0
FINDINGS = 1
INPUT = 2
RETRY = 3
DAMAGE = 4
BUG = 70  # EX_SOFTWARE of sysexits.h
STOPPED = 130  # a shell's code for a program that Ctrl-C ended
FINAL = (INPUT, DAMAGE, BUG)  # another try fails as well: a scheduler does not retry

MEANINGS = {
    OK: "done",
    FINDINGS: "check, lint or stream status found something",
    INPUT: "wrong input, or something that does not exist: the same command fails again",
    RETRY: "the store, Spark, another writer or a function of your own caused a failure: "
    "try again, with the same token",
    DAMAGE: "bytes of the table are damaged: opal check names them",
    BUG: "a bug in this program",
    STOPPED: "stopped by Ctrl-C: nothing is half done, run the same command again",
}

# The first matching class counts, so that a subclass with another code stands before its base.
_CODES_BY_ERROR: tuple[tuple[type[Exception], int], ...] = (
    (InvalidInputError, INPUT),
    (NotFoundError, INPUT),
    (ReadOnlyError, INPUT),
    (PreReleaseError, INPUT),
    (StorageError, RETRY),
    (ClockError, RETRY),
    (ConflictError, RETRY),
    (CommitUnknownError, RETRY),
    (FunctionError, RETRY),
    (FormatError, DAMAGE),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a program that an error ends."""
    for kind, code in _CODES_BY_ERROR:
        if isinstance(error, kind):
            return code
    return BUG
