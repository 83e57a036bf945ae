"""Every error as a status and JSON that says what went wrong and what to do."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

from lakechime.errors import LakeChimeError
from lakechime.remote.problems import (
    BUG,
    INVALID,
    MALFORMED,
    METHOD,
    NOT_FOUND,
    UNAVAILABLE,
    Problem,
    problem_json,
    problem_of,
    problem_of_status,
)
from lakechime.service.work import json_response

log = logging.getLogger(__name__)

_PLACES = ("body", "query", "path", "header")
_SHOWN_MISTAKES = 3
_RETRY_AFTER_SECONDS = "1"
_NOT_FOR_CALLERS = "the service cannot reach its database, or cannot use it; try again. The log of the service says what is wrong"


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(LakeChimeError, _ours)
    app.add_exception_handler(RequestValidationError, _unfit)
    for kind in (
        HTTPException,
        MALFORMED.status,
        NOT_FOUND.status,
        METHOD.status,
    ):  # what the router raises is known by its status
        app.add_exception_handler(kind, _of_the_framework)
    app.add_exception_handler(Exception, _bug)


def answered(problem: Problem, message: str) -> Response:
    response = json_response(problem_json(problem, _said(message)), problem.status)
    if problem is UNAVAILABLE:
        response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
    return response


def _said(message: str) -> str:
    """Return a message that quotes what was sent: an unpaired surrogate cannot be sent back as it is."""
    return message.encode("utf-8", "backslashreplace").decode()


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, LakeChimeError)
    problem = problem_of(error)
    if problem.status < BUG.status:
        return answered(problem, str(error))
    log.warning("%s: %s", problem.name, error)
    return answered(problem, _NOT_FOR_CALLERS)


async def _unfit(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    said = [_sentence(mistake) for mistake in mistakes[:_SHOWN_MISTAKES]]
    more = len(mistakes) - len(said)
    return answered(INVALID, "; ".join(said) + (f"; and {more:,} more" if more > 0 else ""))


def _sentence(mistake: Any) -> str:
    """Where it is, and what is wrong there."""
    cause = mistake.get("ctx", {}).get("error")
    if mistake["type"] == "json_invalid":
        return f"the body is no JSON ({cause})"
    path = _path(mistake["loc"])
    said = str(cause) if isinstance(cause, ValueError) else mistake["msg"]
    return f"{path}: {said}" if path else said


def _path(location: Sequence[Any]) -> str:
    parts = location[1:] if location and location[0] in _PLACES else location
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".") or str(location[0])


async def _of_the_framework(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", BUG.status)
    problem, message = problem_of_status(status), str(getattr(error, "detail", error))
    if problem is NOT_FOUND:
        message = f"there is nothing at {request.url.path[:200]}; the paths are in openapi.json"
    elif problem is METHOD:
        message = f"{request.url.path[:200]} takes no {request.method[:20]}; the methods are in openapi.json"
    response = json_response(problem_json(problem, _said(message)), status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def _bug(_: Request, error: Exception) -> Response:
    """Starlette raises it again after this, so that the server's log has the traceback."""
    return answered(BUG, f"a bug in the service ({type(error).__name__}); its log says more")
