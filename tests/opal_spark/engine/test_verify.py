"""Verification of ORC files, whose checksums Spark does not verify.

Workers verify many files, the driver few, and damaged bytes are never read.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import FormatError
from opal_lake.storage import open_storage
from opal_spark import OpalTable
from opal_spark.engine import verify
from tests.opal_lake.shop import create, rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("on_workers_bytes", [0, verify.ON_WORKERS_BYTES])
def test_a_damaged_file_is_named_whoever_reads_it(
    spark: SparkSession, tmp_path: Path, on_workers_bytes: int
) -> None:
    table = create(open_storage(str(tmp_path / "t")), file_format="orc")
    for key in "abc":
        table.ingest(*rows([(key, 1, 1)]), metadata="inline")
    opened = OpalTable.for_path(spark, str(tmp_path / "t"))
    assert opened.read().count() == 3
    verify._verified.clear()
    damaged = sorted((tmp_path / "t" / "data").rglob("*.orc"))[1]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    snapshot = table.snapshot_at()
    files = [*snapshot.files.values()]
    with pytest.raises(FormatError, match=rf"{damaged.name}.* is damaged"):
        verify.verify_files(spark, snapshot, files, on_workers_bytes=on_workers_bytes)
    with pytest.raises(FormatError, match=rf"{damaged.name}.* is damaged"):
        opened.read().count()
