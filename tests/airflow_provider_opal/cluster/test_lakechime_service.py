"""The service within a real api-server, over its own SQLite file and over PostgreSQL.

Its users and roles are Airflow's, by Airflow's own login.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from lakechime import AccessError, DataChangeEvent, LakeChime, TableFormat
from tests.demo.shop.local_airflow import LocalAirflow, local_airflow
from tests.fixtures_lakechime import fuzz
from tests.fixtures_postgres import USER, Postgres

pytestmark = [pytest.mark.slow, pytest.mark.chained]

USERS = ("admin", "op", "user", "viewer")
EVENT = DataChangeEvent(table="shop.orders", table_format=TableFormat.ICEBERG, snapshot_id="1")
READS = [
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/head"),
    ("GET", "/v1/check"),
    ("POST", "/v1/events/query"),
]
WRITES = [
    ("POST", "/v1/events"),
    ("PUT", "/v1/watermark"),
    ("DELETE", "/v1/watermark?consumer=c&expected=1"),
]
ADMIN = [
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/token?name=nobody"),
    ("POST", "/v1/expire"),
]
BODIES = {
    "/v1/events": {"events": []},
    "/v1/watermark": {"consumer": "c", "value": 1},
    "/v1/expire": {"older_than_ms": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The database behind the mounted service, and Airflow's settings for it."""

    url: str | None
    settings: dict[str, str]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def behind(request: pytest.FixtureRequest) -> Behind:
    """Return the database to test; the embedded one needs no setting."""
    if request.param == "sqlite":
        return Behind(url=None, settings={})
    server: Postgres = request.getfixturevalue("postgres")
    url = server.new_database()
    where = {
        "conn_type": "lakechime",
        "host": "127.0.0.1",
        "port": server.port,
        "schema": url.rpartition("/")[2],
    }
    connection = json.dumps({**where, "login": USER, "password": server.password})
    return Behind(url=url, settings={"AIRFLOW_CONN_LAKECHIME_DEFAULT": connection})


@pytest.fixture(scope="module")
def airflow(behind: Behind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{name}" for name in USERS),
        **behind.settings,
    }
    home = tmp_path_factory.mktemp("airflow")
    with local_airflow(
        home, tmp_path_factory.mktemp("dags"), settings, components=["api-server"]
    ) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(airflow: LocalAirflow) -> dict[str, str]:
    passwords = json.loads(
        (airflow.home / "simple_auth_manager_passwords.json.generated").read_text()
    )
    logins = {
        name: httpx.post(
            f"{airflow.url}/auth/token", json={"username": name, "password": passwords[name]}
        )
        for name in USERS
    }
    return {name: login.json()["access_token"] for name, login in logins.items()}


def ask(airflow: LocalAirflow, method: str, path: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    body = BODIES.get(path, {}) if method in ("POST", "PUT") else None
    return httpx.request(
        method, f"{airflow.url}/lakechime{path}", headers=headers, json=body, timeout=60
    )


def test_anonymous_is_refused_everywhere(airflow: LocalAirflow, tokens: dict[str, str]) -> None:
    for method, path in [*READS, *WRITES, *ADMIN]:
        answer = ask(airflow, method, path, None)
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated"), (
            method,
            path,
        )
        assert ask(airflow, method, path, tokens["admin"][:-4] + "AAAA").status_code in (
            401,
            403,
        ), (method, path)
    for path in ("/docs", "/redoc"):
        assert ask(airflow, "GET", path, tokens["admin"]).status_code == 404


def test_roles_of_airflow_open_what_they_allow(
    airflow: LocalAirflow, tokens: dict[str, str]
) -> None:
    for name in USERS:
        for method, path in READS:
            assert ask(airflow, method, path, tokens[name]).status_code == 200, (name, method, path)
        for method, path in [*WRITES, *ADMIN]:
            refused = ask(airflow, method, path, tokens[name]).status_code == 403
            assert refused is (name in ("user", "viewer")), (name, method, path)


def test_the_client_speaks_to_it_as_to_any_service(
    behind: Behind, airflow: LocalAirflow, tokens: dict[str, str]
) -> None:
    with LakeChime.open(f"{airflow.url}/lakechime", token=tokens["op"]) as client:
        [registered] = client.register([EVENT])
        assert client.events(["shop.orders"]).events == (registered,)
    with LakeChime.open(behind.url or f"sqlite:///{airflow.home}/lakechime.db") as database:
        assert database.events().events == (registered,)
    with LakeChime.open(f"{airflow.url}/lakechime", token=tokens["viewer"]) as viewer:
        assert viewer.head() == registered.event.seq
        with pytest.raises(AccessError, match="Forbidden"):
            viewer.register([EVENT])
    with (
        LakeChime.open(f"{airflow.url}/lakechime") as nobody,
        pytest.raises(AccessError, match="LAKECHIME_TOKEN"),
    ):
        nobody.head()


def test_every_answer_fits_the_openapi_document(
    airflow: LocalAirflow, tokens: dict[str, str]
) -> None:
    asked = fuzz(f"{airflow.url}/lakechime", tokens["admin"], 10)
    assert len(asked) > 15
    assert airflow.api("GET", "/monitor/health")["metadatabase"]["status"] == "healthy"
