"""A condition has the same answers on Arrow and on Spark, whatever the session's settings are."""

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.definition.conditions.condition import SOME_ROW, Condition, condition
from opal_lake.definition.conditions.printer import text_of
from opal_lake.definition.schema import schema_of_arrow
from opal_lake.errors import InvalidInputError
from opal_spark import OpalTable
from opal_spark.engine.conditions import answers, filtered
from opal_spark.engine.failures import as_opal_error
from tests.opal_lake.definition.conditions.drawn import SCHEMA, Drawing, drawn_rows

FIELDS = schema_of_arrow(SCHEMA).fields
ROW = "the row"
SETTINGS = [
    {},
    {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "America/Los_Angeles",
        "spark.sql.caseSensitive": "true",
    },
    {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.parser.escapedStringLiterals": "true",
    },
    {
        "spark.sql.session.timeZone": "Pacific/Apia",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.optimizer.inSetConversionThreshold": "0",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    },
]


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def drawn_conditions(chance: random.Random, count: int) -> Iterator[Condition]:
    drawing = Drawing(chance)
    while count:
        text = text_of(drawing.condition(chance.randint(0, 4)))
        try:
            made = condition(text, FIELDS)
        except InvalidInputError as error:
            if "digits" not in str(error) and "division" not in str(error):
                raise
            continue
        yield made
        count -= 1


def frame_of(spark: SparkSession, folder: Path, table: pa.Table) -> DataFrame:
    """Return the rows of a file, where no time zone changes their times.

    A text of another collation is compared by code points all the same.
    """
    file = folder / "rows.parquet"
    pq.write_table(table, file)
    rows = spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(str(file))
    return rows.withColumn("txt", F.collate("txt", "UTF8_LCASE"))


def compare(spark: SparkSession, folder: Path, seed: int, *, rows: int, conditions: int) -> int:
    """Compare both engines' answers; return how many conditions fail in some row."""
    chance = random.Random(seed)
    table = drawn_rows(chance, rows)
    [batch] = table.combine_chunks().to_batches()
    numbered = table.append_column(ROW, pa.array(range(rows), pa.int32()))
    frame = frame_of(spark, folder, numbered)
    drawn = list(drawn_conditions(chance, conditions))
    expected, columns = [], []
    failing = []
    for number, made in enumerate(drawn):
        given = made.answers(batch)
        failed = [] if given.failed is None else given.failed.to_pylist()
        wanted, column = given.values.to_pylist(), answers(made)
        if any(failed):
            failing.append((made, failed.index(True)))
            wanted = [None if bad else value for bad, value in zip(failed, wanted, strict=True)]
            good = [row for row, bad in enumerate(failed) if not bad]
            column = F.when(F.col(f"`{ROW}`").isin(good), column)
        expected.append(wanted)
        columns.append(column.alias(f"c{number}"))
    by_spark = frame.select(F.col(f"`{ROW}`").alias("row"), *columns).toArrow().sort_by("row")
    for number, made in enumerate(drawn):
        of_arrow, of_spark = expected[number], by_spark[f"c{number}"].to_pylist()
        if of_arrow != of_spark:
            row = next(row for row in range(rows) if of_arrow[row] != of_spark[row])
            values = {name: table[name][row].as_py() for name in made.column_names}
            pytest.fail(f"{made.text}: Arrow {of_arrow[row]}, Spark {of_spark[row]} for {values}")
    check_failures(frame, failing[:3])
    return len(failing)


def check_failures(frame: DataFrame, failing: list[tuple[Condition, int]]) -> None:
    for made, row in failing:
        rows = frame.where(F.col(f"`{ROW}`") == row)
        with pytest.raises(Exception, match=re.escape(made.failure_in(SOME_ROW))) as caught:
            filtered(rows.repartition(1), made).collect()
        error = as_opal_error(caught.value)
        assert isinstance(error, InvalidInputError)
        assert made.failure in str(error)


@pytest.mark.parametrize("values", SETTINGS, ids=range(len(SETTINGS)))
def test_random_conditions_select_the_same_rows_in_arrow_and_spark(
    spark: SparkSession, tmp_path: Path, values: dict[str, str]
) -> None:
    with settings(spark, values):
        assert compare(spark, tmp_path, SETTINGS.index(values), rows=120, conditions=150)


def test_a_division_by_zero_fails_the_ingest_and_names_the_condition(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("a", 1, 5), ("b", 1, 0)], "id STRING, at BIGINT, n INT")
    table = OpalTable.create(
        spark, str(tmp_path), rows.schema, keys=["id"], delta="at", deletes="10 / n > 2"
    )
    for metadata in ("batch", "inline"):
        with pytest.raises(InvalidInputError, match="'10 / n > 2' divides by zero in some row"):
            table.ingest(rows, metadata=metadata)
    assert table.read().count() == 0
    table.ingest(rows.where("n > 0").selectExpr("id", "at", "CAST(n AS TINYINT) AS n"))
    table.metagen()
    assert table.read(where="n = 5 AND 10 / n = 2").count() == 1


def test_a_long_chain_with_divisions_fits_sparks_stack(spark: SparkSession) -> None:
    fields = schema_of_arrow(pa.schema([("id", pa.int64())])).fields
    text = " AND ".join(
        ["10 / id > 1", *[f"id <> {number}" for number in range(200)], "7 % id = 1"]
    )
    rows = spark.range(3, 900)
    assert filtered(rows, condition(f"id <> 0 AND NOT ({text})", fields)).count() == 897
    with pytest.raises(Exception, match="divides by zero"):
        filtered(spark.range(1), condition(text, fields)).count()


@pytest.mark.slow(seconds=300)
def test_thousands_of_conditions_select_the_same_rows_in_arrow_and_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    end = time.monotonic() + 240
    seed = 1000
    while time.monotonic() < end or seed < 1010:
        with settings(spark, SETTINGS[seed % len(SETTINGS)]):
            compare(spark, tmp_path, seed, rows=300, conditions=300)
        seed += 1
