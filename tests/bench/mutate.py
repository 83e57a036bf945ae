"""Increments of 1% and 10% of a master's rows.

`opal mutate`, the same merge in Spark alone (the limit), and with --delta Delta's MERGE.

    make bench NAME=mutate ARGS="--rows 1000000 --delta"

Half of an increment's rows are new. The master is Parquet, in one folder and in 100 partitions of
which an increment touches one. Spark alone reads the master and writes it again by one join; it
neither checks, counts nor swaps anything.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.operations.mutate import Mutate
from opal_lake.source import DELTA_CONF, PACKAGES
from opal_spark.engine.java import ensure_java
from opal_spark.mutate import mutate

SHARES = (0.01, 0.1)
PARTITIONS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--delta", action="store_true", help="also Delta's MERGE, whose package is fetched"
    )
    parser.add_argument(
        "--skew",
        action="store_true",
        help="instead: what memory it takes when all mutations are of one record",
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        help="of these increments alone, as 0.1, and not of partitions",
    )
    args = parser.parse_args()
    ensure_java()
    conf = {
        "spark.driver.memory": "1g" if args.skew else "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    conf |= {"spark.sql.shuffle.partitions": "8"}
    conf |= {**DELTA_CONF, "spark.jars.packages": PACKAGES["delta"]} if args.delta else {}
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        if args.skew:
            _skewed(spark, Path(folder), args.rows)
        for share in () if args.skew else args.shares or SHARES:
            _one_folder(spark, Path(folder) / str(share), args.rows, share, with_delta=args.delta)
        if not args.shares and not args.skew:
            _one_partition(spark, Path(folder) / "partitions", args.rows)
    spark.stop()


def _rows(spark: SparkSession, first: int, number: int, step: int, at: int) -> DataFrame:
    ids = spark.range(first, first + number * step, step).select("id")
    scattered = F.xxhash64("id")
    return ids.select(
        F.concat(F.lit("k"), F.col("id")).alias("id"),
        (scattered % 1000).alias("a"),
        (scattered / 7.0).alias("b"),
        F.sha2(F.col("id").cast("string"), 224).alias("text"),
        F.lit(at).cast("long").alias("at"),
    )


def _increment(spark: SparkSession, rows: int, share: float) -> DataFrame:
    half = max(1, int(rows * share) // 2)
    return _rows(spark, 0, half, rows // half, 2).unionByName(_rows(spark, rows, half, 1, 2))


def _one_folder(
    spark: SparkSession, folder: Path, rows: int, share: float, *, with_delta: bool
) -> None:
    master, incr = str(folder / "master"), str(folder / "incr")
    _rows(spark, 0, rows, 1, 1).write.parquet(master)
    _increment(spark, rows, share).write.parquet(incr)
    shutil.copytree(incr, f"{incr}-kept")
    _timed(f"Spark alone, {share:.0%}", lambda: _plain(spark, master, incr, str(folder / "plain")))
    if with_delta:
        spark.read.parquet(master).write.format("delta").save(str(folder / "delta"))
        _timed(f"Delta MERGE, {share:.0%}", lambda: _delta(spark, folder))
    job = Mutate(increments=[incr], ids=["id"], order="at")
    _timed(f"opal mutate, {share:.0%}", lambda: mutate(spark, master, job))
    assert spark.read.parquet(master).count() == spark.read.parquet(str(folder / "plain")).count()
    shutil.rmtree(folder)


def _plain(spark: SparkSession, master: str, incr: str, to: str) -> None:
    """One shuffle of both."""
    both = spark.read.parquet(master).unionByName(spark.read.parquet(incr))
    latest = both.groupBy("id").agg(F.max_by(F.struct("a", "b", "text", "at"), "at").alias("row"))
    latest.select("id", "row.*").write.parquet(to)


def _delta(spark: SparkSession, folder: Path) -> None:
    spark.read.parquet(str(folder / "incr-kept")).createOrReplaceTempView("increment")
    spark.sql(
        f"MERGE INTO delta.`{folder}/delta` m USING increment i ON m.id = i.id "
        "WHEN MATCHED AND i.at >= m.at THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _one_partition(spark: SparkSession, folder: Path, rows: int) -> None:
    part = (F.substring("id", 2, 20).cast("long") % PARTITIONS).cast("string")
    _rows(spark, 0, rows, 1, 1).withColumn("part", part).repartition("part").write.partitionBy(
        "part"
    ).parquet(str(folder / "master"))
    job: dict[str, Any] = {"ids": ["id"], "order": "at", "increments": [str(folder / "incr")]}
    for fixed in (False, True):
        changed = (
            _increment(spark, rows, 0.01)
            .withColumn("part", part)
            .where("part = '0'")
            .withColumn("at", F.lit(3 + fixed).cast("long"))
        )
        changed.write.mode("overwrite").parquet(str(folder / "incr"))
        name = f"opal mutate, one of {PARTITIONS} partitions" + (", fixed" if fixed else "")
        result = _timed(
            name,
            lambda fixed=fixed: mutate(
                spark, str(folder / "master"), Mutate(**job, fixed_partitions=fixed)
            ),
        )
        print(f"{'':38} {result.counts['rows_written']:,} rows written")


def _skewed(spark: SparkSession, folder: Path, rows: int) -> None:
    """Measure mutations of different records and of one, in a heap of 1 GB.

    The master has a tenth of the rows; a second run has four times as many mutations.
    """
    number = rows // 10
    for name, ids, mutations in (
        ("of different records", F.col("id"), number),
        ("of one record", F.lit("k0"), number),
        ("of different records", F.col("id"), 4 * number),
        ("of one record", F.lit("k0"), 4 * number),
    ):
        master, incr = str(folder / "master"), str(folder / "incr")
        _rows(spark, 0, number, 1, 1).write.parquet(master)
        at = F.monotonically_increasing_id() + 2
        _rows(spark, 0, mutations, 1, 2).withColumns({"id": ids, "at": at}).write.parquet(incr)
        job = Mutate(increments=[incr], ids=["id"], order="at")
        with _watched(spark) as peak:
            _timed(
                f"{mutations:,} mutations {name}",
                lambda master=master, job=job: mutate(spark, master, job),
            )
        print(
            f"{'':38} at the peak "
            f"{', '.join(f'{most / (1 << 20):,.0f} MB of {what}' for what, most in peak.items())}",
            flush=True,
        )
        shutil.rmtree(folder)


@contextmanager
def _watched(spark: SparkSession) -> Iterator[dict[str, int]]:
    """Return the peak memory of Spark's sorts and joins, and of cached rows.

    Sampled every 50 ms.
    """
    untyped: Any = spark.sparkContext
    manager = untyped._jvm.org.apache.spark.SparkEnv.get().memoryManager()
    peak, done = {"sorts and joins": 0, "kept rows": 0}, threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            for what, used in zip(
                peak, (manager.executionMemoryUsed(), manager.storageMemoryUsed()), strict=True
            ):
                peak[what] = max(peak[what], used)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _timed(name: str, run: Callable[[], Any]) -> Any:
    started_s = time.perf_counter()
    result = run()
    print(f"{name:38} {time.perf_counter() - started_s:8.1f} s", flush=True)
    return result


if __name__ == "__main__":
    main()
