"""The costs of a table next to their limits, in one run on one machine.

Every figure is a ratio to the same work without a table.

python tests/bench/table.py --rows 10000000 [--rounds 5] [--formats parquet,orc] [--json FILE]
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.table import Table
from opal_spark import OpalTable
from opal_spark.engine.scan import scan_files

FIVE: list[Column | str] = ["count(*)", "sum(v1)", "sum(v2)", "max(c)", "max(key)", "max(mod_time)"]
TWO: list[Column | str] = ["count(*)", "sum(v1)", "sum(v2)"]
INVALID = 0.06


@dataclass(kw_only=True)
class Bench:
    """One run: where it writes, how large it is, and its figures."""

    spark: SparkSession
    folder: Path
    rows: int
    rounds: int
    figures: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, value: float, unit: str, aim: float | None = None) -> None:
        self.figures[name] = round(value, 3)
        aimed = ""
        if aim is not None:
            outcome = "ok" if value <= aim else "MISSED"
            aimed = f"   aim <= {aim:g}  {outcome}"
        print(f"{name:<58} {value:8.2f} {unit:<2}{aimed}", flush=True)

    def batch(self, count: int, seed: int, *, bootstrap: bool = False) -> DataFrame:
        """Distinct keys scattered over the table; of an upsert half are new."""
        key = (
            F.col("id")
            if bootstrap
            else (F.col("id") * 7_368_787 + seed * 104_729) % (2 * self.rows)
        )
        return self._rows(count, seed, key)

    def updates(self, count: int, seed: int) -> DataFrame:
        """Distinct keys that all exist, scattered evenly."""
        return self._rows(count, seed, (F.col("id") * 7_368_787) % self.rows)

    def _rows(self, count: int, seed: int, key: Column) -> DataFrame:
        return self.spark.range(0, count, 1, 2).select(
            F.format_string("user-%012d", key).alias("key"),
            (F.lit(1_700_000_000_000 + seed * 1_000_000_000) + F.col("id")).alias("mod_time"),
            F.rand(3).alias("v1"),
            (F.rand(4) * 1000).cast("int").alias("v2"),
            F.concat(F.lit("city"), (F.rand(5) * 1000).cast("int").cast("string")).alias("c"),
        )


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def new_table(bench: Bench, name: str, file_format: str, **properties: int) -> OpalTable:
    path = bench.folder / name
    shutil.rmtree(path, ignore_errors=True)
    schema = bench.batch(1, 1).schema
    return OpalTable.create(
        bench.spark,
        str(path),
        schema,
        keys=["key"],
        delta="mod_time",
        file_format=file_format,
        properties=properties,
    )


def bench_ingest(bench: Bench, file_format: str) -> OpalTable:
    """Bulk ingest against Spark's own write of the same rows, in turns."""
    rows = bench.batch(bench.rows, 1, bootstrap=True)
    plain, opal = [], []
    for number in range(bench.rounds):
        target = bench.folder / f"plain-{number}"
        plain.append(timed(lambda target=target: rows.write.format(file_format).save(str(target))))
        shutil.rmtree(target)
        table = new_table(bench, f"table-{file_format}", file_format)
        opal.append(timed(lambda table=table: table.ingest(rows)))
    limit = statistics.median(plain)
    bench.note(f"{file_format}: plain write of {bench.rows:,} rows", limit, "s")
    bench.note(f"{file_format}: bulk ingest", statistics.median(opal), "s")
    bench.note(
        f"{file_format}: bulk ingest / plain write", statistics.median(opal) / limit, "x", 1.2
    )
    bench.note(f"{file_format}: MetaGen of {bench.rows:,} new keys", timed(table.metagen), "s")
    return table


def bench_scan(bench: Bench, table: OpalTable, file_format: str) -> None:
    """Compare the current view with an unfiltered scan of the same files.

    6% of every segment are invalid.
    """
    table.ingest(bench.updates(int(bench.rows * INVALID), 2))
    table.metagen()
    shares = [row["rows_invalid"] / row["rows"] for row in table.segments() if row["rows_invalid"]]
    print(
        f"{file_format}: invalid rows a segment: {min(shares):.1%} to {max(shares):.1%} of "
        f"{len(shares)} segments",
        flush=True,
    )
    compare_scans(bench, table, file_format)


def compare_scans(bench: Bench, table: OpalTable, file_format: str, when: str = "") -> None:
    snapshot = table.snapshot_at()

    def unfiltered() -> DataFrame:
        files = list(snapshot.files.values())
        return scan_files(bench.spark, snapshot.storage, files, snapshot.spec)

    for name, wanted, aim in (("5 columns", FIVE, 1.10), ("2 columns", TWO, 1.7)):
        times: dict[str, list[float]] = {"limit": [], "ours": []}
        for _ in range(bench.rounds + 1):
            times["limit"].append(
                timed(lambda wanted=wanted: unfiltered().selectExpr(*wanted).collect())
            )
            times["ours"].append(
                timed(lambda wanted=wanted: table.read().selectExpr(*wanted).collect())
            )
        limit, opal = (statistics.median(values[1:]) for values in times.values())
        bench.note(f"{file_format}: unfiltered scan, {name}{when}", limit, "s")
        bench.note(
            f"{file_format}: current view / unfiltered scan, {name}{when}", opal / limit, "x", aim
        )


def bench_upserts(bench: Bench, table: OpalTable, file_format: str) -> None:
    """Compare an upsert in both modes with the plain append of its batch.

    Bytes of merges of runs in passing count as written by the upsert.
    """
    target, path = bench.folder / "plain-append", Path(table.uri)
    for seed, (count, batch_aim, inline_aim) in enumerate(
        ((bench.rows // 100, 4.0, 3.0), (bench.rows // 10, 3.0, 2.5)), 10
    ):
        times: dict[str, list[float]] = {"plain": [], "ingest": [], "metagen": [], "inline": []}
        sizes: dict[str, list[int]] = {"plain": [], "batch": [], "inline": []}
        for turn in range(bench.rounds + 1):
            for mode in ("plain", "batch", "inline"):
                rows, folder = (
                    bench.batch(count, seed * 100 + 2 * turn + (mode == "inline")),
                    target if mode == "plain" else path,
                )
                before = size_of(folder)
                if mode == "plain":
                    times[mode].append(
                        timed(
                            lambda rows=rows: (
                                rows.write.mode("append").format(file_format).save(str(target))
                            )
                        )
                    )
                elif mode == "inline":
                    times[mode].append(
                        timed(lambda rows=rows: table.ingest(rows, metadata="inline"))
                    )
                else:
                    times["ingest"].append(timed(lambda rows=rows: table.ingest(rows)))
                    times["metagen"].append(timed(table.metagen))
                sizes[mode].append(size_of(folder) - before)
        limit, ingest, metagen, inline = (
            statistics.median(values[1:]) for values in times.values()
        )
        name = f"{file_format}, {count:,} rows"
        bench.note(f"{name}: plain append", limit, "s")
        bench.note(f"{name}: ingest / plain append", ingest / limit, "x")
        bench.note(f"{name}: MetaGen / plain append", metagen / limit, "x", batch_aim)
        bench.note(f"{name}: inline ingest / plain append", inline / limit, "x", inline_aim)
        for mode, aim in (("batch", 2.0), ("inline", 1.5)):
            bench.note(
                f"{name}: bytes written a byte upserted, {mode}",
                statistics.median(sizes[mode]) / statistics.median(sizes["plain"]),
                "x",
                aim,
            )
            bench.note(
                f"{name}: the same with merges, {mode}", sum(sizes[mode]) / sum(sizes["plain"]), "x"
            )


def bench_many(bench: Bench, table: OpalTable, file_format: str, upserts: int) -> None:
    """Upserts in a row, with nothing else done to the table.

    The last ones against the first, and then a read.
    """
    count = max(1000, bench.rows // 1000)
    times = [
        timed(lambda turn=turn: table.ingest(bench.batch(count, 5000 + turn), metadata="inline"))
        for turn in range(upserts)
    ]
    name = f"{file_format}, {upserts} inline upserts of {count:,} rows"
    bench.note(
        f"{name}: the last ten / the first ten", sum(times[-10:]) / sum(times[:10]), "x", 1.3
    )
    bench.note(f"{name}: slowest / median", max(times) / statistics.median(times), "x")
    uri = table.uri
    bench.note(
        f"{name}: opening after them",
        statistics.median(timed(lambda: Table.open(uri)) for _ in range(21)) * 1000,
        "ms",
    )
    compare_scans(bench, table, file_format, " after them")


def bench_opening(bench: Bench) -> None:
    """Measure opening by the number of commits, and starting to read by that of files."""
    times = {}
    table = new_table(bench, "table-commits", "parquet")
    uri, row = table.uri, bench.batch(1, 1).toArrow()
    for number in range(1, 2001):
        table.ingest(row, token=f"commit-{number}")
        if number in (20, 2000):
            times[number] = statistics.median(timed(lambda: Table.open(uri)) for _ in range(21))
    bench.note("opening a table after 20 commits", times[20] * 1000, "ms")
    bench.note("opening after 2,000 commits / after 20", times[2000] / times[20], "x", 2.0)
    many = new_table(bench, "table-files", "parquet", segment_rows=100)
    many.ingest(bench.batch(500_000, 1, bootstrap=True))
    many.metagen()
    many.read().count()
    bench.note(
        f"starting to read {len(many.files()):,} files (until the DataFrame is there)",
        timed(many.read),
        "s",
        2.0,
    )


def open_session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]").appName("bench").config("spark.driver.memory", "8g")
    )
    builder = builder.config("spark.sql.shuffle.partitions", "4").config(
        "spark.ui.enabled", "false"
    )
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default="parquet,orc")
    parser.add_argument("--upserts", type=int, default=200, help="of the row of inline upserts")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="opal-bench-"))
    bench = Bench(spark=open_session(), folder=folder, rows=asked.rows, rounds=asked.rounds)
    try:
        bench.spark.range(1_000_000).selectExpr("sum(id)").collect()
        for file_format in asked.formats.split(","):
            table = bench_ingest(bench, file_format)
            bench_scan(bench, table, file_format)
            bench_upserts(bench, table, file_format)
            bench_many(bench, table, file_format, asked.upserts)
        bench_opening(bench)
    finally:
        bench.spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        asked.json.write_text(json.dumps(bench.figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
