"""The service in its own process: uvicorn, its address and its access control."""

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
    """The address to listen on, and its certificate."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self.certificate is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def run_server(
    database_url: str, listener: Listener, *, with_tokens: bool, say: Callable[[str], None]
) -> None:
    """Serve until the process is stopped.

    The database is opened first, and its tables are upgraded, so that errors show immediately.
    """
    store = SqlStore.open(database_url, migrate=True)
    app = service_app(store, listener, with_tokens=with_tokens)
    with _bound(listener) as bound:
        access = "requires a token" if with_tokens else "requires no token"
        say(
            f"LakeChime serves {store.database.shown} at {listener.url} and {access}; "
            "stop it with Ctrl-C"
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
    """Return the app, or raise InvalidEventError if everybody has access, or nobody."""
    if not with_tokens and not is_loopback(listener.host):
        raise InvalidEventError(
            f"--no-auth would let everybody who reaches {listener.host} read and write events; "
            "create a token (lakechime token create NAME --role write) and leave --no-auth out"
        )
    if with_tokens and SqlTokens.of(store).is_empty():
        hint = ""
        if is_loopback(listener.host):
            hint = ", or serve only this machine with --no-auth"
        raise InvalidEventError(
            f"{store.database.shown} has no valid token, so that nobody could use the service; "
            f"create one first: lakechime token create NAME --role admin{hint}"
        )
    access = BY_TOKEN if with_tokens else NO_ACCESS_CONTROL
    return create_app(lambda: store, access)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches all addresses of a host."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InvalidEventError(
            f"--host {host!r} is not an address of this machine ({error}); "
            "write 127.0.0.1, 0.0.0.0 or a name"
        ) from error
    if not addresses:
        return False
    # An IPv6 address may name a network interface after %
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def _bound(listener: Listener) -> socket.socket:
    """Return a socket bound to the address, or raise UnavailableError if it is in use."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listener.host, listener.port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise UnavailableError(
            f"cannot listen on {listener.host} port {listener.port} ({error}); "
            "choose another port with --port"
        ) from error
    return bound
