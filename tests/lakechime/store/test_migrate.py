"""Tables are made by themselves; those of another revision are left alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from lakechime import LakeChime, Outbox, SchemaError
from lakechime.answers import Filter
from lakechime.store.database.engine import Database, open_database
from lakechime.store.migrate import BASE, KNOWN, downgrade, ensure_schema, read_revision, upgrade
from lakechime.store.schema import REVISION, VERSION_TABLE, metadata
from lakechime.store.sql_store import SqlStore
from lakechime.store.sql_tokens import SqlTokens
from tests.lakechime.build import TABLE, made


@pytest.fixture
def database(address: str) -> Database:
    return open_database(address)


def table_names(database: Database) -> set[str]:
    return {
        name
        for name in database.read(lambda connection: inspect(connection).get_table_names())
        if name.startswith("lakechime_")
    }


def test_the_newest_step_is_the_one_that_this_client_needs() -> None:
    script = ScriptDirectory("spark_apps/lakechime/store/migrations")
    assert script.get_heads() == [REVISION]
    assert sorted(step.revision for step in script.walk_revisions()) == list(KNOWN)


def test_the_steps_lead_to_the_declared_tables(database: Database) -> None:
    ensure_schema(database, migrate=True)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        return list(compare_metadata(context, metadata))

    assert database.read(differences) == []


def test_the_way_down_deletes_all_tables_and_the_way_up_makes_them_again(
    address: str, database: Database
) -> None:
    upgrade(database)
    made_tables = table_names(database)
    with LakeChime.open(address, migrate=False) as client:
        client.register([made(1, tags={"x": "1"}), made(2, partition=("a",))])
    upgrade(database)
    with LakeChime.open(address) as client:
        assert len(client.events().events) == 2
    downgrade(database, BASE)
    assert table_names(database) <= {VERSION_TABLE}
    with LakeChime.open(address) as client:
        assert client.head() == 0
    assert table_names(database) == made_tables


@pytest.mark.parametrize("revision", ["0001", "0004"])
def test_tables_of_a_pre_release_are_refused_and_left_alone(
    address: str, database: Database, revision: str
) -> None:
    with LakeChime.open(address) as client:
        client.register([made(1)])
    stamp(database, revision)
    refused = f"of revision {revision} of a pre-release, .* name a new database"
    for migrate in (None, True, False):
        with pytest.raises(SchemaError, match=refused):
            LakeChime.open(address, migrate=migrate)
    for change in (upgrade, lambda database: downgrade(database, BASE)):
        with pytest.raises(SchemaError, match=refused):
            change(database)
    assert database.read(read_revision) == revision
    assert count_events(database) == 1


def stamp(database: Database, revision: str) -> None:
    """Record another revision than that of the tables."""
    statement = text(f"UPDATE {VERSION_TABLE} SET version_num = :revision")
    database.write(lambda connection: connection.execute(statement, {"revision": revision}))


def count_events(database: Database) -> int:
    statement = text("SELECT COUNT(*) FROM lakechime_events")
    return int(database.read(lambda connection: connection.execute(statement).scalar_one()))


def test_error_of_an_old_client_names_the_newer_tables(address: str, database: Database) -> None:
    ensure_schema(database, migrate=True)
    stamp(database, "v9999")
    for migrate in (True, False):
        with pytest.raises(SchemaError, match="revision v9999, which is newer than this client"):
            LakeChime.open(address, migrate=migrate)
    with pytest.raises(SchemaError, match="newer"):
        downgrade(database, KNOWN[0])


def test_without_migrate_an_empty_database_is_refused_and_stays_empty(
    address: str, database: Database
) -> None:
    with pytest.raises(SchemaError, match="has no tables of LakeChime; run `lakechime migrate`"):
        LakeChime.open(address, migrate=False)
    assert table_names(database) == set()


def test_many_who_open_an_empty_database_at_once_make_one(address: str, database: Database) -> None:
    def register(number: int) -> None:
        with LakeChime.open(address) as client:
            client.register([made(1, table=f"t{number}")])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(register, range(6)))
    with LakeChime.open(address) as client:
        assert len(client.events().events) == 6


def write_something(store: SqlStore, kind: str) -> None:
    writes: dict[str, Callable[[], object]] = {
        "events": lambda: store.register([made(2)], None),
        "position": lambda: store.register([], Outbox(table=TABLE, position=1)),
        "watermark": lambda: store.put_watermark("report", "events", 1, expected=None, step="s"),
        "expiry": lambda: store.expire(1 << 60, keep_unseen=False),
        "token": lambda: SqlTokens.of(store).create("ci", "read"),
    }
    writes[kind]()


@pytest.mark.parametrize("kind", ["events", "position", "watermark", "expiry", "token"])
def test_a_client_whose_tables_were_upgraded_under_it_writes_nothing(
    address: str, database: Database, kind: str
) -> None:
    store = SqlStore.open(address)
    store.register([made(1)], None)
    stamp(database, "v9999")
    with pytest.raises(SchemaError, match=r"of revision v9999, .* upgrade opal-lake here"):
        write_something(store, kind)
    assert len(store.events(Filter(), after=0, until=None, limit=10).events) == 1, "reading goes on"
    assert store.watermarks("report") == {}
    assert store.table_state("default", TABLE).position is None  # type: ignore[union-attr]  # there is an event


def test_older_tables_are_upgraded_on_purpose_only(
    address: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of the next revision opens the tables of this one."""
    upgrade(database)
    monkeypatch.setattr("lakechime.store.migrate.REVISION", "v0002")
    is_server = database.dialect == "postgresql"
    for allowed in (False, None) if is_server else (False,):
        with pytest.raises(
            SchemaError,
            match=f"revision {REVISION}, and this client needs v0002; run `lakechime migrate`",
        ):
            ensure_schema(database, migrate=allowed)
    assert database.read(read_revision) == REVISION
