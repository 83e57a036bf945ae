"""The connection `lakechime`: its address, its default, and its password."""

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from lakechime import LakeChime
from tests.airflow_provider_opal.chime import chime, event, put
from tests.fixtures_postgres import Postgres

__all__ = ["chime"]


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> LakeChimeHook:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKECHIME_DEFAULT", json.dumps({"conn_type": "lakechime", **fields})
    )
    return LakeChimeHook()


@pytest.mark.parametrize(
    "fields, url, token",
    [
        ({"host": "/data/lakechime.db"}, "sqlite:////data/lakechime.db", None),
        ({"host": "sqlite:////data/lakechime.db"}, "sqlite:////data/lakechime.db", None),
        (
            {"host": "https://chime.example/api", "password": "t0ken"},
            "https://chime.example/api",
            "t0ken",
        ),
        ({"host": "http://localhost", "port": 8765}, "http://localhost:8765", None),
        ({"host": "chime", "port": 8765, "extra": {"scheme": "http"}}, "http://chime:8765", None),
        (
            {"host": "pg", "schema": "chime", "login": "me", "password": "a@b:/c"},
            "postgresql+psycopg2://me:a%40b%3A%2Fc@pg/chime",
            None,
        ),
        (
            {"host": "postgresql://pg:5433/chime", "login": "me"},
            "postgresql+psycopg2://me@pg:5433/chime",
            None,
        ),
        (
            {"host": "postgresql://you:x@pg/chime?sslmode=require", "login": "me"},
            "postgresql+psycopg2://you:x@pg/chime?sslmode=require",
            None,
        ),
        (
            {"host": "postgresql+psycopg2://pg", "schema": "chime", "port": 5},
            "postgresql+psycopg2://pg:5/chime",
            None,
        ),
    ],
)
def test_a_connection_is_an_address(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], url: str, token: str | None
) -> None:
    address = connect(monkeypatch, **fields).address
    assert (address.url, address.token) == (url, token)
    for secret in filter(None, (fields.get("password"), "a%40b", token)):
        assert secret not in f"{address!r} {address.shown}"


@pytest.mark.parametrize(
    "fields, said",
    [
        ({}, "has no host; write postgresql://"),
        ({"host": "pg"}, "names no database; write postgresql://"),
        ({"host": "mysql://db/x"}, "has the unknown scheme 'mysql'"),
        (
            {"conn_type": "postgres", "host": "pg"},
            "is of type 'postgres', and data-change events need one of type 'lakechime'",
        ),
    ],
)
def test_a_connection_that_cannot_be_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        _ = connect(monkeypatch, **fields).address
    works, message = connect(monkeypatch, **fields).test_connection()
    assert not works
    assert message == str(message)


def test_without_a_connection_the_events_are_beside_airflow(
    chime: LakeChime, tmp_path: Path
) -> None:
    put(chime, event())
    hook = LakeChimeHook()
    assert hook.address.url == f"sqlite:///{tmp_path}/lakechime.db"
    with hook.get_conn() as client:
        assert client.head() == 1
    works, message = hook.test_connection()
    assert works, message
    with pytest.raises(
        AirflowNotFoundException, match="the LakeChime connection 'other' does not exist; add it"
    ):
        _ = LakeChimeHook("other").address


def test_the_test_of_a_connection_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = connect(
        monkeypatch,
        host="postgresql://127.0.0.1:1/chime?connect_timeout=1",
        login="me",
        password="s3cr3t-s3cr3t",
    )
    works, message = hook.test_connection()
    assert not works
    assert "s3cr3t" not in message


@pytest.mark.postgres
def test_postgresql_works_by_its_connection(
    monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    fields = {
        "host": "127.0.0.1",
        "port": postgres.port,
        "login": "opal",
        "password": postgres.password,
        "schema": "postgres",
    }
    works, message = connect(monkeypatch, **fields).test_connection()
    assert works, message
    assert "postgresql" in message.lower()
