"""A real PostgreSQL server for a test run: its own data folder and port, and a user that is not root."""

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
        """Of a database, as SQLAlchemy reads it."""
        return f"postgresql+psycopg2://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of an empty database of its own."""
        name = f"test_{secrets.token_hex(6)}"
        self._execute_each("postgres", f"CREATE DATABASE {name}")  # which no transaction does
        return self.address(name)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of an empty database, which is emptied for who asks next: its hundreds of files take long to make and to delete."""
        address = self.emptied.pop() if self.emptied else self.new_database()
        yield address
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
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
        """At once and without a word to anybody, unless the mode says otherwise."""
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
        """In one transaction."""
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
    """A server of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="opal-postgres-", dir="/tmp") as home:
        server = replace(_made(folder, Path(home)), settings=tuple(settings))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def postgres_folder() -> Path | None:
    """Where the server's programs are; Debian keeps them off PATH."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += [
        path
        for pattern in FOLDERS
        for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    ]
    return next(
        (path for path in folders if (path / "initdb").exists() and (path / "pg_ctl").exists()),
        None,
    )


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
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _run(command: Sequence[str], account: pwd.struct_passwd | None) -> None:
    """A server inherits what it is started with: its output goes nowhere, lest somebody waits for the end of it."""
    identity: dict[str, Any] = (
        {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        if account is not None
        else {}
    )
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
