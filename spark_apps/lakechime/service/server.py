"""The service in a process of its own: uvicorn, and who may come in."""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from lakechime.errors import InvalidEventError, UnavailableError
from lakechime.service.access import BY_TOKEN, NO_ACCESS_CONTROL
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore
from lakechime.store.sql_tokens import SqlTokens

STOP_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where to listen, and with which certificate."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"


def run_server(
    database_url: str, listener: Listener, *, with_tokens: bool, say: Callable[[str], None]
) -> None:
    """Until it is stopped. The database is opened first, and its tables upgraded: what is wrong with it is said at once."""
    store = SqlStore.open(database_url, migrate=True)
    app = service_app(store, listener, with_tokens=with_tokens)
    with _bound(listener) as bound:
        who = "asks for a token" if with_tokens else "asks nobody for a token"
        say(
            f"LakeChime serves {store.database.shown} at {listener.url} and {who}; stop it with Ctrl-C"
        )
        config = uvicorn.Config(
            app,
            ssl_certfile=listener.certificate,
            ssl_keyfile=listener.key,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        uvicorn.Server(config).run(sockets=[bound])


def service_app(store: SqlStore, listener: Listener, *, with_tokens: bool) -> FastAPI:
    """InvalidEventError where everybody could come in, or nobody."""
    if not with_tokens and not is_loopback(listener.host):
        raise InvalidEventError(
            f"--no-auth would let everybody who reaches {listener.host} read and write events; "
            "create a token (lakechime token create NAME --role write) and leave --no-auth out"
        )
    if with_tokens and SqlTokens.of(store).is_empty():
        hint = ", or serve this machine alone with --no-auth" if is_loopback(listener.host) else ""
        raise InvalidEventError(
            f"there is no token in {store.database.shown}, so that nobody could use the service; create one first: "
            f"lakechime token create NAME --role admin{hint}"
        )
    return create_app(lambda: store, BY_TOKEN if with_tokens else NO_ACCESS_CONTROL)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name counts by all of its addresses."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InvalidEventError(
            f"--host {host!r} is no address of this machine ({error}); write 127.0.0.1, 0.0.0.0 or a name"
        ) from error
    return bool(found) and all(
        ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found
    )


def _bound(listener: Listener) -> socket.socket:
    """Bound here, so that an address in use is one clear line."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listener.host, listener.port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise UnavailableError(
            f"cannot listen on {listener.host} port {listener.port} ({error}); choose another with --port"
        ) from error
    return bound
