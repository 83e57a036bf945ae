"""Another table format under the same load: an upserter, a rewriter and a reader.

Run `python -m tests.soak.peer SYSTEM FOLDER SECONDS`. All run in one Spark process, as the catalogs
and logs of the peers on local files are sound for the threads of one process only. With a single
upserter whatever fails for a conflict met a rewrite. A job that fails is run again, as a scheduler
would.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from opal_spark.engine.java import ensure_java
from tests.bench.peers.catalog import SYSTEMS
from tests.soak.model import Model, difference
from tests.soak.rows import Batch, arrow_of, columns_from, columns_of

PEERS = ("delta", "iceberg")
_DDL = "sku BIGINT, at BIGINT, x INT, y INT, price INT"
_MERGE = """
MERGE INTO {table} t USING batch s ON t.sku = s.sku
WHEN MATCHED AND s.price IS NULL THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND s.price IS NOT NULL THEN INSERT *
"""
_ICEBERG_V3 = ", ".join(
    f"'write.{operation}.mode'='merge-on-read'" for operation in ("merge", "update", "delete")
)
_ICEBERG_EAGER = "'min-input-files', '2', 'delete-file-threshold', '1'"
_SIGNS_OF_CONFLICT = (
    "Concurrent",
    "CONCURRENT",
    "ValidationException",
    "CommitFailedException",
    "Cannot commit",
)
_MAX_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What a system calls its table, and how it is made and rewritten."""

    table: str
    create: str
    rewrite: str


def statements(system: str, folder: Path) -> Statements:
    if system == "delta":
        table = f"delta.`{folder / 'table'}`"
        return Statements(
            table=table,
            create=f"CREATE TABLE {table} ({_DDL}) USING delta",
            rewrite=f"OPTIMIZE {table}",
        )
    return Statements(
        table="lake.soak.t",
        create=(
            f"CREATE TABLE lake.soak.t ({_DDL}) USING iceberg "
            f"TBLPROPERTIES ('format-version'='3', {_ICEBERG_V3})"
        ),
        rewrite=(
            "CALL lake.system.rewrite_data_files("
            f"table => 'soak.t', options => map({_ICEBERG_EAGER}))"
        ),
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one side did."""

    done: int = 0
    conflicts: int = 0
    redone_s: float = 0.0
    given_up: int = 0
    errors: list[str] = field(default_factory=list)
    first: str = ""

    def again(self, job: Callable[[], object]) -> None:
        """Run a job until it succeeds."""
        for _ in range(_MAX_TRIES):
            began = time.monotonic()
            try:
                job()
                self.done += 1
                return
            except Exception as error:  # noqa: BLE001  what the peers raise has no class in Python
                message = f"{type(error).__name__}: {error}"
                if not any(sign in message for sign in _SIGNS_OF_CONFLICT):
                    self.errors.append(message[:500])
                    return
                self.conflicts += 1
                self.redone_s += time.monotonic() - began
                self.first = self.first or " ".join(message.split())[:300]
        self.given_up += 1


@dataclass(slots=True, kw_only=True)
class PeerSoak:
    """One table of one system."""

    spark: SparkSession
    of: Statements
    seconds: float
    model: Model = field(default_factory=Model)
    turns: int = 0
    idle: int = 0  # rewrites that found nothing to do
    upserts: Tally = field(default_factory=Tally)
    rewrites: Tally = field(default_factory=Tally)
    reads: Tally = field(default_factory=Tally)
    _until: float = 0.0

    def run(self) -> None:
        self.spark.sql(self.of.create)
        for side in (self._upsert, self._upsert, self._rewrite, self._read):
            side(self.spark)  # so that code is loaded when the clock starts
        self._until = time.monotonic() + self.seconds
        threads = [
            threading.Thread(target=self._repeat, args=(side,))
            for side in (self._upsert, self._rewrite, self._read)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._read(self.spark)

    def _repeat(self, side: Callable[[SparkSession], None]) -> None:
        spark = self.spark.newSession()
        while (
            time.monotonic() < self._until
            and not self.upserts.errors + self.rewrites.errors + self.reads.errors
        ):
            try:
                side(spark)
            except Exception as error:  # noqa: BLE001  a thread that dies in silence would look like peace
                self.reads.errors.append(f"{type(error).__name__}: {error}"[:500])

    def _upsert(self, spark: SparkSession) -> None:
        rows = columns_of(Batch(writer=1, turn=self.turns + 1, tick=self.turns + 1, orderly=True))
        spark.createDataFrame(arrow_of(rows)[0]).createOrReplaceTempView("batch")
        self.model.add(rows, self.turns + 1)  # before it is there: a reader may see it at once
        self.upserts.again(lambda: spark.sql(_MERGE.format(table=self.of.table)))
        if self.upserts.given_up:
            raise AssertionError(
                "an upsert was given up: what the table holds can't be known any more"
            )
        self.turns += 1

    def _rewrite(self, spark: SparkSession) -> None:
        def job() -> None:
            result = spark.sql(self.of.rewrite).collect()[0]
            removed = (
                result["metrics"]["numFilesRemoved"]
                if "metrics" in result
                else result["rewritten_data_files_count"]
            )
            self.idle += not removed

        self.rewrites.again(job)
        time.sleep(0.5)

    def _read(self, spark: SparkSession) -> None:
        """Between the upserts that were done before it and the one that was under way after it."""

        def job() -> None:
            first = self.turns
            actual = columns_from(self._content(spark))
            verdicts = [
                difference(actual, self.model.visible(turn))
                for turn in range(self.turns + 1, first - 1, -1)
            ]
            if all(verdicts):
                raise AssertionError(verdicts[0])

        self.reads.again(job)
        time.sleep(0.5)

    def _content(self, spark: SparkSession) -> pa.Table:
        if not self.of.table.startswith("lake"):
            return spark.sql(f"SELECT * FROM {self.of.table}").toArrow()
        spark.sql(f"REFRESH TABLE {self.of.table}")
        return spark.table(self.of.table).toArrow()


def main(system: str, folder: Path, seconds: float) -> None:
    ensure_java()
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "spark-local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    settings |= SYSTEMS[system].settings(str(folder))
    if system == "iceberg":
        settings["spark.sql.catalog.lake.cache-enabled"] = (
            "false"  # each thread has a catalog of its own: all see the newest state
        )
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(f"soak {system}")
        .config(map=settings)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    soak = PeerSoak(spark=spark, of=statements(system, folder), seconds=seconds)
    soak.run()
    sides = {name: getattr(soak, name) for name in ("upserts", "rewrites", "reads")}
    content = {name: asdict(side) for name, side in sides.items()}
    rows = sum(len(part["sku"]) for part in soak.model.parts)
    (folder / "told.json").write_text(
        json.dumps(content | {"rows": rows, "idle": soak.idle}), encoding="utf-8"
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
