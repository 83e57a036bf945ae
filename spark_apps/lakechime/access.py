"""Who may do what with a service: tokens and their roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lakechime.errors import InvalidEventError
from lakechime.event import check_name

READ, WRITE, ADMIN = ROLES = ("read", "write", "admin")  # each may what those before it may
MEANINGS = {
    READ: "query events, tables and watermarks",
    WRITE: "also register events and move watermarks",
    ADMIN: "also expire events, and create and revoke tokens",
}
MAX_TOKEN_NAME_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; its secret is not. Times are milliseconds since 1970."""

    name: str
    role: str
    created: int
    revoked: int | None = None
    last_used: int | None = None


class TokenKeeper(Protocol):
    """Creates, lists and revokes tokens, in a database or through a service."""

    def create(self, name: str, role: str) -> str:
        """The secret, which nobody can read again."""
        ...

    def tokens(self) -> Sequence[Token]: ...

    def revoke(self, name: str) -> None: ...


def checked_token_name(name: Any) -> str:
    if len(check_name("name", name)) > MAX_TOKEN_NAME_CHARS:
        raise InvalidEventError(
            f"a token's name has at most {MAX_TOKEN_NAME_CHARS} characters, and this one has {len(name)}; shorten it"
        )
    return str(name)


def checked_role(role: Any) -> str:
    if role not in ROLES:
        raise InvalidEventError(
            f"role={str(role)[:80]!r} is unknown; write one of {', '.join(ROLES)}"
        )
    return str(role)


def allows(role: str, wanted: str) -> bool:
    """Whether a role is enough."""
    return ROLES.index(role) >= ROLES.index(wanted)


def token_json(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in Token.__slots__}


def token_of(value: Mapping[str, Any]) -> Token:
    return Token(**{name: value[name] for name in Token.__slots__})
