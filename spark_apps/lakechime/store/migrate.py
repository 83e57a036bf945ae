"""The tables in the database and the ones that this client knows: the same, or made so where that is safe."""

import re
from typing import Any

from sqlalchemy import Connection, inspect, text

from lakechime.errors import SchemaError
from lakechime.store.database.engine import Database
from lakechime.store.schema import REVISION, VERSION_TABLE
from lakechime.store.sequencer import LOCK

KNOWN = (REVISION,)  # of each step, oldest first
BASE = "base"
_PRE_RELEASE = re.compile(r"\d{4}")  # how the steps were called before the first release


def ensure_schema(database: Database, *, migrate: bool | None = None) -> None:
    """Make the tables where there are none, and upgrade older ones in a file. Several processes may do this at once.

    Whoever opens a server's database is one of many clients, and an upgrade under the others stops them: it is made where `migrate` is
    True. Where it is False nothing is made.
    """
    found = database.read(read_revision)
    if found == REVISION:
        return
    _refuse_other(found, database.shown)
    if migrate is None:
        migrate = found is None or database.dialect == "sqlite"
    if not migrate:
        is_what = (
            "has no tables of LakeChime"
            if found is None
            else f"has the tables of revision {found}, and this client needs {REVISION}"
        )
        raise SchemaError(
            f"the database {database.shown} {is_what}; run `lakechime migrate`, or open it with migrate=True"
        )
    upgrade(database)


def upgrade(database: Database, revision: str = REVISION) -> None:
    """One process does it, and the others wait for that."""

    def work(connection: Connection) -> None:
        _lock(connection)
        found = read_revision(connection)
        _refuse_other(found, database.shown)
        if found is None or found < revision:
            _run(connection, "upgrade", revision)

    database.write(work)


def downgrade(database: Database, revision: str) -> None:
    """To an older revision, or to `base`, which drops the tables and all that is in them."""

    def work(connection: Connection) -> None:
        _lock(connection)
        _refuse_other(read_revision(connection), database.shown)
        _run(connection, "downgrade", revision)

    database.write(work)


def read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _refuse_other(found: str | None, database: str) -> None:
    """Raise SchemaError for tables that are not of this client's revisions."""
    if found is not None and _PRE_RELEASE.fullmatch(found):
        raise SchemaError(
            f"the tables in {database} are of revision {found}, which a pre-release made, and cannot be used; "
            "create the database again: name another one, or delete the tables lakechime_* in this one"
        )
    if found is not None and found not in KNOWN:
        raise SchemaError(
            f"the tables in {database} are of revision {found}, which is newer than this client ({REVISION}); "
            "upgrade opal-lake here, to what made them or newer"
        )


def _lock(connection: Connection) -> None:
    """Also nobody gives places meanwhile. A large table takes its time."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def _run(connection: Connection, verb: str, revision: str) -> None:
    """Alembic takes long to import: only who needs it pays."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "lakechime:store/migrations")
    config.attributes["connection"] = connection
    run: Any = getattr(command, verb)
    run(config, revision)
