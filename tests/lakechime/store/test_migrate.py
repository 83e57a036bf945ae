"""Tables are made and upgraded by themselves, up from the first step and down again, with data in them."""

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
from lakechime.store.tokens import create_token, read_tokens
from tests.lakechime.made import TABLE, made


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


def test_events_outlive_the_way_up_and_down(address: str, database: Database) -> None:
    upgrade(database, KNOWN[0])
    assert "lakechime_tokens" not in table_names(database)
    with pytest.raises(
        SchemaError,
        match=f"revision {KNOWN[0]}, and this client needs {REVISION}; run `lakechime migrate`",
    ):
        LakeChime.open(address, migrate=False)
    with LakeChime.open(address, migrate=True) as client:
        assert database.read(read_revision) == REVISION
        first = client.register([made(1, tags={"x": "1"}), made(2, partition=("a",))])
        client.put_watermark("report", "events", 1, expected=None)
    downgrade(database, KNOWN[0])
    with LakeChime.open(address, migrate=True) as client:
        assert database.read(read_revision) == REVISION
        assert client.events().events == tuple(first)
        client.register([made(3)])
    database.write(lambda connection: create_token(connection, "ci", "writer", 1))
    downgrade(database, KNOWN[0])
    assert (
        len(
            database.read(
                lambda connection: connection.execute(text("SELECT 1 FROM lakechime_events")).all()
            )
        )
        == 3
    )
    with LakeChime.open(address, migrate=True) as client:
        assert [found.event.snapshot_id for found in client.events(tags={"x": "1"}).events] == ["1"]
        assert len(client.events().events) == 3
        assert client.watermark("report", "events") is not None
    assert database.read(read_tokens) == []
    downgrade(database, BASE)
    assert table_names(database) <= {VERSION_TABLE}
    with LakeChime.open(address) as client:
        assert client.head() == 0


def test_an_old_client_says_that_the_tables_are_newer(address: str, database: Database) -> None:
    ensure_schema(database, migrate=True)
    database.write(
        lambda connection: connection.execute(
            text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        )
    )
    for migrate in (True, False):
        with pytest.raises(SchemaError, match="revision 9999, which is newer than this client"):
            LakeChime.open(address, migrate=migrate)
    with pytest.raises(SchemaError, match="newer"):
        downgrade(database, KNOWN[0])


def test_an_empty_database_is_left_alone_where_nothing_may_be_made(
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


def test_how_far_tables_expired_outlives_the_upgrade(address: str, database: Database) -> None:
    with LakeChime.open(address) as client:
        client.register(
            [made(number) for number in range(1, 4)]
            + [made(1, table="other"), made(4), made(2, table="other")]
        )
        client.expire(1 << 60)
        assert (
            client.events([TABLE]).expired,
            client.events(["other"]).expired,
            client.events().expired,
        ) == (3, 4, 4)
    downgrade(database, "0002")
    upgrade(database)
    with LakeChime.open(address) as client:
        assert (client.events([TABLE]).expired, client.events(["other"]).expired) == (4, 4), (
            "at least as far"
        )


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
    database.write(
        lambda connection: connection.execute(
            text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        )
    )
    with pytest.raises(SchemaError, match=r"of revision 9999 by now, .* upgrade opal-lake here"):
        write_something(store, kind)
    assert len(store.events(Filter(), after=0, until=None, limit=10).events) == 1, "reading goes on"
    assert store.watermarks("report") == {}
    assert store.table_state("default", TABLE).position is None  # type: ignore[union-attr]  # there is an event


def test_older_tables_of_a_file_are_upgraded_and_of_a_server_only_on_purpose(
    address: str, database: Database
) -> None:
    upgrade(database, KNOWN[0])
    if database.dialect == "postgresql":
        with pytest.raises(
            SchemaError,
            match=f"revision {KNOWN[0]}, and this client needs {REVISION}; run `lakechime migrate`",
        ):
            LakeChime.open(address)
        assert database.read(read_revision) == KNOWN[0]
        LakeChime.open(address, migrate=True).close()
    LakeChime.open(address).close()
    assert database.read(read_revision) == REVISION
