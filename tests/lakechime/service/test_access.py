"""Access control: every route needs a right, and a revoked token has none."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from lakechime import AccessError, LakeChime
from lakechime.access import ROLES, allows
from lakechime.errors import InvalidEventError, NotFoundError
from lakechime.remote.http import HttpTokens
from lakechime.remote.transport import Transport
from lakechime.service.access import BY_TOKEN, NO_ACCESS_CONTROL
from lakechime.service.app import create_app
from lakechime.service.server import Listener, is_loopback, service_app
from lakechime.store.sql_store import SqlStore
from lakechime.store.sql_tokens import SqlTokens
from tests.fixtures_lakechime import CERTIFICATES, Served, serving

OPEN = {"/health", "/ready", "/openapi.json"}
RIGHTS = {
    ("POST", "/v1/events"): "write",
    ("PUT", "/v1/watermark"): "write",
    ("DELETE", "/v1/watermark"): "write",
    ("POST", "/v1/expire"): "admin",
    ("GET", "/v1/tokens"): "admin",
    ("POST", "/v1/tokens"): "admin",
    ("DELETE", "/v1/token"): "admin",
}
EVENT = {"table": "t", "table_format": "HIVE"}
BODIES = {
    "/v1/events": {"events": [EVENT]},
    "/v1/events/find": {"interests": [{"tables": ["t"]}]},
    "/v1/triggers/partition": {"table": "t", "partition": ["a"]},
    "/v1/triggers/snapshot": {"tables": ["t"]},
    "/v1/watermark": {"consumer": "c", "value": 1},
    "/v1/expire": {"older_than_ms": 1},
    "/v1/tokens": {"name": "another", "role": "read"},
}
PARAMS = {
    ("GET", "/v1/table"): {"table": "t"},
    ("GET", "/v1/table/seen"): {"table": "t"},
    ("GET", "/v1/watermarks"): {"consumer": "c"},
    ("GET", "/v1/watermark"): {"consumer": "c"},
    ("DELETE", "/v1/watermark"): {"consumer": "c", "expected": "1"},
    ("DELETE", "/v1/token"): {"name": "nobody"},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('served')}/lakechime.db") as running:
        yield running


def calls(dependant: Dependant) -> set[object]:
    return {dependant.call, *(call for inner in dependant.dependencies for call in calls(inner))}


def routes() -> list[tuple[str, APIRoute]]:
    app = create_app(lambda: pytest.fail("nothing is asked"), BY_TOKEN)
    every_route = list(all_routes(app.routes))
    assert len(every_route) > 15
    return [(method, route) for route in every_route for method in sorted(route.methods)]


def all_routes(among: list[object]) -> Iterator[APIRoute]:
    for route in among:
        assert isinstance(route, APIRoute), route
        yield route


def ask(served: Served, method: str, path: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    body = BODIES.get(path, {}) if method in ("POST", "PUT") else None
    url, params = served.url + path.replace("{name}", "nobody"), PARAMS.get((method, path))
    return httpx.request(
        method, url, headers=headers, json=body, params=params, verify=CERTIFICATES
    )


def test_every_route_asks_for_the_right_that_it_needs() -> None:
    for method, route in routes():
        wanted = RIGHTS.get((method, route.path), "read")
        right = BY_TOKEN.probe if route.path in OPEN else getattr(BY_TOKEN, wanted)
        assert right in calls(route.dependant), (method, route.path)
    assert {*RIGHTS} <= {(method, route.path) for method, route in routes()}


def test_request_needs_a_token_of_the_required_role(served: Served) -> None:
    for method, route in routes():
        if route.path in OPEN:
            assert ask(served, method, route.path, None).status_code == 200
            continue
        for wrong in (None, "x", "lakechime_guessed", served.tokens["read"][:-1]):
            answer = ask(served, method, route.path, wrong)
            assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated"), (
                method,
                route.path,
            )
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        wanted = RIGHTS.get((method, route.path), "read")
        for role in ROLES:
            answer = ask(served, method, route.path, served.tokens[role])
            assert (answer.status_code == 403) is not allows(role, wanted), (
                method,
                route.path,
                role,
                answer.text,
            )
            assert answer.status_code not in (401, 422, 500), answer.text


def test_a_leaked_token_that_is_revoked_opens_nothing_from_the_next_request_on(
    served: Served,
) -> None:
    keeper = HttpTokens(transport=Transport(url=served.url, token=served.tokens["admin"]))
    leaked = keeper.create("leaked", "write")
    with LakeChime.open(served.url, token=leaked) as thief:
        assert thief.head() >= 0
        keeper.revoke("leaked")
        with pytest.raises(AccessError, match="unknown or revoked"):
            thief.head()
    [listed] = [token for token in keeper.tokens() if token.name == "leaked"]
    assert listed.revoked is not None
    assert listed.last_used is not None
    with pytest.raises(InvalidEventError, match="a name is used only once"):
        keeper.create("leaked", "read")
    with pytest.raises(NotFoundError, match="unknown token nobody"):
        keeper.revoke("nobody")


def test_listing_tokens_as_a_writer_names_the_role_that_is_needed(served: Served) -> None:
    with pytest.raises(AccessError, match="needs the role admin"):
        HttpTokens(transport=Transport(url=served.url, token=served.tokens["write"])).tokens()


def test_no_secret_is_kept(tmp_path: Path) -> None:
    store = SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db")
    secret = SqlTokens.of(store).create("etl", "write")
    assert SqlTokens.of(store).role_of(secret) == "write"
    store.close()
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_names_and_roles_of_tokens_are_checked(tmp_path: Path) -> None:
    keeper = SqlTokens.of(SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db"))
    for name, role in (("", "read"), ("a\nb", "read"), ("x" * 129, "read"), ("a", "root")):
        with pytest.raises(InvalidEventError):
            keeper.create(name, role)
    assert keeper.is_empty()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_service_may_run_without_tokens(tmp_path: Path, host: str) -> None:
    store = SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db")
    assert is_loopback(host)
    with pytest.raises(InvalidEventError, match=r"has no valid token.*--no-auth"):
        service_app(store, Listener(host=host, port=0), with_tokens=True)
    app = service_app(store, Listener(host=host, port=0), with_tokens=False)
    assert NO_ACCESS_CONTROL.read in calls(
        next(route for route in all_routes(app.routes) if route.path == "/v1/head").dependant
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_are_served_by_token_only(tmp_path: Path, host: str) -> None:
    store = SqlStore.open(f"sqlite:///{tmp_path}/lakechime.db")
    with pytest.raises(InvalidEventError, match="--no-auth would let everybody"):
        service_app(store, Listener(host=host, port=0), with_tokens=False)
    with pytest.raises(
        InvalidEventError,
        match=r"has no valid token.*create one first: lakechime token create NAME --role admin$",
    ):
        service_app(store, Listener(host=host, port=0), with_tokens=True)
    secret = SqlTokens.of(store).create("a", "read")
    service_app(store, Listener(host=host, port=0), with_tokens=True)
    assert secret
    SqlTokens.of(store).revoke("a")
    with pytest.raises(InvalidEventError, match="has no valid token"):
        service_app(store, Listener(host=host, port=0), with_tokens=True)
