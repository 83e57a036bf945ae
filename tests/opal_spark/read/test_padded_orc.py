"""Spark reads ORC files that were made larger so that readers accept what their values take."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from opal_lake.data.data_file import encode_file
from opal_lake.data.decoded_size import SizeBound
from opal_lake.definition.table_spec import TableLayout, plan_spec


def test_spark_reads_a_padded_file_as_the_plain_one(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", pa.list_(pa.string()))])
    spec = plan_spec(schema, TableLayout(keys=["k"], delta="at", file_format="orc"))
    count = np.arange(200)
    values = pa.array([["x" * 100] * 50] * 200, pa.list_(pa.string()))
    ids = {"_opal_segment": np.ones(200, np.int64), "_opal_offset": count.astype(np.int32)}
    rows = pa.table({"k": count, "at": count, "v": values, **ids})
    bound = SizeBound(least_bytes=1000, inflated=8)
    reads = []
    for name, may_pad in (("plain.orc", False), ("padded.orc", True)):
        encoded = encode_file(rows, spec, bound, may_pad=may_pad)
        (tmp_path / name).write_bytes(encoded.data)
        read = spark.read.orc(str(tmp_path / name)).orderBy("k")
        reads.append([(row.k, row.v) for row in read.where("k > 3").collect()])
    assert (tmp_path / "padded.orc").stat().st_size > 20 * (tmp_path / "plain.orc").stat().st_size
    assert reads[0] == reads[1] == [(number, ["x" * 100] * 50) for number in range(4, 200)]
