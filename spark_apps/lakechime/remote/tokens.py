"""Tokens of a service, by its own admin routes."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakechime.access import Token, checked_role, checked_token_name, token_of
from lakechime.remote.transport import Transport
from lakechime.remote.wire import V1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTokens:
    """The transport's own token has to be an admin's."""

    transport: Transport

    def create(self, name: str, role: str) -> str:
        body = {"name": checked_token_name(name), "role": checked_role(role)}
        return str(self.transport.once("POST", f"{V1}/tokens", body=body)["token"])

    def tokens(self) -> Sequence[Token]:
        return [token_of(token) for token in self.transport.get(f"{V1}/tokens")["tokens"]]

    def revoke(self, name: str) -> None:
        self.transport.once("DELETE", f"{V1}/token", name=checked_token_name(name))
