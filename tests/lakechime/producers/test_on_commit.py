"""Commits that register where LAKECHIME_URL is set, and unreachable databases."""

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from lakechime import LakeChime
from lakechime.producers import on_commit
from lakechime.producers.on_commit import Registrar
from lakechime.producers.opal import sync_opal
from opal_lake import after_commit
from opal_lake.definition.table_spec import TableLayout
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.lakechime.producers.build import equal_to_log, events_of, put
from tests.opal_lake import shop

LAYOUT = TableLayout(
    keys=["sku"], delta="at", deletes="price IS NULL", properties={"event_table": "shop.prices"}
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a database take its time, where many tests share a machine."""
    monkeypatch.setattr(on_commit, "WAIT_SECONDS", 60.0)
    after_commit._listeners.cache_clear()
    on_commit._registrars.clear()
    yield
    on_commit._registrars.clear()


def test_each_commit_of_a_table_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKECHIME_URL", f"sqlite:///{tmp_path}/lakechime.db")
    table = Table.create(f"{tmp_path}/t", shop.SCHEMA, **asdict(LAYOUT))
    put(table, ("a", 1, 1), metadata="inline", partition_key="k")
    put(table, ("b", 2, 2))
    table.metagen()
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as client:
        assert [event.snapshot_id for event in events_of(client, "shop.prices")] == ["0", "1", "3"]


def test_listener_loads_nothing_without_a_lakechime_url(tmp_path: Path) -> None:
    code = (
        "import sys; from opal_lake.table import Table; import pyarrow as pa\n"
        "schema = pa.schema([('a', pa.int64()), ('at', pa.int64())])\n"
        f"Table.create({str(tmp_path / 't')!r}, schema, keys=['a'], delta='at')\n"
        "assert 'lakechime' not in sys.modules and 'sqlalchemy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKECHIME_URL", f"sqlite:///{tmp_path}/lakechime.db")
    monkeypatch.setenv("LAKECHIME_TABLE", "mine")
    monkeypatch.setenv("LAKECHIME_CLUSTER", "east")
    Table.create(f"{tmp_path}/t", shop.SCHEMA, **asdict(LAYOUT))
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as client:
        assert client.table_state("mine", "east") is not None


def test_commit_after_a_database_outage_registers_missed_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("a file, and no folder")
    monkeypatch.setenv("LAKECHIME_URL", f"sqlite:///{broken}/lakechime.db")
    table = shop.create(MemoryStorage())
    with caplog.at_level(logging.WARNING):
        assert put(table, ("a", 1, 1), metadata="inline").version == 1
        assert put(table, ("a", 2, 1), metadata="inline").version == 2
    assert len(caplog.messages) == 1, "one warning, and then a pause"
    assert "lakechime sync" in caplog.messages[0]
    broken.unlink()
    on_commit._registrars.clear()  # the pause is over
    put(table, ("a", 3, 1), metadata="inline")
    with LakeChime.open(f"sqlite:///{broken}/lakechime.db") as client:
        [name] = {entry.event.table for entry in client.events(limit=100).events}
        assert [event.snapshot_id for event in events_of(client, name)] == ["0", "1", "2", "3"]


def test_a_silent_server_holds_up_registrations_for_a_bounded_time_and_causes_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        url = f"postgresql+psycopg2://opal:secret@127.0.0.1:{silent.getsockname()[1]}/lakechime"
        registrar = Registrar(url=url, wait_seconds=0.5, pause_seconds=30)
        table = shop.create(MemoryStorage())
        started_s = time.monotonic()
        for _ in range(5):
            registrar.register(table.log, table.snapshot_at())
        assert time.monotonic() - started_s < 20
    assert len(caplog.messages) == 1
    assert "secret" not in caplog.text


def test_a_listener_that_fails_does_not_fail_the_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(log: object, state: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setenv("LAKECHIME_URL", "sqlite:////nowhere/lakechime.db")
    monkeypatch.setattr(after_commit, "_listeners", lambda: (fail,))
    assert put(shop.create(MemoryStorage()), ("a", 1, 1), metadata="inline").version == 1
    assert "the commit stands" in caplog.text


def test_next_process_registers_the_commits_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(f"{tmp_path}/t", shop.SCHEMA, **asdict(LAYOUT))
    put(table, ("a", 1, 1), metadata="inline")  # of a process that died before it registered
    monkeypatch.setenv("LAKECHIME_URL", f"sqlite:///{tmp_path}/lakechime.db")
    put(table, ("a", 2, 1), metadata="inline")
    with LakeChime.open(f"sqlite:///{tmp_path}/lakechime.db") as client:
        assert sync_opal(client, table).events == 0
        equal_to_log(client, table)
