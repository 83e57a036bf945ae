"""The service of LakeChime as in production: uvicorn on a port of this machine."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, urlsplit

import requests
import schemathesis
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from pydantic import TypeAdapter, ValidationError
from schemathesis import GenerationMode, checks

from lakechime import LakeChime
from lakechime.service.access import BY_TOKEN
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore
from lakechime.store.sql_tokens import SqlTokens

PATIENCE_S = 30
# httpx reads all certificates for each request without a context
CERTIFICATES = ssl.create_default_context()
_idle_apps: list[FastAPI] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running service, the store behind it, and a token for each role."""

    url: str
    store: SqlStore
    tokens: dict[str, str]

    def open(self, role: str = "admin") -> LakeChime:
        return LakeChime.open(self.url, token=self.tokens[role])


def sqlite_url(folder: Path) -> str:
    """Return the address of a new database in a folder, without events.

    Its tables are copied: creating them takes as long as a test.
    """
    (folder / "lakechime.db").write_bytes(_tables_in_sqlite())
    return f"sqlite:///{folder}/lakechime.db"


@cache
def _tables_in_sqlite() -> bytes:
    with TemporaryDirectory() as folder:
        SqlStore.open(f"sqlite:///{folder}/lakechime.db").close()
        assert [path.name for path in Path(folder).iterdir()] == ["lakechime.db"], (
            "the file holds everything"
        )
        return (Path(folder) / "lakechime.db").read_bytes()


@contextmanager
def serving(database_url: str) -> Iterator[Served]:
    """Yield a service with tokens, over its own database."""
    store = SqlStore.open(database_url)
    tokens = {role: SqlTokens.of(store).create(role, role) for role in ("read", "write", "admin")}
    with app_over(store) as app, listening(app) as url:
        yield Served(url=url, store=store, tokens=tokens)


@contextmanager
def app_over(store: SqlStore) -> Iterator[FastAPI]:
    """Yield an app over a store, if possible one that has been used before.

    Creating all its routes takes longer than most tests.
    """
    app = _idle_apps.pop() if _idle_apps else create_app(lambda: store, BY_TOKEN)
    app.state.lakechime.open_store = lambda: store
    yield app
    assert app.state.lakechime._store is None, "the app is closed, and its store with it"
    _idle_apps.append(app)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Yield the address of an app while uvicorn serves it."""
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
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


def fuzz(url: str, token: str, examples: int, part: slice = slice(None)) -> list[str]:
    """Send requests that fit the service's document and such that do not; return the operations.

    The service also refuses what JSON Schema cannot describe, so that it need not accept every
    request that fits the schema.
    """
    headers = {"Authorization": f"Bearer {token}"}
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    asked = []
    for result in [*document.get_all_operations()][part]:
        operation = result.ok()
        valid = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        _ask_all(valid, headers, examples)
        if operation.body or operation.query:
            invalid = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
            _ask_all(invalid.filter(is_broken), headers, examples)
        asked.append(operation.label)
    return asked


def is_broken(case: schemathesis.Case) -> bool:
    """Return whether the sent request breaks the document: a case made to be refused may fit it.

    A URL cannot hold an empty list or null. A list of one value, or the key of an object, looks
    like the value alone. An unknown parameter may get the name that was left out. The token is sent
    in any case.
    """
    if case.operation.body:
        return True
    sent = case.as_transport_kwargs()
    request = requests.Request(sent["method"], sent["url"], params=sent.get("params"))
    url = request.prepare().url or ""
    query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    values = dict(query)
    fits = len(values) == len(query) and {*values} <= {each.name for each in case.operation.query}
    for each in case.operation.query:
        if each.name in values:
            value = _read_as(each.definition["schema"]["type"], values[each.name])
            fits = fits and each.is_valid(value)
        else:
            fits = fits and not each.is_required
    return not fits


def _read_as(kind: str, text: str) -> str | int:
    """Return a value as the service reads it: 5.0 is a number too."""
    with suppress(ValidationError):
        return TypeAdapter(int).validate_python(text) if kind == "integer" else text
    return text


def _ask_all(
    cases: SearchStrategy[schemathesis.Case], headers: dict[str, str], examples: int
) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(
            headers=headers,
            excluded_checks=[checks.positive_data_acceptance, checks.unsupported_method],
        )

    ask()
