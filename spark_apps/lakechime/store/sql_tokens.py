"""Tokens in a database, as the command and the service use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sqlalchemy import Connection

from lakechime.access import Token, checked_role, checked_token_name
from lakechime.store.sql_store import SqlStore
from lakechime.store.tokens import create_token, find_token, mark_used, read_tokens, revoke_token

# The last use of a token is recorded at most once a minute, so that not every request writes
USE_NOTED_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTokens:
    """The tokens of a database, uncached: a revoked one is refused immediately."""

    store: SqlStore

    @classmethod
    def of(cls, store: SqlStore) -> Self:
        return cls(store=store)

    def create(self, name: str, role: str) -> str:
        checked_token_name(name)
        checked_role(role)
        return self.store.database.write(
            lambda connection: create_token(connection, name, role, self._now(connection))
        )

    def tokens(self) -> Sequence[Token]:
        return self.store.database.read(read_tokens)

    def revoke(self, name: str) -> None:
        self.store.database.write(
            lambda connection: revoke_token(connection, name, self._now(connection))
        )

    def is_empty(self) -> bool:
        """Return whether no token is valid, so that nobody has access."""
        return all(token.revoked is not None for token in self.tokens())

    def role_of(self, secret: str) -> str | None:
        """Return the role of a token, or None if it is unknown or revoked."""

        def work(connection: Connection) -> tuple[Token | None, int]:
            return find_token(connection, secret), self._now(connection)

        token, now = self.store.database.read(work)
        if token is None:
            return None
        if token.last_used is None or now - token.last_used >= USE_NOTED_EVERY_MS:
            self.store.database.write(
                lambda connection: mark_used(connection, token.name, now), repeatable=True
            )
        return token.role

    def _now(self, connection: Connection) -> int:
        return self.store.sequencer.now_ms(connection)
