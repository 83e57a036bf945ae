"""Failures of a database: messages and retries, and that nothing is lost."""

import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from lakechime import (
    AccessError,
    InvalidEventError,
    LakeChime,
    LakeChimeError,
    SchemaError,
    UnavailableError,
)
from lakechime.store import sequencer
from lakechime.store.database.engine import Tuning, open_database
from lakechime.store.sql_store import SqlStore
from tests.fixtures_postgres import Postgres, postgres_folder, postgres_server
from tests.lakechime.build import made

FAILING = (
    (
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'for a test' USING ERRCODE = '{code}'; END $$"
    ),
    (
        "CREATE TRIGGER fail BEFORE INSERT ON lakechime_events "
        "FOR EACH STATEMENT EXECUTE FUNCTION fail()"
    ),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lakechime.db"
    with LakeChime.open(f"sqlite:///{path}") as chime:
        chime.register([made(1)])
    return path


@pytest.mark.parametrize(
    "url, said",
    [
        ("mysql://host/db", "stores events in sqlite or postgresql"),
        ("oracle+made-up://host/db", "cannot be read"),
        ("no url", "cannot be read"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
    ],
)
def test_an_address_of_something_else_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidEventError, match=said):
        LakeChime.open(url)


def test_an_address_may_be_a_path_and_need_not_name_the_driver(file: Path) -> None:
    with LakeChime.open(str(file)) as chime:
        assert len(chime.events().events) == 1
    assert (
        open_database("postgresql://127.0.0.1:1/x").engine.driver
        == open_database("postgres://127.0.0.1:1/x").engine.driver
        == "psycopg2"
    )


def test_writer_gives_up_after_busy_seconds_on_a_locked_file(file: Path) -> None:
    store = SqlStore.open(f"sqlite:///{file}", tuning=Tuning(busy_seconds=0.2))
    with (
        LakeChime(store) as chime,
        closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match=r"is locked .*; another process holds it"):
            chime.register([made(2)])
        assert len(chime.events().events) == 1
        other.execute("ROLLBACK")
        assert not chime.register([made(2)])[0].duplicate


def test_full_disk_is_reported_and_events_stay(file: Path) -> None:
    with LakeChime.open(f"sqlite:///{file}") as chime:
        with closing(sqlite3.connect(file)) as other:
            pages = other.execute("PRAGMA page_count").fetchone()[0]
        store: Any = chime.store
        with store.database.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 1}")
        with pytest.raises(UnavailableError, match=r"is full .*; free some space"):
            chime.register([made(number, tags={"x": "y" * 1_000}) for number in range(2, 500)])
        assert len(chime.events().events) == 1


def test_error_names_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "lakechime.db"
    path.write_bytes(b"no database, but long enough to be taken for the head of one" * 20)
    with pytest.raises(LakeChimeError, match=r"is damaged .*; restore it"):
        LakeChime.open(f"sqlite:///{path}")


def test_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be created"):
        LakeChime.open(f"sqlite:///{tmp_path}/file/below/lakechime.db")


def test_missing_tables_of_a_database_are_reported(file: Path) -> None:
    with LakeChime.open(f"sqlite:///{file}") as chime:
        with closing(sqlite3.connect(file)) as other:
            other.execute("DROP TABLE lakechime_events")
        with pytest.raises(SchemaError, match="run `lakechime migrate`"):
            chime.head()


def _register_in_child(chime: LakeChime) -> None:
    chime.register([made(2, table="child")])


def test_a_forked_process_speaks_on_a_connection_of_its_own(address: str) -> None:
    with LakeChime.open(address) as chime:
        chime.register([made(1)])
        child = multiprocessing.get_context("fork").Process(
            target=_register_in_child, args=(chime,)
        )
        child.start()
        child.join()
        assert child.exitcode == 0
        chime.register([made(3)])
        assert len(chime.events().events) == 3


@pytest.fixture
def shop(new_postgres: Callable[[], str]) -> Iterator[tuple[LakeChime, str]]:
    url = new_postgres()
    with LakeChime.open(url) as chime:
        chime.register([made(1)])
        yield chime, url


def run(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "code, said",
    [("53100", "is full .*; free some space"), ("XX001", "is damaged"), ("25006", "is read-only")],
)
def test_errors_of_postgresql_become_errors_with_a_next_step(
    shop: tuple[LakeChime, str], code: str, said: str
) -> None:
    chime, url = shop
    run(url, *(statement.format(code=code) for statement in FAILING))
    with pytest.raises(LakeChimeError, match=said):
        chime.register([made(2)])
    run(url, "DROP TRIGGER fail ON lakechime_events")
    assert not chime.register([made(2)])[0].duplicate


@pytest.mark.postgres
def test_error_names_the_missing_right_of_a_user(shop: tuple[LakeChime, str]) -> None:
    _, url = shop
    run(url, "DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN PASSWORD 'guest'")
    server = url.split("@")[1]
    with pytest.raises(
        AccessError, match=r"is refused .*permission denied.*; give this user the right"
    ):
        LakeChime.open(f"postgresql+psycopg2://guest:guest@{server}")
    with pytest.raises(AccessError, match="password authentication failed") as refused:
        LakeChime.open(f"postgresql+psycopg2://guest:wrong-word@{server}")
    assert "wrong-word" not in str(refused.value)
    run(url, "DROP ROLE guest")


@pytest.mark.postgres
def test_writer_gives_up_on_a_lock_and_its_event_is_registered_later(
    shop: tuple[LakeChime, str],
) -> None:
    """The event waits in the inbox, and has its place as soon as anybody looks."""
    opened, url = shop
    store: Any = opened.store
    chime = LakeChime(replace(store, sequencer=replace(store.sequencer, lock_seconds=1)))
    engine = create_engine(url)
    with engine.connect() as other:
        other.execute(text(f"SELECT pg_advisory_xact_lock({sequencer.LOCK})"))
        with pytest.raises(UnavailableError, match=r"is locked .*lock timeout"):
            chime.register([made(2)])
        assert [entry.event.snapshot_id for entry in chime.events().events] == ["1"]
    assert [entry.event.snapshot_id for entry in chime.events().events] == ["1", "2"]
    assert chime.register([made(2)])[0].duplicate
    engine.dispose()


@pytest.mark.postgres
def test_connections_that_the_server_ended_are_made_again(shop: tuple[LakeChime, str]) -> None:
    chime, url = shop
    ended = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    mark = chime.put_watermark("report", "events", 1, expected=None)
    run(url, ended)
    assert not chime.register([made(2)])[0].duplicate
    run(url, ended)
    assert chime.put_watermark("report", "events", 2, expected=mark.revision).value == 2
    run(url, ended)
    assert chime.head() == 2


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.usefixtures("postgres")  # says so where there is none
def test_client_works_again_after_a_server_outage() -> None:
    programs = postgres_folder()
    assert programs is not None
    with postgres_server(programs) as server:
        _lose_and_find(server)


def _lose_and_find(server: Postgres) -> None:
    with LakeChime.open(server.new_database()) as chime:
        (first,) = chime.register([made(1)])
        server.stop()
        with pytest.raises(UnavailableError, match=r"is away .*; check that it runs") as away:
            chime.register([made(2)])
        assert server.password not in str(away.value)
        with pytest.raises(UnavailableError):
            chime.put_watermark("report", "events", 1, expected=None)
        server.start()
        assert chime.events().events == (first,)
        assert not chime.register([made(2)])[0].duplicate


@pytest.mark.postgres
def test_a_statement_is_cut_off_after_statement_seconds(new_postgres: Callable[[], str]) -> None:
    store = SqlStore.open(new_postgres(), tuning=Tuning(statement_seconds=0.2))
    slow = text("SELECT pg_sleep(5)")
    with (
        LakeChime(store),
        pytest.raises(UnavailableError, match=r"is too slow .*statement timeout.*ask for fewer"),
    ):
        store.database.read(lambda connection: connection.execute(slow))


@pytest.mark.postgres
def test_user_with_the_right_to_read_opens_existing_tables(shop: tuple[LakeChime, str]) -> None:
    _, url = shop
    run(
        url,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN PASSWORD 'reader'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    server = url.split("@")[1]
    with LakeChime.open(f"postgresql+psycopg2://reader:reader@{server}") as chime:
        assert len(chime.events().events) == 1
        with pytest.raises(AccessError, match="permission denied"):
            chime.register([made(2)])
    run(url, "DROP OWNED BY reader", "DROP ROLE reader")
