"""Programs through Spark, whose expressions are those of Spark.

`python -m tests.programs.on_spark --programs 100` runs many of them, with `--connect` on Connect.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableSpec
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on, table_on
from opal_spark import OpalTable
from opal_spark.engine.java import ensure_java
from tests.programs.formulas import POOLS
from tests.programs.run import run_program

STEPS = 8
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Values with which Spark's arithmetic overflows, or its texts mean something else
_EXTREME = (
    *(-(1 << 7), (1 << 7) - 1, -(1 << 15), (1 << 15) - 1, -(1 << 31), (1 << 31) - 1),
    *((1 << 53) + 1, (1 << 63) - 1, "it's", "ä"),
)


@contextmanager
def gentle_values() -> Iterator[None]:
    """Draw only values with which Spark computes as the model does."""
    before = {kind: list(values) for kind, values in POOLS.items()}
    for kind, values in POOLS.items():
        POOLS[kind] = [value for value in values if not _is_extreme(value)]
    try:
        yield
    finally:
        POOLS.update(before)


def _is_extreme(value: Any) -> bool:
    if isinstance(value, Decimal):
        return abs(value) > 100
    is_plain = isinstance(value, int | str) and not isinstance(value, bool | datetime)
    return is_plain and value in _EXTREME


@dataclass(frozen=True, slots=True)
class Spark:
    """Tables in folders, and a session that runs their jobs."""

    spark: SparkSession
    folder: Path
    numbers: Iterator[int]
    is_spark: bool = True
    errors: tuple[type[Exception], ...] = (PySparkException,)

    def create(self, spec: TableSpec, clock: ManualClock) -> Table[Any]:
        storage = open_storage(str(self.folder / f"table-{next(self.numbers)}"))
        create_on(storage, spec)
        return OpalTable.on(self.spark, table_on(storage))

    def reopened(self, table: Table[Any]) -> Table[Any]:
        return OpalTable.for_path(self.spark, table.uri)

    def frame(self, rows: pa.Table) -> Any:
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        return self.spark.createDataFrame(rows, schema)

    def rows(self, frame: Any) -> list[Mapping[str, Any]]:
        return frame.toArrow().to_pylist()


def run_on_spark(spark: SparkSession, folder: Path, seeds: range) -> int:
    """Run programs; print those that differ from the model, and return their number."""
    engine = Spark(spark, folder, count())
    failures = 0
    with gentle_values():
        for seed in seeds:
            began = time.monotonic()
            try:
                run_program(seed, engine, STEPS)
            except Exception as error:  # noqa: BLE001  # the report has it, and others go on
                failures += 1
                notes = "\n".join(getattr(error, "__notes__", []))
                print(f"seed {seed}: {type(error).__name__}: {error}\n{notes}", flush=True)
            print(f"seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.on_spark", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--connect", action="store_true")
    args = parser.parse_args()
    ensure_java()
    builder = SparkSession.builder.config(map=SETTINGS)
    builder = builder.remote("local[2]") if args.connect else builder.master("local[2]")
    spark = builder.getOrCreate()
    assert ("connect" in type(spark).__module__) == args.connect
    with tempfile.TemporaryDirectory(prefix="opal-programs-") as folder:
        failures = run_on_spark(spark, Path(folder), range(args.seed, args.seed + args.programs))
    print(f"{args.programs} programs, {failures} failures")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
