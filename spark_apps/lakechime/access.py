"""Tokens of the service and their roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lakechime.errors import InvalidEventError
from lakechime.event import check_name

# Each role includes the rights of the roles before it
READ, WRITE, ADMIN = ROLES = ("read", "write", "admin")
MEANINGS = {
    READ: "query events, tables and watermarks",
    WRITE: "also register events and move watermarks",
    ADMIN: "also expire events, and create and revoke tokens",
}
MAX_TOKEN_NAME_CHARS = 128
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret. Times are milliseconds since 1970."""

    name: str
    role: str
    created: int
    revoked: int | None = None
    last_used: int | None = None


class TokenKeeper(Protocol):
    """A store of tokens, in a database or through a service."""

    def create(self, name: str, role: str) -> str:
        """Create a token and return its secret, which cannot be read again."""
        ...

    def tokens(self) -> Sequence[Token]: ...

    def revoke(self, name: str) -> None: ...


def checked_token_name(name: Any) -> str:
    """Return the name of a token, or raise InvalidEventError."""
    length = len(check_name("name", name))
    if length > MAX_TOKEN_NAME_CHARS:
        raise InvalidEventError(
            f"the name of a token has {length} characters, and may have "
            f"{MAX_TOKEN_NAME_CHARS}; shorten the name"
        )
    return str(name)


def checked_role(role: Any) -> str:
    """Return a role, or raise InvalidEventError."""
    if role not in ROLES:
        shown = str(role)[:_SHOWN_CHARS]
        raise InvalidEventError(f"role {shown!r} is unknown; write one of {', '.join(ROLES)}")
    return str(role)


def allows(role: str, wanted: str) -> bool:
    """Return whether a role includes the rights of the role `wanted`."""
    return ROLES.index(role) >= ROLES.index(wanted)


def token_json(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in Token.__slots__}


def token_of(value: Mapping[str, Any]) -> Token:
    return Token(**{name: value[name] for name in Token.__slots__})
