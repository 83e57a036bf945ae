"""Bootstraps under kills: the driver, which is killed with its JVM."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from opal_lake.storage import open_storage
from opal_lake.table import table_on
from opal_lake.write.bootstrap import SourceTable
from tests.crash.left_overs import left_overs
from tests.crash.site import Site, site_in
from tests.crash.story import Tally
from tests.kit.check import check_table
from tests.soak.model import Model, difference
from tests.soak.rows import Batch, arrow_of, columns_from, columns_of

ROOT = Path(__file__).parents[2]
FILES = 5
KILLS_A_TABLE = 3
_START_S = 240


def write_source(folder: Path) -> Model:
    """Write a folder of Parquet files, each a batch; return the rows expected at last."""
    folder.mkdir()
    model = Model()
    for turn in range(1, FILES + 1):
        rows = columns_of(Batch(writer=2, turn=turn, tick=turn * 90))
        pq.write_table(arrow_of(rows)[0], folder / f"part-{turn}.parquet")
        model.add(rows, 0)
    return model


def crash_bootstraps(
    folder: Path, kills: int, stores: Sequence[str], dice: random.Random, tally: Tally
) -> None:
    """Kill drivers, a few for each table; let one finish, and check the table."""
    model, number, seconds = write_source(folder / "source"), 0, 0.0
    while kills > 0:
        store = dice.choice([store for store in stores if store != "s3"])
        location = site_in(folder, store, f"bootstrap-{number}", {})
        location.create()
        for _ in range(min(kills, KILLS_A_TABLE) if seconds else 0):
            killed = _start(location, folder / "source", dice.random() * seconds)
            tally.survived += not killed
            tally.kills[store, "bootstrap"] = tally.kills.get((store, "bootstrap"), 0) + killed
            kills -= 1
        began = time.monotonic()
        if _start(location, folder / "source", None):
            tally.failures.append(f"bootstrap {number} on {store}: does not come through")
            return
        seconds = seconds or (time.monotonic() - began) / 2  # the start of Spark aside
        tally.reruns += 1
        _judge(location, model, f"bootstrap {number} on {store}", tally)
        number += 1


def _start(location: Site, source: Path, kill_after_s: float | None) -> bool:
    """Return whether the driver was killed, or failed, before it was done."""
    words = [
        sys.executable,
        "-m",
        "tests.crash.spark_bootstrap",
        location.uri,
        str(source),
        location.options.get("hard_links", "true"),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark_apps")]),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (
        open(f"{location.uri}.log", "ab") as log,
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        assert driver.stdout is not None
        try:
            driver.stdout.readline()  # Spark has started
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(_START_S)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    return driver.returncode != 0


def _judge(location: Site, model: Model, where: str, tally: Tally) -> None:
    table = location.table()
    table.retain(window="0s", grace="0s")
    wrong = difference(columns_from(table.read()), model.visible(0))
    rows = sum(len(part["sku"]) for part in model.parts)
    tally.failures += [f"{where}: {wrong}"] if wrong else []
    tally.failures += (
        [f"{where}: {table.snapshot_at().root.rows} rows for {rows}"]
        if table.snapshot_at().root.rows != rows
        else []
    )
    tally.failures += [
        f"{where}: {finding}"
        for finding in (*check_table(table)[:2], *left_overs(table, location.root)[:2])
    ]


def main(uri: str, source: str, hard_links: str) -> None:
    from pyspark.sql import SparkSession

    from opal_lake.operations.ingest import Ingest
    from opal_lake.write.bootstrap_job import bootstrap
    from opal_spark.engine.java import ensure_java
    from opal_spark.spark_engine import on_spark
    from opal_spark.write.bootstrap import SparkSource

    ensure_java()
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    table = table_on(open_storage(uri, {"hard_links": hard_links}))
    reader = SparkSource(
        spark=spark, source=SourceTable(location=source, format="parquet"), batch_bytes=1
    )
    print("begun", flush=True)
    bootstrap(on_spark(spark, table), reader, Ingest(reader.source))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
