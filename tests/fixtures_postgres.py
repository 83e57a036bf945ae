"""A real PostgreSQL server for a test run.

It has its own data folder and port, and a user other than root.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)
USER = "opal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A running server, from the programs in `folder`, with its data in `home`."""

    port: int
    password: str
    folder: Path
    home: Path
    settings: tuple[str, ...] = ("fsync=off",)
    emptied: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database, as SQLAlchemy reads it."""
        return f"postgresql+psycopg2://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database, and return its address."""
        name = f"test_{secrets.token_hex(6)}"
        self._execute_each("postgres", f"CREATE DATABASE {name}")  # not possible in a transaction
        return self.address(name)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the address of an empty database.

        It is emptied for the next caller: its hundreds of files take long to create and to delete.
        """
        address = self.emptied.pop() if self.emptied else self.new_database()
        yield address
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        emptying = (
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
            "GRANT USAGE ON SCHEMA public TO PUBLIC",
        )
        self._execute_each(address.rpartition("/")[2], others, *emptying)
        self.emptied.append(address)

    def start(self) -> None:
        settings = (
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.home}",
            *self.settings,
        )
        options = " ".join((f"-p {self.port}", *(f"-c {setting}" for setting in settings)))
        _run(
            [*self._control(), "--log", str(self.home / "log"), "--options", options, "start"],
            _account(),
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server, by default immediately and without a notice to clients."""
        _run([*self._control(), "--mode", mode, "stop"], _account())

    def _control(self) -> list[str]:
        return [
            str(self.folder / "pg_ctl"),
            "--pgdata",
            str(self.home / "data"),
            "--silent",
            "--wait",
        ]

    def execute(self, *statements: str) -> None:
        """Execute statements in one transaction."""
        with (
            closing(self._connect("postgres")) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)

    def _execute_each(self, database: str, *statements: str) -> None:
        with closing(self._connect(database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    def _connect(self, database: str) -> Any:
        import psycopg2

        return psycopg2.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database
        )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = postgres_folder()
    if folder is None:
        message = "no PostgreSQL server (initdb, pg_ctl) on PATH or in its usual folders"
        if os.environ.get("OPAL_REQUIRE_POSTGRES") == "1":
            pytest.fail(message + ", and OPAL_REQUIRE_POSTGRES=1")
        pytest.skip(message)
    with postgres_server(folder) as server:
        yield server


@contextmanager
def postgres_server(folder: Path, settings: Sequence[str] = ("fsync=off",)) -> Iterator[Postgres]:
    """Yield a new server, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="opal-postgres-", dir="/tmp") as home:
        server = replace(_made(folder, Path(home)), settings=tuple(settings))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def postgres_folder() -> Path | None:
    """Return the folder of the server's programs, which Debian keeps off PATH."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for pattern in FOLDERS:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


def _made(folder: Path, home: Path) -> Postgres:
    server = Postgres(port=_free_port(), password=secrets.token_hex(16), folder=folder, home=home)
    password_file, account = home / "password", _account()
    password_file.write_text(server.password, encoding="utf-8")
    for path in (home, password_file):
        if account is not None:
            os.chown(path, account.pw_uid, account.pw_gid)
    login = ["--username", USER, "--pwfile", str(password_file), "--auth", "scram-sha-256"]
    _run(
        [
            str(folder / "initdb"),
            "--pgdata",
            str(home / "data"),
            *login,
            "--locale",
            "C",
            "--encoding",
            "UTF8",
            "--no-sync",
        ],
        account,
    )
    return server


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _account() -> pwd.struct_passwd | None:
    """Return the account of the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _run(command: Sequence[str], account: pwd.struct_passwd | None) -> None:
    """Run a command. Its output is discarded: a server would inherit it and keep it open."""
    identity: dict[str, Any] = {}
    if account is not None:
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command,
        cwd="/",
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **identity,
    )
    assert done.returncode == 0, f"{' '.join(command)} failed: {done.stderr}"
