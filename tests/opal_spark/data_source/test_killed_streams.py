"""A stream whose process is killed at random moments returns every change once, in order.

OPAL_KILLS says how often it is killed.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout
from opal_lake.table import Table
from opal_spark.engine.java import ensure_java
from tests.kit.check import check_table
from tests.opal_spark.data_source.build import SCHEMA, expected, new_table, upsert

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("OPAL_KILLS", "2"))
START_SECONDS, COPY_SECONDS = 300, 600
# A worker has 10 s to connect, without a setting: on a loaded machine this is a crash like others
TOO_SLOW = "Python worker failed to connect back"


def stream(table: Table, target: Table, folder: Path, *more: str) -> "subprocess.Popen[str]":
    """Start the stream in a process group of its own, to which Spark's JVM belongs."""
    ensure_java()
    module = "tests.opal_spark.data_source.killed_stream"
    command = [
        sys.executable,
        "-m",
        module,
        table.uri,
        target.uri,
        str(folder / "checkpoint"),
        *more,
    ]
    settings = (
        "--master local[2] --conf spark.ui.enabled=false --conf "
        "spark.sql.shuffle.partitions=2 pyspark-shell"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'spark_apps'}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": settings,
    }
    errors = (folder / "errors.txt").open("a")
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )


def kill_at_random(process: "subprocess.Popen[str]", folder: Path, dice: random.Random) -> None:
    """Kill the stream while it starts, or after the start of an early micro-batch.

    Most kills come after a start: on a slow machine the first micro-batch would never end.
    """
    assert process.stdout is not None
    lines = itertools.islice(process.stdout, dice.randint(1, 3))
    begun = threading.Thread(target=lambda: [*lines], daemon=True)
    begun.start()
    begun.join(dice.uniform(1, 10) if dice.random() < 0.2 else START_SECONDS)
    time.sleep(dice.uniform(0, 4))
    assert process.poll() is None or was_too_slow(folder), "it failed before it was killed"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    begun.join()


def was_too_slow(folder: Path) -> bool:
    """Return whether the last stream of the folder failed because the machine is slow."""
    errors = folder / "errors.txt"
    is_so = TOO_SLOW in errors.read_text()
    errors.unlink()
    return is_so


def finish(table: Table, target: Table, folder: Path) -> None:
    while True:
        finished = stream(table, target, folder, "finish")
        output = finished.communicate(timeout=COPY_SECONDS)[0]
        if finished.returncode == 0:
            return
        errors = (folder / "errors.txt").read_text()[-4000:]
        assert was_too_slow(folder), (output, errors)


@contextmanager
def commits_meanwhile(table: Table, dice: random.Random) -> Iterator[None]:
    """Upserts, deletes and late rows, and now and then a compaction."""
    done = threading.Event()

    def commit() -> None:
        at = 0
        while not done.wait(dice.uniform(0, 3)):
            at += 1
            rows = [
                (key, at - dice.choice((0, 0, 0, 3)), dice.choice(("Rom", "Bonn", None)))
                for key in dice.sample(range(20), 6)
            ]
            upsert(table, *rows)
            if at % 7 == 0:
                table.compact()

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_that_is_killed_has_every_change_once_and_in_order(tmp_path: Path) -> None:
    dice = random.Random(
        seed := os.environ.get("OPAL_SEED", random.SystemRandom().randrange(1 << 32))
    )
    print("seed", seed)
    table = new_table(tmp_path / "source")
    columns = pa.schema([*SCHEMA, pa.field("kind", pa.string()), pa.field("version", pa.int64())])
    layout = TableLayout(
        keys=["id", "version", "kind"], delta="version", properties={"fold_files": 0}
    )
    target = Table.create(str(tmp_path / "target"), columns, **asdict(layout))
    with commits_meanwhile(table, dice):
        for _ in range(KILLS):
            kill_at_random(stream(table, target, tmp_path), tmp_path, dice)
            print(f"killed; the target has {target.snapshot_at().version} versions", flush=True)
    finish(table, target, tmp_path)
    copied = [
        (row["version"], row["id"], row["kind"], row["city"]) for row in target.read().to_pylist()
    ]
    changes = expected(table, 0)
    assert sorted(copied) == changes
    assert sum(file.rows for file in target.snapshot_at().files.values()) == len(changes), (
        "none was written twice"
    )
    assert_rising(target)
    assert check_table(target) == []


def assert_rising(target: Table) -> None:
    """Assert that micro-batches hold consecutive versions of the source."""
    last = 0
    for version in range(1, target.snapshot_at().version + 1):
        versions = target.changes(version, version)["version"].to_pylist()
        if versions:
            assert min(versions) > last
            last = max(versions)
