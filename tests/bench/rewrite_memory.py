"""The memory that executors of a given size hold while they rewrite a large table.

A compaction of many small files, then a Z-order of all rows.

python -m tests.bench.rewrite_memory [--rows 20000000] [--memory 1g] [--files 200]

Two executors of one core each, in processes of their own (local-cluster). Spark grants a Python
worker the overhead that it reserves next to the heap, 384 MB at least or a tenth: what the
worker holds is printed as a share of that.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from opal_spark import OpalTable
from tests.bench.peers.fleet import bytes_of
from tests.bench.peers.memory import SAMPLE_S, Memory
from tests.bench.table import Bench, new_table, open_session, size_of, timed
from tests.fixtures_spark import spark_home

LEAST_OVERHEAD = 384 << 20
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Watch:
    """High-water marks of each executor's JVM, and of the Python workers below it."""

    def __init__(self) -> None:
        self.java: dict[int, Memory] = defaultdict(Memory)
        self.python: dict[int, Memory] = defaultdict(Memory)
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name() == "java" and any(
                        _EXECUTOR in word for word in process.cmdline()
                    ):
                        self.java[process.pid].sample([process])
                        self.python[process.pid].sample(process.children(recursive=True))
                except psutil.Error:
                    continue


def build(folder: Path, rows: int, files: int) -> None:
    """Build the table in a process of its own, with memory to spare.

    Many small files, and an update of every hundredth row.
    """
    spark = open_session()
    bench = Bench(spark=spark, folder=folder, rows=rows, rounds=1)
    table = new_table(bench, "table", "parquet")
    table.ingest(bench.batch(rows, 0, bootstrap=True).repartition(files))
    table.metagen()
    table.ingest(bench.updates(rows // 100, 1), metadata="inline")
    spark.stop()


def rewrite(folder: Path, rows: int, memory: str) -> None:
    os.environ |= {"SPARK_HOME": str(spark_home(folder)), "PYSPARK_PYTHON": sys.executable}
    settings = {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark-local"),
    }
    heap = bytes_of(memory)
    spark = (
        SparkSession.builder.master(f"local-cluster[2,1,{heap >> 20}]")
        .config(map=settings)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    bench = Bench(spark=spark, folder=folder, rows=rows, rounds=1)
    table = OpalTable.for_path(spark, str(folder / "table"))
    before = table.read().selectExpr("count(*)", "sum(v2)", "max(mod_time)").collect()
    print(
        f"{rows:,} rows, {len(table.files())} files, {size_of(folder / 'table') / 1e6:,.0f} MB; "
        f"executors of {memory}",
        flush=True,
    )
    overhead = max(LEAST_OVERHEAD, heap // 10)
    works = {
        "compaction": table.compact,
        "Z-order of 3 columns": lambda: table.zorder(["v1", "v2", "mod_time"], whole=True),
    }
    for name, work in works.items():
        watch = Watch()
        with watch.running():
            bench.note(name, timed(work), "s")
        if not watch.python:
            raise RuntimeError("no executor was seen at work; is the table too small?")
        private = max(peak.private for peak in watch.python.values())
        resident = max(peak.resident for peak in watch.python.values())
        bench.note(f"{name}: a Python worker's own memory at most", private / 1e6, "MB")
        bench.note(f"{name}: of the overhead", private / overhead, "x", 1.0)
        bench.note(f"{name}: with pages of files, of the overhead", resident / overhead, "x")
        bench.note(
            f"{name}: an executor's JVM at most",
            max(peak.resident for peak in watch.java.values()) / 1e6,
            "MB",
        )
        print(f"    {len(table.files())} files now", flush=True)
    assert table.read().selectExpr("count(*)", "sum(v2)", "max(mod_time)").collect() == before
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--memory", default="1g")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build:
        build(args.build, args.rows, args.files)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="opal-rewrite-memory-"))
    try:
        own = [
            sys.executable,
            "-m",
            "tests.bench.rewrite_memory",
            "--rows",
            str(args.rows),
            "--files",
            str(args.files),
        ]
        subprocess.run([*own, "--build", str(folder)], check=True)
        rewrite(folder, args.rows, args.memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
