"""The database: its connections, its transactions and their retries."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
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
_WRITES = "lakechime_writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Limits of time and size that change no result. Tests set them small."""

    # Seconds for which a transaction is tried again, and for which SQLite waits for its lock
    busy_seconds: float = 30
    # Seconds of a statement in PostgreSQL: more than the wait for the sequencer's lock
    statement_seconds: float = 90
    # Events that retention deletes in one transaction
    expired_at_once: int = 1_000


DEFAULT_TUNING = Tuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database that runs work in transactions.

    Work is a function of a connection. It may run more than once, and failed attempts are undone.

    `checked`: each write that is not repeatable first checks that the tables were not upgraded
    since this client opened them. Repeatable writes check that themselves.
    """

    engine: Engine
    checked: bool = False
    tuning: Tuning = DEFAULT_TUNING

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

        `repeatable`: running the work twice does no harm. Then it is also tried again if it is
        unknown whether the commit succeeded.
        """
        return self._run(work, writes=True, repeatable=repeatable)

    def _run(self, work: Callable[[Connection], T], *, writes: bool, repeatable: bool) -> T:
        attempt = 0
        give_up = time.monotonic() + self.tuning.busy_seconds
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
    """A connection that the server had ended while it was idle."""

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
            f"the tables are of revision {revision}, "
            f"and this client writes revision {REVISION}; nothing was written. "
            "If they are newer, upgrade opal-lake here and start again; "
            "if they are older, run `lakechime migrate`"
        )


def open_database(url: str, tuning: Tuning = DEFAULT_TUNING) -> Database:
    """Return a database that connects at its first use."""
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _sqlite(parsed, tuning)
    else:
        engine = create_engine(
            parsed,
            isolation_level="READ COMMITTED",
            pool_size=5,
            max_overflow=20,
            connect_args=_postgres_arguments(parsed),
        )
        event.listen(engine, "connect", partial(_prepare_postgres, tuning))
    _refuse_connections_of_parent(engine)
    return Database(engine=engine, tuning=tuning)


def _postgres_arguments(url: URL) -> dict[str, Any]:
    if "connect_timeout" in url.query:
        return {}
    return {"connect_timeout": 10}


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
            f"LakeChime stores events in {' or '.join(DIALECTS)}, not in {name}; "
            "write sqlite:////path/to/lakechime.db or "
            "postgresql+psycopg2://user:password@host/database"
        )
    return parsed


def _sqlite(url: URL, tuning: Tuning) -> Engine:
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
    arguments = {"timeout": tuning.busy_seconds, "check_same_thread": False}
    engine = create_engine(url, connect_args=arguments)
    event.listen(engine, "connect", partial(_prepare_sqlite, tuning))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(tuning: Tuning, connection: Any, _entry: ConnectionPoolEntry) -> None:
    """Set up a new connection to SQLite."""
    busy_ms = int(tuning.busy_seconds * 1000)
    # The driver begins no transactions of its own: `_begin_sqlite` does
    connection.isolation_level = None
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"PRAGMA busy_timeout={busy_ms}")
        # Readers do not wait for a writer
        cursor.execute("PRAGMA journal_mode=WAL")
        # Registered events outlive a power cut
        cursor.execute("PRAGMA synchronous=FULL")


def _prepare_postgres(tuning: Tuning, connection: Any, _entry: ConnectionPoolEntry) -> None:
    """Limit the time of a new connection's statements."""
    statement_ms = int(tuning.statement_seconds * 1000)
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SET statement_timeout = {statement_ms}")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; a writer takes the lock immediately."""
    # A transaction that reads first and writes later would fail instead of waiting for the lock
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _refuse_connections_of_parent(engine: Engine) -> None:
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
