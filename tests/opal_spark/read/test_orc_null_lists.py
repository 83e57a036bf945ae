"""Lists of IN with a null: conditions have none, and Spark's own filter of ORC files fails."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.engine.failures import spark_errors


@pytest.mark.slow
def test_a_null_in_a_list_is_refused_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(6).selectExpr("id", "id AS at", "IF(id = 4, NULL, id) AS n")
    table = OpalTable.create(
        spark, str(tmp_path), rows.schema, keys=["id"], delta="at", file_format="orc"
    )
    table.ingest(rows, metadata="inline")
    with pytest.raises(InvalidInputError, match="NULL in a list of IN is never equal"):
        table.read(where="n IN (1, NULL)")
    fitting = table.read(where="n IN (1, 2) OR n IS NULL").select("id").collect()
    assert sorted(row.id for row in fitting) == [1, 2, 4]
    with pytest.raises(InvalidInputError, match="leave the NULL out"), spark_errors():
        table.read().where("n IN (1, NULL)").collect()
