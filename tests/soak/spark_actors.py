"""The processes of a soak that run on Spark."""

import sys
from collections.abc import Callable
from itertools import cycle

from pyspark.sql import SparkSession

from opal_lake.result import JobResult
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java
from tests.soak.actor import LOOK_BACK, Actor
from tests.soak.reader import Reader
from tests.soak.rows import arrow_of, columns_of


def open_spark(actor: Actor) -> SparkSession:
    ensure_java()
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(actor.site.path / f"spark-{actor.role}"),
        "spark.pyspark.python": sys.executable,
    }
    settings |= actor.site.spark_settings()
    spark = (
        SparkSession.builder.master("local[1]")
        .appName(actor.role)
        .config(map=settings)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def upserts(actor: Actor) -> None:
    """Upsert inline and in batches in turn, and read in between.

    A MetaGen also takes up what other processes ingested.
    """
    spark = open_spark(actor)
    table = OpalTable.on(spark, actor.table)
    reader = Reader(
        site=actor.site,
        role=actor.role,
        table=actor.table,
        read=lambda **view: table.read(**view).toArrow(),
    )

    def turn() -> None:
        batch = actor.next_batch(3)
        rows = spark.createDataFrame(arrow_of(columns_of(batch))[0])
        if actor.turns % 2:
            actor.job("inline", lambda: table.ingest(rows, token=batch.token, metadata="inline"))
        else:
            actor.job("ingest", lambda: table.ingest(rows, token=batch.token))
            actor.job("metagen", table.metagen)
        reader.turn()

    while not actor.site.is_over:
        turn()
    spark.stop()


def maintenance(actor: Actor) -> None:
    """Compactions, minor and major, and Z-order."""
    spark = open_spark(actor)
    table = OpalTable.on(spark, actor.table)
    jobs: list[tuple[str, Callable[[], JobResult]]] = [
        ("compact", lambda: table.compact(target_mb=1)),
        ("zorder", lambda: table.zorder(["x", "y"], target_mb=1)),
        ("compact", lambda: table.compact(mode="major", look_back=LOOK_BACK, target_mb=1)),
    ]
    in_turn = cycle(jobs)
    actor.until_over(lambda: actor.job(*next(in_turn)), 0.5)
    spark.stop()
