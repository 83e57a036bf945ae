"""The database: its connection, its transactions and retries, and its errors as ours."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from lakechime.errors import InvalidEventError, SchemaError, UnavailableError
from lakechime.store.database.failures import is_passing, translated
from lakechime.store.schema import REVISION, VERSION_TABLE
from opal_lake.clock import doubled_pause_s

T = TypeVar("T")

DIALECTS = ("sqlite", "postgresql")
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.05
BUSY_SECONDS = 30
STATEMENT_SECONDS = 90  # longer than the wait for the sequencer's lock
_WRITES = "lakechime_writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database that runs work in transactions.

    Work is a function of a connection and may run more than once; failed attempts are undone.

    `checked`: each write that is not repeatable first checks that nobody upgraded the tables since
    this client opened them. Repeatable writes ask for the revision together with what they need.
    """

    engine: Engine
    checked: bool = False

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._run(work, writes=False, repeatable=True)

    def write(self, work: Callable[[Connection], T], *, repeatable: bool = False) -> T:
        """Run work in a transaction that writes.

        `repeatable`: doing it twice does no harm. Then it is also tried again when it is unknown if
        the commit landed.
        """
        return self._run(work, writes=True, repeatable=repeatable)

    def _run(self, work: Callable[[Connection], T], *, writes: bool, repeatable: bool) -> T:
        attempt = 0
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            attempt += 1
            try:
                return self._once(work, writes=writes, looks_first=not repeatable)
            except _StaleConnectionError as stale:
                if _is_last(attempt, give_up):
                    raise translated(stale.error, self.shown) from stale.error
            except exc.DBAPIError as error:
                if _is_last(attempt, give_up) or not is_passing(error, repeatable=repeatable):
                    raise translated(error, self.shown) from error
            except exc.SQLAlchemyError as error:
                raise translated(error, self.shown) from error
            time.sleep(doubled_pause_s(attempt, FIRST_PAUSE_SECONDS))

    def _once(self, work: Callable[[Connection], T], *, writes: bool, looks_first: bool) -> T:
        with self.engine.connect() as connection:
            if writes:
                connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                if looks_first:
                    _look(connection, checked=self.checked)
                return work(connection)

    def close(self) -> None:
        self.engine.dispose()


def _is_last(attempt: int, give_up: float) -> bool:
    return attempt == ATTEMPTS or time.monotonic() > give_up


class _StaleConnectionError(Exception):
    """A connection that the server ended while it was idle: nothing was sent on it."""

    def __init__(self, error: exc.DBAPIError) -> None:
        super().__init__(str(error))
        self.error = error


def _look(connection: Connection, *, checked: bool) -> None:
    """Send a first statement, which shows a stale connection before any write."""
    statement = f"SELECT version_num FROM {VERSION_TABLE}" if checked else "SELECT 1"
    try:
        answer = connection.exec_driver_sql(statement).scalar()
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise _StaleConnectionError(error) from error
        raise
    if checked:
        check_revision(answer)


def check_revision(revision: str | None) -> None:
    """Raise SchemaError if the tables are of another revision than this client's."""
    if revision != REVISION:
        raise SchemaError(
            f"the tables are of revision {revision} by now, "
            f"and this client writes those of {REVISION}; nothing was written. "
            "If they are newer, upgrade opal-lake here and start again; "
            "if they are older, run `lakechime migrate`"
        )


def open_database(url: str) -> Database:
    """Return a database that connects at its first use."""
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _sqlite(parsed)
    else:
        engine = create_engine(
            parsed,
            isolation_level="READ COMMITTED",
            pool_size=5,
            max_overflow=20,
            connect_args=_postgres_arguments(parsed),
        )
        event.listen(engine, "connect", _prepare_postgres)
    _one_process_a_connection(engine)
    return Database(engine=engine)


def _postgres_arguments(url: URL) -> dict[str, Any]:
    return {} if "connect_timeout" in url.query else {"connect_timeout": 10}


def _parsed(url: str) -> URL:
    if url.startswith("/"):
        url = f"sqlite:///{url}"
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg2")
        name = parsed.get_backend_name()
        parsed.get_dialect()
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError) as error:
        raise InvalidEventError(
            f"the URL of the database cannot be read ({type(error).__name__}); "
            "write sqlite:////path/to/lakechime.db or "
            "postgresql+psycopg2://user:password@host/database"
        ) from None  # the error may show the password
    if name not in DIALECTS:
        raise InvalidEventError(
            f"LakeChime keeps events in {' or '.join(DIALECTS)}, and {name} is neither"
        )
    return parsed


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise InvalidEventError(
            "SQLite needs a file, which other processes can open too; "
            "write sqlite:////path/to/lakechime.db"
        )
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"the folder {folder} cannot be created ({error.strerror}); create it, or name another"
        ) from error
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:
    """Set up a new connection to SQLite."""
    # The driver begins no transactions of its own: `_begin_sqlite` does
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
        # Readers do not wait for a writer
        cursor.execute("PRAGMA journal_mode=WAL")
        # Registered events outlive a power cut
        cursor.execute("PRAGMA synchronous=FULL")


def _prepare_postgres(connection: Any, _entry: ConnectionPoolEntry) -> None:
    """Limit the time of statements, once a connection and not in each transaction."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SET statement_timeout = {int(STATEMENT_SECONDS * 1000)}")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; a writer takes the lock immediately."""
    # A transaction that reads first and then writes would fail where it should wait for the lock
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _one_process_a_connection(engine: Engine) -> None:
    """Keep a forked process from using its parent's connections."""

    def remember(_connection: Any, entry: ConnectionPoolEntry) -> None:
        entry.info["pid"] = os.getpid()

    def refuse(_connection: Any, entry: ConnectionPoolEntry, proxy: Any) -> None:
        if entry.info["pid"] != os.getpid():
            proxy.dbapi_connection = None
            entry.dbapi_connection = None  # type: ignore[misc]  # as SQLAlchemy documents it
            raise exc.DisconnectionError("this connection belongs to the parent process")

    event.listen(engine, "connect", remember)
    event.listen(engine, "checkout", refuse)
