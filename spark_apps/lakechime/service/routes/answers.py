"""What routes have in common: the backend, and how errors are documented."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from lakechime.remote.problems import (
    CONFLICT,
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

__all__ = ["ALWAYS", "MISSING", "MOVED", "WITH_BODY", "AnyBackend", "problems", "router"]


def router(right: Callable[..., Any], tag: str) -> APIRouter:
    """Routes that all ask for one right."""
    return APIRouter(dependencies=[Depends(right)], tags=[tag], responses=problems(*ALWAYS))


def problems(*kinds: Problem) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI."""
    return {kind.status: {"model": ProblemAnswer, "description": kind.meaning} for kind in kinds}
