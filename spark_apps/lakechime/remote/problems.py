"""Errors over HTTP: a status, and JSON with the error's name and message.

The client raises the same error again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakechime.errors import (
    AccessError,
    ConflictError,
    ExpiredError,
    InvalidEventError,
    LakeChimeError,
    NotFoundError,
    SchemaError,
    UnavailableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error kind. `name` is the member `error` of the answer."""

    name: str
    status: int
    meaning: str
    raises: type[LakeChimeError]


INVALID = Problem(
    name="invalid",
    status=422,
    meaning="the request is not valid; the same request would fail again",
    raises=InvalidEventError,
)
MALFORMED = Problem(
    name="malformed", status=400, meaning="the body cannot be read", raises=InvalidEventError
)
UNAUTHENTICATED = Problem(
    name="unauthenticated",
    status=401,
    meaning="the request has no token, or one that is unknown or revoked",
    raises=AccessError,
)
FORBIDDEN = Problem(
    name="forbidden", status=403, meaning="the token's role does not allow this", raises=AccessError
)
NOT_FOUND = Problem(
    name="not_found", status=404, meaning="the name does not exist", raises=NotFoundError
)
METHOD = Problem(
    name="method_not_allowed",
    status=405,
    meaning="this path does not support the method",
    raises=InvalidEventError,
)
CONFLICT = Problem(
    name="conflict",
    status=409,
    meaning="another process changed the position or watermark: read it again",
    raises=ConflictError,
)
EXPIRED = Problem(
    name="expired",
    status=410,
    meaning="retention deleted the events that are asked for",
    raises=ExpiredError,
)
TOO_LARGE = Problem(
    name="too_large",
    status=413,
    meaning="the body is larger than this service accepts",
    raises=InvalidEventError,
)
BUG = Problem(
    name="bug",
    status=500,
    meaning="a bug in the service; its log has the traceback",
    raises=UnavailableError,
)
SCHEMA = Problem(
    name="schema",
    status=503,
    meaning="the service and its database have different revisions: upgrade the older one",
    raises=SchemaError,
)
UNAVAILABLE = Problem(
    name="unavailable",
    status=503,
    meaning="the database is away, full or locked: try again",
    raises=UnavailableError,
)

PROBLEMS = (
    INVALID,
    MALFORMED,
    UNAUTHENTICATED,
    FORBIDDEN,
    NOT_FOUND,
    METHOD,
    CONFLICT,
    EXPIRED,
    TOO_LARGE,
    BUG,
    SCHEMA,
    UNAVAILABLE,
)
# The answers for errors of the service's own store. It has none for an AccessError: if the database
# refuses the service, that is not the caller's fault.
_OF_STORE_ERRORS = (INVALID, NOT_FOUND, CONFLICT, EXPIRED, SCHEMA, UNAVAILABLE)


def problem_of(error: LakeChimeError) -> Problem:
    """Return the answer for an error of the service's own store."""
    for problem in _OF_STORE_ERRORS:
        if isinstance(error, problem.raises):
            return problem
    return UNAVAILABLE


def problem_of_status(status: int) -> Problem:
    """Return the answer for a status: an error of the framework has no other kind."""
    for problem in PROBLEMS:
        if problem.status == status:
            return problem
    return BUG if status >= BUG.status else MALFORMED


def problem_json(problem: Problem, message: str) -> dict[str, str]:
    return {"error": problem.name, "message": message}


def error_of(status: int, body: Any) -> LakeChimeError | None:
    """Return the error in an answer, or None if no LakeChime service wrote the answer."""
    if not isinstance(body, Mapping):
        return None
    name, message = body.get("error"), body.get("message")
    if not isinstance(name, str) or not isinstance(message, str):
        return None
    for problem in PROBLEMS:
        if problem.name == name:
            return problem.raises(message)
    # A newer service may know other names
    return problem_of_status(status).raises(message)
