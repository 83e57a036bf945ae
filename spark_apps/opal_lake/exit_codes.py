"""Exit codes of the command and of the apps: they tell a scheduler whether trying again can help.

In Airflow `OpalSparkOperator._verdict` says what follows from one, and `hooks/causes.py` what a signal or a
log line means. A lost race alone ends no program: `commit_log` tries again first.
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
STOPPED = 130  # as a shell says of a program that Ctrl-C ended
FINAL = (INPUT, DAMAGE, BUG)  # the same again ends the same: a scheduler does not try again

MEANINGS = {
    OK: "done",
    FINDINGS: "check, lint or stream status found something",
    INPUT: "wrong input, or something that does not exist: the same command fails again",
    RETRY: "the store, Spark, another writer or a function of your own caused a failure: try again, with the same token",
    DAMAGE: "bytes of the table are damaged: opal check names them",
    BUG: "a bug in this program",
}

_OF_ERROR: tuple[tuple[type[Exception], int], ...] = (
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
    """What a program ends with that met this error."""
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), BUG)
