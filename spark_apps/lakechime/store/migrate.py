"""The upgrade of a database's tables to the revision that this client knows."""

import re
from typing import Any

from sqlalchemy import Connection, inspect, text

from lakechime.errors import SchemaError
from lakechime.store.database.engine import Database
from lakechime.store.schema import REVISION, VERSION_TABLE
from lakechime.store.sequencer import LOCK

KNOWN = (REVISION,)  # every revision, oldest first
BASE = "base"
_PRE_RELEASE = re.compile(r"\d{4}")  # the names of revisions before the first release


def ensure_schema(database: Database, *, migrate: bool | None = None) -> None:
    """Create missing tables, and upgrade older ones in a file.

    Several processes may do this at once. An upgrade of a server's database needs `migrate=True`,
    because it stops the other clients. With False nothing is created.
    """
    revision = database.read(read_revision)
    if revision == REVISION:
        return
    _refuse_other(revision, database.shown)
    if migrate is None:
        migrate = revision is None or database.dialect == "sqlite"
    if not migrate:
        state = "has no tables of LakeChime"
        if revision is not None:
            state = f"has the tables of revision {revision}, and this client needs {REVISION}"
        raise SchemaError(
            f"the database {database.shown} {state}; "
            "run `lakechime migrate`, or open it with migrate=True"
        )
    upgrade(database)


def upgrade(database: Database, revision: str = REVISION) -> None:
    """Upgrade the tables in one process, while the others wait."""

    def work(connection: Connection) -> None:
        _lock(connection)
        # Another process may have upgraded them before this one got the lock
        current = read_revision(connection)
        _refuse_other(current, database.shown)
        if current is None or current < revision:
            _run(connection, "upgrade", revision)

    database.write(work)


def downgrade(database: Database, revision: str) -> None:
    """Downgrade the tables to an older revision, or to `base`, which drops them."""

    def work(connection: Connection) -> None:
        _lock(connection)
        _refuse_other(read_revision(connection), database.shown)
        _run(connection, "downgrade", revision)

    database.write(work)


def read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _refuse_other(revision: str | None, database: str) -> None:
    """Raise SchemaError for tables that are not of this client's revisions."""
    if revision is None or revision in KNOWN:
        return
    if _PRE_RELEASE.fullmatch(revision):
        raise SchemaError(
            f"the tables in {database} are of revision {revision} of a pre-release, which this "
            "version cannot use; name a new database, or delete the tables lakechime_* in this one"
        )
    raise SchemaError(
        f"the tables in {database} are of revision {revision}, which is newer than this client "
        f"({REVISION}); upgrade opal-lake here to the version that created them, or a newer one"
    )


def _lock(connection: Connection) -> None:
    """Take the sequencer's lock, so that no event is registered meanwhile."""
    # On SQLite, a transaction that writes has the lock already
    if connection.dialect.name == "postgresql":
        # The migration of a large table may take longer than other statements
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def _run(connection: Connection, verb: str, revision: str) -> None:
    # Imported here, since Alembic takes long to import
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "lakechime:store/migrations")
    config.attributes["connection"] = connection
    run: Any = getattr(command, verb)
    run(config, revision)
