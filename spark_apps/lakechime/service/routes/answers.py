"""The common part of all routes: the backend, and the documentation of errors."""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from lakechime.errors import InvalidEventError
from lakechime.remote.problems import (
    CONFLICT,
    EXPIRED,
    FORBIDDEN,
    INVALID,
    MALFORMED,
    NOT_FOUND,
    TOO_LARGE,
    UNAUTHENTICATED,
    UNAVAILABLE,
    Problem,
)
from lakechime.service.models import ProblemAnswer
from lakechime.service.work import Backend, backend_of

AnyBackend = Annotated[Backend, Depends(backend_of)]
ALWAYS = (UNAUTHENTICATED, FORBIDDEN, INVALID, UNAVAILABLE)
WITH_BODY = (MALFORMED, TOO_LARGE)
MOVED = (CONFLICT,)
MISSING = (NOT_FOUND,)
GONE = (EXPIRED,)
_SHOWN_CHARS = 100

__all__ = ["ALWAYS", "GONE", "MISSING", "MOVED", "WITH_BODY", "AnyBackend", "problems", "router"]


def router(right: Callable[..., Any], tag: str) -> APIRouter:
    """Return a router whose routes need one right and take each URL parameter once."""
    return APIRouter(
        dependencies=[Depends(right), Depends(_each_once)], tags=[tag], responses=problems(*ALWAYS)
    )


async def _each_once(request: Request) -> None:
    """Raise InvalidEventError for a URL parameter that is repeated."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name, count in Counter(names).items():
        if count > 1:
            shown = repr(name[:_SHOWN_CHARS])
            raise InvalidEventError(f"the URL has {shown} {count:,} times; write it once")


def problems(*kinds: Problem) -> dict[int | str, dict[str, Any]]:
    """Return error answers by status, as OpenAPI documents them."""
    return {kind.status: {"model": ProblemAnswer, "description": kind.meaning} for kind in kinds}
