"""Tests of `lakechime sync` and `lakechime watch`."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakechime import LakeChime
from lakechime.cli import main
from opal_lake.definition.table_spec import TableLayout
from opal_lake.exit_codes import FINDINGS, INPUT, OK
from opal_lake.table import Table
from tests.fixtures_cli import SOURCES
from tests.fixtures_lakechime import wait_until
from tests.lakechime.producers.build import events_of

ROWS = pa.table({"id": [1], "at": [1]})


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("LAKECHIME_TOKEN", raising=False)
    monkeypatch.delenv("LAKECHIME_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return f"sqlite:///{tmp_path}/lakechime.db"


@pytest.fixture
def opal(tmp_path: Path) -> Table:
    layout = TableLayout(keys=["id"], delta="at", properties={"event_table": "shop.orders"})
    table = Table.create(f"{tmp_path}/orders", ROWS.schema, **asdict(layout))
    table.ingest(ROWS, metadata="inline")
    return table


def test_tables_by_words(
    capsys: pytest.CaptureFixture[str], opal: Table, tmp_path: Path, database: str
) -> None:
    write_deltalake(f"{tmp_path}/views", ROWS)
    words = (opal.uri, f"web.views=delta:{tmp_path}/views")
    assert main(["sync", *words]) == OK
    assert capsys.readouterr().out.splitlines() == [
        f"registered 2 events of 2 snapshots: {opal.uri}, up to snapshot 1",
        "registered 1 event of 1 snapshot: web.views, up to snapshot 0",
    ]
    assert main(["sync", *words]) == OK
    assert capsys.readouterr().out.splitlines() == [
        f"nothing new: {opal.uri}",
        "nothing new: web.views",
    ]
    assert main(["sync", "--json", f"again=delta:{tmp_path}/views"]) == OK
    assert json.loads(capsys.readouterr().out) == [
        {
            "table": "again",
            "cluster": "default",
            "events": 1,
            "snapshots": 1,
            "last": "0",
            "notes": [],
        }
    ]
    with LakeChime.open(database) as client:
        assert len(events_of(client, "shop.orders")) == 2


def test_failure_of_one_table_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], opal: Table, tmp_path: Path
) -> None:
    assert main(["sync", f"none=delta:{tmp_path}/none", f"shop.orders=opal:{opal.uri}"]) == FINDINGS
    shown = capsys.readouterr()
    assert "none has no Delta table" in shown.err
    assert "registered 2 events" in shown.out
    assert main(["sync", f"none=delta:{tmp_path}/none"]) == INPUT
    assert main(["sync"]) == INPUT
    assert "needs either TABLE... or --file" in capsys.readouterr().err


def test_tables_of_a_file_are_watched_until_sigterm(
    opal: Table, tmp_path: Path, database: str
) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(
        "interval: 1s\ntables:\n"
        f"  - {{format: opal, path: {opal.uri}, table: shop.orders}}\n"
        f"  - {{format: delta, path: {tmp_path}/none, table: web.none}}\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [
        sys.executable,
        "-m",
        "lakechime.cli",
        "watch",
        "--file",
        str(file),
        "--database",
        database,
    ]
    with (
        LakeChime.open(database) as client,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as watcher,
    ):
        try:
            wait_until(lambda: len(events_of(client, "shop.orders")) == 2)
            opal.ingest(pa.table({"id": [2], "at": [2]}), metadata="inline")
            wait_until(lambda: len(events_of(client, "shop.orders")) == 3)
        finally:
            watcher.send_signal(signal.SIGTERM)
        shown, said = watcher.communicate(timeout=60)
    assert watcher.returncode == OK, said
    assert "registered 1 event of 1 snapshot: shop.orders, up to snapshot 2" in shown
    assert "watching 2 tables, every 1 s" in said
    assert "none has no Delta table" in said
    assert "next look in 2 s" in said


def test_register_reads_a_partition_from_its_path_and_tags_its_completeness(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    words = [
        "register",
        "web.logs",
        "--format",
        "HIVE",
        "--path",
        "dt=2026-11-01/hour=03",
        "--complete",
        "hourly=99.0",
    ]
    assert main(words) == OK
    with LakeChime.open(database) as client:
        [event] = events_of(client, "web.logs")
    assert (event.partition, dict(event.tags)) == (
        ("2026-11-01", "03"),
        {"completeness.hourly": "99"},
    )
    assert main([*words, "--partition", "x"]) == INPUT
    assert main([*words, "--complete", "daily=much"]) == INPUT
    assert "not a percentage" in capsys.readouterr().err
