"""Tokens of the service by name, stored as hashes.

A token is shown once, when it is created.
"""

import hashlib
import hmac
import secrets
from typing import Any

from sqlalchemy import Connection, Row, select, update

from lakechime.access import Token
from lakechime.errors import InvalidEventError, NotFoundError
from lakechime.store.database.recordset import insert_into
from lakechime.store.schema import tokens

# By this prefix, people and secret scanners recognise a leaked token
PREFIX = "lakechime_"
_SECRET_BYTES = 32


def create_token(connection: Connection, name: str, role: str, now_ms: int) -> str:
    """Create a token and return its secret, which cannot be read again."""
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    values = {"name": name, "sha256": _hash(secret), "role": role, "created": now_ms}
    created = insert_into(connection, tokens).values(**values).on_conflict_do_nothing()
    if connection.execute(created).rowcount != 1:
        raise InvalidEventError(
            f"a token {name} exists or existed, and a name is used only once; choose another name"
        )
    return secret


def find_token(connection: Connection, secret: str) -> Token | None:
    """Return the token of a secret, or None if it is unknown or revoked."""
    # The index compares digests, so the time of the lookup reveals nothing about the secret
    digest = _hash(secret)
    row = connection.execute(
        select(tokens).where(tokens.c.sha256 == digest, tokens.c.revoked.is_(None))
    ).first()
    if row is None or not hmac.compare_digest(row.sha256, digest):
        return None
    return _token(row)


def mark_used(connection: Connection, name: str, now_ms: int) -> None:
    connection.execute(update(tokens).where(tokens.c.name == name).values(last_used=now_ms))


def revoke_token(connection: Connection, name: str, now_ms: int) -> None:
    """Revoke a token. The service refuses it from the next request on."""
    if read_token(connection, name) is None:
        raise NotFoundError(f"unknown token {name}; `lakechime token list` shows the tokens")
    connection.execute(
        update(tokens)
        .where(tokens.c.name == name, tokens.c.revoked.is_(None))
        .values(revoked=now_ms)
    )


def read_token(connection: Connection, name: str) -> Token | None:
    row = connection.execute(select(tokens).where(tokens.c.name == name)).first()
    return None if row is None else _token(row)


def read_tokens(connection: Connection) -> list[Token]:
    chosen = select(tokens).order_by(tokens.c.created, tokens.c.name)
    return [_token(row) for row in connection.execute(chosen)]


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
