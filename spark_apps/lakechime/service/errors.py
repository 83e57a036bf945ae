"""Errors as a status and JSON, with a message that names the next step."""

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

_REQUEST_PARTS = ("body", "query", "path", "header")
_SHOWN_MISTAKES = 3
_SHOWN_PATH_CHARS = 200
_SHOWN_METHOD_CHARS = 20
_RETRY_AFTER_SECONDS = "1"
_NOT_FOR_CALLERS = (
    "the service cannot reach its database, or cannot use it; try again. "
    "The log of the service has the reason"
)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(LakeChimeError, _answer_own_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(HTTPException, _answer_framework_error)
    # The router's own errors have no class, only a status
    for problem in (MALFORMED, NOT_FOUND, METHOD):
        app.add_exception_handler(problem.status, _answer_framework_error)
    app.add_exception_handler(Exception, _answer_bug)


def answered(problem: Problem, message: str) -> Response:
    response = json_response(problem_json(problem, _encodable(message)), problem.status)
    if problem is UNAVAILABLE:
        response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
    return response


def _encodable(message: str) -> str:
    """Return a message with its unpaired surrogates escaped, for UTF-8."""
    return message.encode("utf-8", "backslashreplace").decode()


async def _answer_own_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LakeChimeError)
    problem = problem_of(error)
    if problem.status < BUG.status:
        return answered(problem, str(error))
    log.warning("%s: %s", problem.name, error)
    return answered(problem, _NOT_FOR_CALLERS)


async def _answer_invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    text = "; ".join(_sentence(mistake) for mistake in mistakes[:_SHOWN_MISTAKES])
    hidden = len(mistakes) - _SHOWN_MISTAKES
    if hidden > 0:
        text += f"; and {hidden:,} more"
    return answered(INVALID, text)


def _sentence(mistake: Any) -> str:
    """Return the text of a mistake that pydantic found: its path and its reason."""
    cause = mistake.get("ctx", {}).get("error")
    if mistake["type"] == "json_invalid":
        return f"the body is not JSON ({cause})"
    reason = mistake["msg"]
    if isinstance(cause, ValueError):
        reason = str(cause)
    path = _path(mistake["loc"])
    return f"{path}: {reason}" if path else reason


def _path(location: Sequence[Any]) -> str:
    """Return a location, such as (body, events, 0, tags), as `events[0].tags`."""
    parts = location
    if location and location[0] in _REQUEST_PARTS:
        parts = location[1:]
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}"
    return path.removeprefix(".") or str(location[0])


async def _answer_framework_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", BUG.status)
    problem = problem_of_status(status)
    message = str(getattr(error, "detail", error))
    path = request.url.path[:_SHOWN_PATH_CHARS]
    if problem is NOT_FOUND:
        message = f"{path} does not exist; the paths are in openapi.json"
    elif problem is METHOD:
        method = request.method[:_SHOWN_METHOD_CHARS]
        message = f"{path} does not support {method}; the methods are in openapi.json"
    response = json_response(problem_json(problem, _encodable(message)), status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def _answer_bug(_: Request, error: Exception) -> Response:
    # Starlette raises the error again afterwards, so that the server's log has the traceback
    return answered(
        BUG, f"a bug in the service ({type(error).__name__}); its log has the traceback"
    )
