"""The demo of streams, whole, as `make` runs it; and its orders."""

import os
import re
import subprocess
from itertools import islice
from pathlib import Path

import psutil
import pytest

from tests.demo.stream.orders import changes

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_shows_fresh_orders_and_leaves_nothing(tmp_path: Path) -> None:
    command = ["make", "--no-print-directory", "demo", "STORY=stream", "EXIT=1"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    heads = re.findall(
        r"version (\d+): ([\d,]+) orders visible, ([\d,]+) changes sent", done.stdout
    )
    assert len(heads) >= 5
    assert int(heads[-1][0]) > int(heads[0][0])
    assert int(heads[-1][1].replace(",", "")) > 100
    freshness = [float(p95) for p95 in re.findall(r"p95 (\d+\.\d\d) s", done.stdout)]
    assert 0 < freshness[-1] < 30  # how much less depends on the machine
    assert re.search(r"^DE +\d+ +\d+ +\d+ +\d+ +[\d,.]+$", done.stdout, re.MULTILINE)
    assert not list(tmp_path.glob("opal-demo-stream-*"))
    assert not [
        process
        for process in psutil.process_iter(["environ"])
        if str(tmp_path) in str(process.info["environ"])
    ]


def test_orders_change_in_their_order_and_are_the_same_each_time() -> None:
    first = list(islice(changes(), 2_000))
    assert first == list(islice(changes(), 2_000))
    states: dict[int, str] = {}
    for change in first:
        # An order has no change after `shipped` or `cancelled`
        allowed: dict[str | None, set[str]] = {
            None: {"placed"},
            "placed": {"paid", "cancelled"},
            "paid": {"shipped", "cancelled"},
        }
        assert change["status"] in allowed[states.get(change["order_id"])]
        states[change["order_id"]] = change["status"]
    assert {"placed", "paid", "shipped", "cancelled"} == {*states.values()}
