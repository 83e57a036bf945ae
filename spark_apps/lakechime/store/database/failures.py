"""Errors of a database as errors of ours, each with advice."""

from typing import Any

from sqlalchemy import exc

from lakechime.errors import AccessError, LakeChimeError, SchemaError, UnavailableError

# SQLSTATE codes of PostgreSQL, or their first characters
_AGAIN = {"40001", "40P01"}  # serialization, deadlock
_AWAY = ("08", "57P")
# Data, integrity, program limits, and errors that a trigger raises
_OF_DATA = ("22", "23", "54", "P0")
_STAYS = "what was not registered stays in its producer's log"
_ADVICE = {
    "away": f"see that it runs and can be reached, then try again; {_STAYS}",
    "full": f"free some space, then try again; {_STAYS}",
    "too slow": (
        "ask for less at once: fewer tables, or a shorter range; or see what else the server does"
    ),
    "locked": "another process holds it; try again, or end that process",
    "crowded": "raise max_connections or put fewer processes on it, then try again",
    "read-only": "connect to the primary, or make the file and its folder writable",
    "refused": "give this user the right, or connect as another user",
    "missing": "run `lakechime migrate`, or open it with migrate=True",
    "damaged": (
        "restore it from a backup; what its producers' logs still have can be registered again"
    ),
    "failed": "see the database's log",
}
_KINDS: dict[str, type[LakeChimeError]] = {
    "refused": AccessError,
    "missing": SchemaError,
    "damaged": LakeChimeError,
    "failed": LakeChimeError,
}
# SQLite has no codes: these are parts of its messages
_SQLITE = (
    ("locked", "locked"),
    ("busy", "locked"),
    ("is full", "full"),
    ("disk i/o error", "away"),
    ("readonly", "read-only"),
    ("unable to open", "away"),
    ("no such table", "missing"),
    ("no such column", "missing"),
    ("has no column", "missing"),
    ("malformed", "damaged"),
    ("not a database", "damaged"),
)
# The first match counts, so longer codes come before their prefixes
_POSTGRES = (
    ("08", "away"),
    ("57P", "away"),
    ("53300", "crowded"),
    ("53", "full"),
    ("55P03", "locked"),
    ("57014", "too slow"),
    ("40", "locked"),
    ("25006", "read-only"),
    ("28", "refused"),
    ("42501", "refused"),
    ("42P01", "missing"),
    ("42703", "missing"),
    ("XX", "damaged"),
)


def is_passing(error: exc.DBAPIError, *, repeatable: bool) -> bool:
    """Return whether to try again: nothing was done, or doing it twice does no harm."""
    code = getattr(error.orig, "pgcode", None)
    if code is not None and code in _AGAIN:
        return True
    if code is None and _kind_of(error) == "locked":
        return True
    is_away = error.connection_invalidated or (code or "").startswith(_AWAY)
    return repeatable and is_away


def is_of_data(error: exc.DBAPIError) -> bool:
    """Return whether the database refuses these rows, and would take others.

    A value may be too long for an index, or a constraint or a trigger refuses it.
    """
    code = getattr(error.orig, "pgcode", None)
    if code is not None:
        return str(code).startswith(_OF_DATA)
    return isinstance(error, exc.IntegrityError | exc.DataError)


def first_line(error: exc.SQLAlchemyError) -> str:
    """Return the first line of the database's message."""
    message = str(getattr(error, "orig", None) or error)
    return message.strip().split("\n")[0]


def translated(error: exc.SQLAlchemyError, database: str) -> LakeChimeError:
    if isinstance(error, exc.TimeoutError):
        return UnavailableError(
            f"every connection to {database} is in use; close clients that are done, or try again"
        )
    kind = _kind_of(error)
    error_type = _KINDS.get(kind, UnavailableError)
    return error_type(f"the database {database} is {kind} ({first_line(error)}); {_ADVICE[kind]}")


def _kind_of(error: Any) -> str:
    code = getattr(getattr(error, "orig", None), "pgcode", None)
    text = str(getattr(error, "orig", error)).lower()
    if code is not None:
        return next((kind for prefix, kind in _POSTGRES if code.startswith(prefix)), "failed")
    if (
        "password authentication failed" in text
        or "no pg_hba.conf entry" in text
        or ("does not exist" in text and "fatal" in text)
    ):
        return "refused"
    for part, kind in _SQLITE:
        if part in text:
            return kind
    if isinstance(error, exc.OperationalError | exc.InterfaceError):
        return "away"
    return "failed"
