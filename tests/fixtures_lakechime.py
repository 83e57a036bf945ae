"""The service of LakeChime as it really runs: uvicorn on a port of this machine."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from lakechime import LakeChime
from lakechime.service.access import BY_TOKEN
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore
from lakechime.store.sql_tokens import SqlTokens

PATIENCE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running service, the store behind it, and a token for each role."""

    url: str
    store: SqlStore
    tokens: dict[str, str]

    def open(self, role: str = "admin") -> LakeChime:
        return LakeChime.open(self.url, token=self.tokens[role])


@contextmanager
def serving(database_url: str) -> Iterator[Served]:
    """Behind tokens, over a database of its own."""
    store = SqlStore.open(database_url)
    tokens = {role: SqlTokens.of(store).create(role, role) for role in ("read", "write", "admin")}
    with listening(create_app(lambda: store, BY_TOKEN)) as url:
        yield Served(url=url, store=store, tokens=tokens)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The address of an app, while uvicorn serves it."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.01)
