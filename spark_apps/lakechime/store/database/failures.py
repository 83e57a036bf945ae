"""The translation of a database's errors to those of this package, each with advice."""

from typing import Any

from sqlalchemy import exc

from lakechime.errors import AccessError, LakeChimeError, SchemaError, UnavailableError

# SQLSTATE codes of PostgreSQL, or their first characters
_AGAIN = {"40001", "40P01"}  # serialization, deadlock
_AWAY = ("08", "57P")
# Data, integrity, program limits, and errors that a trigger raises
_OF_DATA = ("22", "23", "54", "P0")
_STAYS = "unregistered changes stay in their producer's log"
_ADVICE = {
    "away": f"check that it runs and can be reached, then try again; {_STAYS}",
    "full": f"free some space, then try again; {_STAYS}",
    "too slow": (
        "ask for fewer tables or a shorter range at once, or find what else loads the server"
    ),
    "locked": "another process holds it; try again, or end that process",
    "crowded": "raise max_connections or connect fewer processes, then try again",
    "read-only": "connect to the primary, or make the file and its folder writable",
    "refused": "give this user the right, or connect as another user",
    "missing": "run `lakechime migrate`, or open it with migrate=True",
    "damaged": (
        "restore it from a backup; events in their producers' logs can be registered again"
    ),
    "failed": "read the database's log",
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
    """Return whether to try again.

    So it is if the failed attempt did nothing, or if doing it twice does no harm.
    """
    code = getattr(error.orig, "pgcode", None)
    if code is not None and code in _AGAIN:
        return True
    if code is None and _kind_of(error) == "locked":
        return True
    is_away = error.connection_invalidated or (code or "").startswith(_AWAY)
    return repeatable and is_away


def is_of_data(error: exc.DBAPIError) -> bool:
    """Return whether the database refuses these rows, but would accept others.

    For example, a value is too long for an index, or a constraint refuses it.
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
    """Return the error to raise for an error of the database with a shown URL."""
    if isinstance(error, exc.TimeoutError):
        return UnavailableError(
            f"every connection to {database} is in use; close unused clients, or try again"
        )
    kind = _kind_of(error)
    error_type = _KINDS.get(kind, UnavailableError)
    return error_type(f"the database {database} is {kind} ({first_line(error)}); {_ADVICE[kind]}")


def _kind_of(error: Any) -> str:
    """Return the kind of an error, a key of `_ADVICE`."""
    code = getattr(getattr(error, "orig", None), "pgcode", None)
    if code is not None:
        return _kind_of_code(code)
    text = str(getattr(error, "orig", error)).lower()
    # PostgreSQL has no codes for a failed connection
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


def _kind_of_code(code: str) -> str:
    for prefix, kind in _POSTGRES:
        if code.startswith(prefix):
            return kind
    return "failed"
