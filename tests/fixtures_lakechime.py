"""The service of LakeChime as it really runs: uvicorn on a port of this machine."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import schemathesis
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode, checks

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


def fuzz(url: str, token: str, examples: int) -> list[str]:
    """Ask every operation of the service at this address whatever fits its document and what does not; returns the operations.

    What JSON Schema cannot say is refused too, so that not all that fits the schema is taken.
    """
    headers = {"Authorization": f"Bearer {token}"}
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    asked = []
    for result in document.get_all_operations():
        operation = result.ok()
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if operation.body or operation.query else [GenerationMode.POSITIVE]
        for mode in modes:
            cases = operation.as_strategy(generation_mode=mode)
            _ask_all(cases.filter(_is_broken) if mode is GenerationMode.NEGATIVE else cases, headers, examples)
        asked.append(operation.label)
    return asked


def _is_sent_whole(case: schemathesis.Case) -> bool:
    """A parameter that has an empty list, or null, is in no URL: what arrives then is well-formed, and rightly taken."""
    given = (value if isinstance(value, list) else [value] for value in (case.query or {}).values())
    return all(any(value is not None and value != {} for value in values) for values in given)


def _is_broken(case: schemathesis.Case) -> bool:
    """A case made to be refused may be whole: a stray parameter gets the name that was left out, or it lacks the token, sent anyhow."""
    query, known = case.query or {}, case.operation.query
    fits = {*query} <= {each.name for each in known} and all(
        each.is_valid(query[each.name]) if each.name in query else not each.is_required for each in known
    )
    return not fits or bool(case.operation.body)


def _ask_all(cases: SearchStrategy[schemathesis.Case], headers: dict[str, str], examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate])
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        assume(_is_sent_whole(case))
        case.call_and_validate(headers=headers, excluded_checks=[checks.positive_data_acceptance, checks.unsupported_method])

    ask()
