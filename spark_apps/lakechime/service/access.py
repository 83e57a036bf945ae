"""Access control: each route depends on one of the three rights of an `Access`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from lakechime.access import ADMIN, MEANINGS, READ, WRITE, allows
from lakechime.remote.problems import FORBIDDEN, UNAUTHENTICATED
from lakechime.service.work import backend_of
from lakechime.store.sql_tokens import SqlTokens

_bearer = HTTPBearer(auto_error=False, description="A token that `lakechime token create` printed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A FastAPI dependency for each right, which raises if the caller lacks it.

    `probe` is the dependency of health checks.
    """

    read: Callable[..., Any]
    write: Callable[..., Any]
    admin: Callable[..., Any]
    probe: Callable[..., Any]


async def everybody() -> None:
    """Let everybody pass."""


NO_ACCESS_CONTROL = Access(read=everybody, write=everybody, admin=everybody, probe=everybody)


def _requires_role(wanted: str) -> Callable[..., Awaitable[None]]:
    async def requires_role(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> None:
        if given is None or not given.credentials:
            raise _unauthenticated("no token was sent")
        secret = given.credentials
        backend = backend_of(request)
        role = await backend.run(lambda store: SqlTokens.of(store).role_of(secret))
        if not role:
            raise _unauthenticated("the token is unknown or revoked")
        if not allows(role, wanted):
            message = (
                f"this request needs the role {wanted} ({MEANINGS[wanted]}), and the token has the "
                f"role {role}; use a token with the role {wanted}"
            )
            raise HTTPException(FORBIDDEN.status, message)

    return requires_role


def _unauthenticated(reason: str) -> HTTPException:
    message = f"{reason}; send a token of `lakechime token create` as a bearer token"
    return HTTPException(UNAUTHENTICATED.status, message, headers={"WWW-Authenticate": "Bearer"})


BY_TOKEN = Access(
    read=_requires_role(READ),
    write=_requires_role(WRITE),
    admin=_requires_role(ADMIN),
    probe=everybody,
)
