"""A task's traces in its worker, and the folder where it builds files."""

import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.data.spool import spool
from opal_lake.engine.executor import Attempt
from opal_spark.engine.tasks import collect_outputs, rows_a_batch
from tests.opal_spark.build import DDL, create, frame

pytestmark = pytest.mark.spark


def test_a_worker_reads_no_archive_again_for_its_next_task(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch], _: Attempt) -> dict[str, int]:
        rows = sum(batch.num_rows for batch in batches)
        remembered = sum(
            isinstance(importer, zipimporter) for importer in sys.path_importer_cache.values()
        )
        return {
            "rows": rows,
            "on the path": sum(path.endswith(".zip") for path in sys.path),
            "remembered": remembered,
        }

    first = collect_outputs(spark.range(10, numPartitions=1), look, None)
    assert first[0]["on the path"], (
        "PySpark has no archive on the path any more: forget_archives is of no use"
    )
    again = [collect_outputs(spark.range(10, numPartitions=1), look, None)[0] for _ in range(4)]
    assert {result["rows"] for result in again} == {10}
    assert again[-1]["remembered"] == 0


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="only Linux says where a file without a name lies"
)
def test_unfinished_files_are_on_a_local_disk_of_spark(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch], _: Attempt) -> list[str]:
        assert sum(batch.num_rows for batch in batches)
        made = spool()
        return [
            os.readlink(f"/proc/self/fd/{made.file.fileno()}"),
            os.environ["SPARK_LOCAL_DIRS"].partition(",")[0],
        ]

    [[path, disk]] = collect_outputs(spark.range(10, numPartitions=1), look, None)
    assert path.startswith(f"{disk}/")


def test_batches_for_python_have_more_rows_if_the_last_ingested_rows_were_small(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, schema = create(spark, tmp_path / "table"), spark.createDataFrame([], DDL).schema
    assert rows_a_batch(schema) == rows_a_batch(schema, table.snapshot_at()) == 1024
    table.ingest(frame(spark, [("a", 1, 1)], 1))
    table.ingest(
        frame(spark, [(f"key {number}", 1, 1) for number in range(50_000)], 1), metadata="inline"
    )
    assert rows_a_batch(schema, table.snapshot_at()) == 4096
    noise = random.Random(0)
    table.ingest(frame(spark, [(noise.randbytes(10_000).hex(), 1, 1) for _ in range(2)], 1))
    assert rows_a_batch(schema, table.snapshot_at()) == 1024
