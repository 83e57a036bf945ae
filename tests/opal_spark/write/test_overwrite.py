"""Overwrites on Spark: conditions of Spark's, types, changing sources, and both engines alike."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake import layout
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.table import Table, table_on
from opal_spark import OpalTable
from tests.opal_spark.twin import arrow_of

DDL = "id BIGINT, at INT, day DATE, value INT"
Row = tuple[int, int, str | None, int]


def rows_of(spark: SparkSession, *rows: Row) -> DataFrame:
    texts = spark.createDataFrame(list(rows), "id BIGINT, at INT, day STRING, value INT")
    return texts.withColumn("day", F.col("day").cast("date")).coalesce(1)


def create(spark: SparkSession, path: Path, delta: str = "at") -> OpalTable:
    schema = spark.createDataFrame([], DDL).schema
    return OpalTable.create(
        spark, str(path), schema, keys=["id"], delta=delta, partition_by=["day"]
    )


def content(table: Table[Any]) -> list[Row]:
    rows = table.read(columns=["id", "at", "day", "value"])
    values = [row.asDict() for row in rows.collect()] if isinstance(rows, DataFrame) else None
    if values is None:
        values = rows.to_pylist()
    return sorted((v["id"], v["at"], str(v["day"]), v["value"]) for v in values)


FIRST: list[Row] = [(1, 1, "2026-01-01", 1), (2, 1, "2026-01-01", 2), (3, 1, None, 3)]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> OpalTable:
    created = create(spark, tmp_path / "t")
    created.upsert(rows_of(spark, *FIRST))
    return created


def test_a_condition_may_be_a_column_or_a_text_of_spark(
    spark: SparkSession, table: OpalTable
) -> None:
    where = F.year("day") == 2026
    counts = table.overwrite(rows_of(spark, (1, 1, "2026-01-02", 9)), where=where).counts
    assert (counts["updated"], counts["deleted"]) == (1, 1)
    with pytest.raises(InvalidInputError, match=r'row of key \{"id":7\} is outside of the rows'):
        table.overwrite(rows_of(spark, (7, 1, None, 9)), where="year(t.day) = 2026")
    assert content(table) == [(1, 1, "2026-01-02", 9), (3, 1, "None", 3)]
    assert table.check() == []


def test_keys_and_columns_of_narrower_types_are_stored_as_the_tables(
    spark: SparkSession, table: OpalTable
) -> None:
    rows = spark.sql("SELECT 1 AS ID, 1S AS at, DATE '2026-01-01' AS Day, 5Y value")
    counts = table.overwrite(rows, partitions="dynamic").counts
    assert (counts["inserted"], counts["updated"], counts["deleted"]) == (0, 1, 1)
    assert content(table) == [(1, 1, "2026-01-01", 5), (3, 1, "None", 3)]


@pytest.mark.parametrize("has_column", [True, False])
def test_an_overwrite_takes_partitions_and_conditions_by_computed_values(
    spark: SparkSession, tmp_path: Path, has_column: bool
) -> None:
    schema = spark.createDataFrame([], "id BIGINT, at TIMESTAMP, `the day` DATE").schema
    table = OpalTable.create(
        spark,
        str(tmp_path / "t"),
        schema,
        keys=["id"],
        delta="at",
        partition_by=["the day"],
        generated={"the day": "date(at)"},
    )

    def row(key: int, hours: int) -> DataFrame:
        at = f"timestamp_seconds({hours} * 3600) AS AT"
        given = spark.sql(f"SELECT {key}L AS id, {at}, CAST(NULL AS DATE) AS `the day`")
        return given if has_column else given.drop("the day")

    def keys() -> list[int]:
        return sorted(shown["id"] for shown in table.read().collect())

    table.upsert(row(1, 0).union(row(2, 23)).union(row(3, 24)))
    done = table.overwrite(row(4, 5), partitions="dynamic")
    assert (done.counts["inserted"], done.counts["deleted"]) == (1, 2)
    assert keys() == [3, 4]
    assert table.overwrite(row(5, 8), where="`the day` = DATE '1970-01-01'").counts["deleted"] == 1
    with pytest.raises(InvalidInputError, match="outside of the rows that it replaces"):
        table.overwrite(row(6, 8), where="`the day` IS NULL")
    assert keys() == [3, 5]
    assert table.check() == []


def test_a_source_that_changes_from_read_to_read_is_an_error(
    spark: SparkSession, table: OpalTable
) -> None:
    # The time of a query is the same in all its rows, and another one in the next query
    days = (F.unix_micros(F.current_timestamp()) % 1_000_000).cast("int")
    day = F.date_add(F.lit("2026-01-01").cast("date"), days)
    changing = rows_of(spark, *FIRST).withColumn("day", day)
    with pytest.raises(InvalidInputError, match="outside of the rows that it replaces"):
        table.overwrite(changing, partitions="dynamic")
    assert len(content(table)) == 3


def test_a_row_of_another_job_may_be_in_a_region_that_only_spark_understands(
    spark: SparkSession, table: OpalTable
) -> None:
    other = arrow_of(table)
    rows = rows_of(spark, (1, 1, "2026-01-01", 9))
    late = rows_of(spark, (9, 1, "2027-01-01", 9)).toArrow()
    store = Overtaken(table.storage, lambda: other.upsert(late))
    overtaken = OpalTable.on(spark, table_on(store))
    with pytest.raises(ConflictError, match=r'added rows among.*\{"id": 9\}'):
        overtaken.overwrite(rows, where="year(day) = 2026", tries=1)
    # This engine can test the rows of other jobs
    overtaken.overwrite(rows, where="day <= DATE '2026-12-31'", tries=1)
    assert content(table) == [(1, 1, "2026-01-01", 9), (3, 1, "None", 3), (9, 1, "2027-01-01", 9)]


@dataclass(slots=True)
class Overtaken(ForwardingStore):
    """A store in which another job commits after a job has claimed a number.

    Workers get the store below.
    """

    inner: Storage
    interfere: Callable[[], object]

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        is_put = self.inner.put_if_absent(path, data)
        if is_put and layout.claim_number(path) is not None:
            self.interfere()
        return is_put

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _itself, (self.inner,)


def _itself(storage: Storage) -> Storage:
    return storage


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_overwrites_make_the_same_rows_on_both_engines(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    on_spark, local = create(spark, tmp_path / "spark"), create(spark, tmp_path / "local")
    on_arrow = arrow_of(local)
    for _ in range(8):
        days = ["2026-01-01", "2026-01-02", None]
        keys = rng.sample(range(6), rng.randint(1, 4))
        values: list[Row] = [
            (key, rng.randint(1, 3), rng.choice(days), rng.randint(1, 70)) for key in keys
        ]
        rows, number = rows_of(spark, *values), rng.random()
        expected = outcome(on_arrow, rows.toArrow(), number)
        assert outcome(on_spark, rows, number) == expected
        assert content(on_spark) == content(on_arrow)
    assert on_spark.check() == []


def outcome(table: Any, rows: Any, seed: float) -> Any:
    """Return the counts of a random job, or the beginning of its error."""
    rng = random.Random(seed)
    kind = rng.choice(["all", "dynamic", "where", "drop", "replace", "replace"])
    where = rng.choice(["value < 30", "day = DATE '2026-01-01'", "t.day IS NULL OR value > 40"])
    key, metadata = rng.choice(["a", "b"]), rng.choice(["batch", "inline"])
    day = rng.choice(["2026-01-01", None])
    try:
        if kind == "drop":
            result = table.drop_partition(day=day)
        elif kind == "replace":
            result = table.ingest(rows, mode="replace", partition_key=key, metadata=metadata)
            table.metagen(partition_key=key)
        elif kind == "all":
            result = table.overwrite(rows)
        elif kind == "dynamic":
            result = table.overwrite(rows, partitions="dynamic")
        else:
            result = table.overwrite(rows, where=where)
    except InvalidInputError as error:
        return str(error).split(":")[0]
    names = ("inserted", "updated", "deleted", "ended", "replaced")
    return [result.counts.get(name) for name in names]
