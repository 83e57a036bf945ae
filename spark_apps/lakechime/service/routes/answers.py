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

__all__ = ["ALWAYS", "GONE", "MISSING", "MOVED", "WITH_BODY", "AnyBackend", "problems", "router"]


def router(right: Callable[..., Any], tag: str) -> APIRouter:
    """Return a router whose routes need one right and take each URL parameter once."""
    return APIRouter(
        dependencies=[Depends(right), Depends(_each_once)], tags=[tag], responses=problems(*ALWAYS)
    )


async def _each_once(request: Request) -> None:
    # FastAPI itself would silently take the last one
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in counts.items():
        if times > 1:
            raise InvalidEventError(f"query: {name[:100]!r} is given {times:,} times; give it once")


def problems(*kinds: Problem) -> dict[int | str, dict[str, Any]]:
    """Return the answers of errors, as OpenAPI documents them."""
    return {kind.status: {"model": ProblemAnswer, "description": kind.meaning} for kind in kinds}
