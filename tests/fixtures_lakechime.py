"""The service of LakeChime as it really runs: uvicorn on a port of this machine."""

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
CERTIFICATES = (
    ssl.create_default_context()
)  # httpx reads all of them for each request to which none are given
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
    """The address of a database without events in this folder, whose tables are there: to make them takes as long as a test."""
    (folder / "lakechime.db").write_bytes(_tables_in_sqlite())
    return f"sqlite:///{folder}/lakechime.db"


@cache
def _tables_in_sqlite() -> bytes:
    with TemporaryDirectory() as folder:
        SqlStore.open(f"sqlite:///{folder}/lakechime.db").close()
        assert [path.name for path in Path(folder).iterdir()] == ["lakechime.db"], (
            "all is in the file"
        )
        return (Path(folder) / "lakechime.db").read_bytes()


@contextmanager
def serving(database_url: str) -> Iterator[Served]:
    """Behind tokens, over a database of its own."""
    store = SqlStore.open(database_url)
    tokens = {role: SqlTokens.of(store).create(role, role) for role in ("read", "write", "admin")}
    with app_over(store) as app, listening(app) as url:
        yield Served(url=url, store=store, tokens=tokens)


@contextmanager
def app_over(store: SqlStore) -> Iterator[FastAPI]:
    """One that has been served before, if there is one: to make all its routes takes longer than most tests do."""
    app = _idle_apps.pop() if _idle_apps else create_app(lambda: store, BY_TOKEN)
    app.state.lakechime.open_store = lambda: store
    yield app
    assert app.state.lakechime._store is None, "the app is closed, and its store with it"
    _idle_apps.append(app)


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


def fuzz(url: str, token: str, examples: int, part: slice = slice(None)) -> list[str]:
    """Ask the operations of the service at this address whatever fits its document and what does not; returns them.

    What JSON Schema cannot say is refused too, so that not all that fits the schema is taken.
    """
    headers = {"Authorization": f"Bearer {token}"}
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    asked = []
    for result in [*document.get_all_operations()][part]:
        operation = result.ok()
        modes = (
            [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
            if operation.body or operation.query
            else [GenerationMode.POSITIVE]
        )
        for mode in modes:
            cases = operation.as_strategy(generation_mode=mode)
            _ask_all(
                cases.filter(is_broken) if mode is GenerationMode.NEGATIVE else cases,
                headers,
                examples,
            )
        asked.append(operation.label)
    return asked


def is_broken(case: schemathesis.Case) -> bool:
    """Whether what arrives breaks the document: a case made to be refused may arrive whole.

    An empty list, or null, is in no URL; a list of one value, or the key of an object, looks as the value alone; a stray parameter gets the
    name that was left out; and the token is sent anyhow.
    """
    if case.operation.body:
        return True
    sent = case.as_transport_kwargs()
    url = (
        requests.Request(sent["method"], sent["url"], params=sent.get("params")).prepare().url or ""
    )
    query = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    values = dict(query)
    fits = len(values) == len(query) and {*values} <= {each.name for each in case.operation.query}
    for each in case.operation.query:
        if each.name in values:
            fits = fits and each.is_valid(
                _read_as(each.definition["schema"]["type"], values[each.name])
            )
        else:
            fits = fits and not each.is_required
    return not fits


def _read_as(kind: str, text: str) -> str | int:
    """As the service reads it: 5.0 is a number, too."""
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
