"""The demo, whole: it runs the shop of dags/shop.opal.yaml."""

import os
import re
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.demo.shop.shop import DAYS, write_shop

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_runs_next_to_a_busy_port_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        command = ["make", "--no-print-directory", "demo", "EXIT=1", f"PORT={port}"]
        environment = {"TMPDIR": str(tmp_path)}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**_environment(), **environment},
            capture_output=True,
            text=True,
            timeout=900,
        )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"Port {port} is taken" in done.stdout
    assert re.search(r"compact is due: 3 files", done.stdout)
    assert re.search(r"3 data files became [12], as version \d+", done.stdout)
    assert re.findall(r"^ +(2026-11-0\d) +(\d) +(\d)$", done.stdout, re.MULTILINE) == [
        ("2026-11-01", "5", "2"),
        ("2026-11-02", "3", "4"),
    ]
    shown = done.stdout[done.stdout.index("Read the table now") :]
    now = shown[: shown.index("Read it as of")]
    assert re.findall(r"^ +(\d+)  \w\w  +(\w+)", now, re.MULTILINE) == [
        ("1", "paid"),
        ("3", "paid"),
        ("4", "paid"),
    ]
    totals = re.findall(r"^ +2026-11-0\d +[\d,]+ +\d+ +[\d.]+$", shown, re.MULTILINE)
    assert len(totals) == len(DAYS)
    assert not list(tmp_path.glob("opal-demo-*"))
    assert not [
        process
        for process in psutil.process_iter(["environ"])
        if str(tmp_path) in str(process.info["environ"])
    ]


def _environment() -> dict[str, str]:
    """Return an environment with a user's Airflow, which the demo must not touch."""
    return {
        **os.environ,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://me@nowhere.invalid/airflow",
        "AIRFLOW_HOME": "/nowhere",
    }


def test_write_shop_writes_the_same_files_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shop(tmp_path / name)
    for path in (tmp_path / "a").rglob("*.json"):
        second_path = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == second_path.read_bytes()
    assert len(list((tmp_path / "a" / "orders").iterdir())) == len(DAYS)
