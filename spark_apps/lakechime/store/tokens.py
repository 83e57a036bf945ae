"""Who may ask the service: tokens by name, kept as hashes. A token is shown once, when it is made."""

import hashlib
import hmac
import secrets
from typing import Any

from sqlalchemy import Connection, Row, select, update

from lakechime.access import Token
from lakechime.errors import InvalidEventError, NotFoundError
from lakechime.store.database.recordset import insert_into
from lakechime.store.schema import tokens

PREFIX = "lakechime_"  # people and scanners know one when it is where it should not be


def create_token(connection: Connection, name: str, role: str, now_ms: int) -> str:
    """The secret: nobody can read it again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    values = {"name": name, "sha256": _hash(secret), "role": role, "created": now_ms}
    if (
        connection.execute(
            insert_into(connection, tokens).values(**values).on_conflict_do_nothing()
        ).rowcount
        != 1
    ):
        raise InvalidEventError(
            f"there is a token {name} already, and names are not used twice; choose another name"
        )
    return secret


def find_token(connection: Connection, secret: str) -> Token | None:
    """None when it is unknown or revoked. The index compares digests, which do not tell how near a guess came."""
    digest = _hash(secret)
    row = connection.execute(
        select(tokens).where(tokens.c.sha256 == digest, tokens.c.revoked.is_(None))
    ).first()
    return _token(row) if row is not None and hmac.compare_digest(row.sha256, digest) else None


def mark_used(connection: Connection, name: str, now_ms: int) -> None:
    connection.execute(update(tokens).where(tokens.c.name == name).values(last_used=now_ms))


def revoke_token(connection: Connection, name: str, now_ms: int) -> None:
    """From the next request on."""
    if read_token(connection, name) is None:
        raise NotFoundError(f"there is no token {name}; see `lakechime token list`")
    connection.execute(
        update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked.is_(None))
        .values(revoked=now_ms)
    )


def read_token(connection: Connection, name: str) -> Token | None:
    row = connection.execute(select(tokens).where(tokens.c.name == name)).first()
    return None if row is None else _token(row)


def read_tokens(connection: Connection) -> list[Token]:
    return [
        _token(row)
        for row in connection.execute(select(tokens).order_by(tokens.c.created, tokens.c.name))
    ]


def _token(row: Row[Any]) -> Token:
    return Token(
        name=row.name,
        role=row.role,
        created=row.created,
        revoked=row.revoked,
        last_used=row.last_used,
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
