"""The public face on real Spark: reads return what the model returns, for all types."""

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import opal_spark
from opal_lake.cli import main
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.exit_codes import OK
from opal_lake.operations.job_spec import JobSpec
from opal_spark import OpalTable
from opal_spark.submit.jobs import run_job
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import content, create, frame
from tests.opal_spark.twin import arrow_of


def contents(reads: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """Return the content of several reads, in one job."""
    named = [
        rows.select(F.lit(name).alias("read"), "sku", "at", "price") for name, rows in reads.items()
    ]
    rows_of: dict[str, list[Row]] = {name: [] for name in reads}
    for row in reduce(DataFrame.union, named).collect():
        rows_of[row.read].append((row.sku, row.at, row.price))
    return {name: sorted(rows) for name, rows in rows_of.items()}


def history(seed: int) -> Iterator[list[Row]]:
    """Yield batches with late, repeated and deleted rows.

    No two rows have the same delta, so that the order of arrival does not matter.
    """
    dice = random.Random(seed)
    moments = dice.sample(range(1000), 60)
    for _ in range(dice.randrange(2, 5)):
        size = dice.randrange(1, 9)
        yield [
            (
                f"k{dice.randrange(4)}",
                moments.pop(),
                dice.randrange(99) if dice.random() < 0.8 else None,
            )
            for _ in range(size)
        ]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 27), marks=pytest.mark.slow)])
def test_histories_read_as_the_model_says(
    spark: SparkSession, tmp_path: Path, file_format: str, seeds: range
) -> None:
    for seed in seeds:
        print("seed", seed)
        table = create(
            spark,
            tmp_path / f"table-{seed}",
            file_format,
            checkpoint_commits=2,
            segment_rows=3,
            key_store_fan_in=2,
        )
        dice = random.Random(seed)
        batches: list[list[Row]] = []
        versions: list[int | None] = []
        for batch in history(seed):
            inline = dice.random() < 0.5
            result = table.ingest(
                frame(spark, batch, dice.randrange(1, 4)), metadata="inline" if inline else "batch"
            )
            versions.append(result.version if inline else table.metagen().version)
            batches.append(batch)
        reads, expected = {"now": table.read()}, {"now": latest(batches)}
        for done, version in enumerate(versions, start=1):
            moment = dice.randrange(1000)
            reads |= {
                f"{version}": table.read(version=version),
                f"{version} {moment}": table.read(version=version, event_time=moment),
            }
            expected |= {
                f"{version}": latest(batches[:done]),
                f"{version} {moment}": latest(batches[:done], moment),
            }
        assert contents(reads) == expected, seed
        assert table.check() == []


def test_spark_and_the_pure_core_share_one_table(spark: SparkSession, tmp_path: Path) -> None:
    """Key hashes, row ids and events are the same bytes, whoever wrote them."""
    from tests.opal_lake.shop import content as pure_content
    from tests.opal_lake.shop import rows

    table = create(spark, tmp_path / "table")
    first, second, third = (
        [("a", 1, 1), ("b", 1, 2)],
        [("a", 2, 3), ("c", 1, 4)],
        [("a", 3, None), ("c", 0, 9)],
    )
    table.ingest(frame(spark, first))
    table.metagen()
    arrow_of(table).ingest(*rows(second))
    table.metagen()
    table.ingest(frame(spark, third))
    table.metagen()
    assert content(table.read()) == pure_content(arrow_of(table)) == latest([first, second, third])


def test_format_opal_reads_the_same_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "table")
    for batch in ([("a", 1, 1), ("b", 1, 2)], [("a", 2, 3), ("b", 2, None)]):
        table.ingest(frame(spark, batch))
        table.metagen()
    opal_spark.register(spark)
    path = str(tmp_path / "table")
    assert content(spark.read.format("opal").load(path)) == [("a", 2, 3)]
    assert content(spark.read.format("opal").option("version", "2").load(path)) == [
        ("a", 1, 1),
        ("b", 1, 2),
    ]
    assert content(spark.read.format("opal").option("event_time", "1").load(path)) == [
        ("a", 1, 1),
        ("b", 1, 2),
    ]
    spark.read.format("opal").load(path).createOrReplaceTempView("shop")
    assert spark.sql("SELECT sum(price) AS s FROM shop").collect()[0].s == 3


def test_reads_prune_columns_and_files(spark: SparkSession, tmp_path: Path) -> None:
    schema = spark.createDataFrame(
        [], "day DATE, id INT, at TIMESTAMP, amount DECIMAL(10,2)"
    ).schema
    table = OpalTable.create(
        spark, str(tmp_path / "table"), schema, keys=["id"], delta="at", partition_by=["day"]
    )
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 9)]
    rows = [(day.date(), number, day, Decimal(number)) for number, day in enumerate(days)]
    table.ingest(spark.createDataFrame(rows, schema))
    table.metagen()
    assert len(table.files()) == 8
    fitting = table.read(columns=["amount"], where="day = DATE'2026-11-03' AND id < 100")
    assert [row.asDict() for row in fitting.collect()] == [{"amount": Decimal("2.00")}]
    assert len(fitting.inputFiles()) == 1
    assert table.read(where="id >= 6").count() == 2


def test_columns_that_are_not_a_schema_of_spark_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns: Any = "id STRING, at BIGINT"
    with pytest.raises(InvalidInputError, match=r"write StructType\.fromDDL"):
        OpalTable.create(spark, str(tmp_path), columns, keys=["id"], delta="at")


def test_a_row_may_move_between_partitions(spark: SparkSession, tmp_path: Path) -> None:
    schema = spark.createDataFrame([], "city STRING, id INT, at INT").schema
    table = OpalTable.create(
        spark, str(tmp_path / "table"), schema, keys=["id"], delta="at", partition_by=["city"]
    )
    for batch in ([("Köln / Süd", 1, 1), (None, 2, 1)], [("", 1, 2), ("a=b%", 2, 2)]):
        table.ingest(spark.createDataFrame(batch, schema))
        table.metagen()
    assert sorted((row.city, row.id, row.at) for row in table.read().collect()) == [
        ("", 1, 2),
        ("a=b%", 2, 2),
    ]
    assert sorted(str(row.city) for row in table.read(version=2).collect()) == [
        "Köln / Süd",
        "None",
    ]


def test_the_same_token_twice_applies_once(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "table")
    first = table.ingest(frame(spark, [("a", 1, 1)]), token="t")
    again = table.ingest(frame(spark, [("a", 1, 1)]), token="t")
    assert (again.version, again.counts, again.repeated) == (first.version, first.counts, True)
    with pytest.raises(InvalidInputError, match="used by the ingest of version 1"):
        table.metagen(token="t")
    assert table.ingest(frame(spark, [("b", 1, 1)]), application=("stream", 7)).version == 2
    assert table.ingest(frame(spark, [("b", 1, 1)]), application=("stream", 7)).repeated
    assert table.ingest(frame(spark, [("b", 2, 1)]), application=("stream", 8)).version == 3


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_both_zeros_are_found_and_null_structs_move_nothing(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    ddl = "id INT, f DOUBLE, s STRUCT<g: FLOAT, t: STRUCT<n: INT>>"
    rows = spark.createDataFrame(
        [(1, -0.0, (-0.0, None)), (2, -0.0, (-0.0, (5,))), (3, -0.0, (-0.0, (6,)))], ddl
    ).coalesce(1)
    table = OpalTable.create(
        spark, str(tmp_path / "t"), rows.schema, keys=["id"], delta="id", file_format=file_format
    )
    table.ingest(rows, metadata="inline")
    for where in ("f = 0.0", "f >= 0.0", "f IN (0.0, 7.0)", "s.g = 0.0"):
        assert table.read(where=where).count() == table.read().where(where).count() == 3, where
    table.compact()
    assert [row.n for row in table.read().selectExpr("id", "s.t.n").orderBy("id").collect()] == [
        None,
        5,
        6,
    ]


def test_points_that_cannot_be_read_name_the_readable_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create(spark, tmp_path / "table")
    with pytest.raises(NotFoundError, match="the readable versions are 0 to 0"):
        table.read(version=5)
    with pytest.raises(NotFoundError, match="its oldest version 0 was committed at"):
        table.read(timestamp="2001-01-01T00:00:00Z")
    with pytest.raises(InvalidInputError, match="give only one of them"):
        table.read(version=0, timestamp="2001-01-01T00:00:00Z")
    with pytest.raises(NotFoundError, match="is not an Opal table"):
        OpalTable.for_path(spark, str(tmp_path))
    with pytest.raises(InvalidInputError, match="no column 'nope'"):
        table.read(columns=["nope"])
    with pytest.raises(InvalidInputError, match="where"):
        table.read(where="nope = 1")
    with pytest.raises(InvalidInputError, match="columns='sku' is a text; give a list"):
        table.read(columns="sku")
    with pytest.raises(InvalidInputError, match="argument version is a text; give a whole number"):
        table.read(version=cast("int", "0"))
    with pytest.raises(InvalidInputError, match=r"got '/in/x\.csv'; for files write Files"):
        table.ingest(cast("DataFrame", "/in/x.csv"))
    for condition in ("nope = 1", "max(price) > 3", "rand() > 0.5"):
        with pytest.raises(InvalidInputError, match="delete condition"):
            OpalTable.create(
                spark,
                str(tmp_path / "x"),
                table.read().schema,
                keys=["sku"],
                delta="at",
                deletes=condition,
            )
    for metadata in ("batch", "inline"):
        with pytest.raises(
            InvalidInputError, match="missing column 'price'"
        ):  # which the delete condition reads
            table.ingest(table.read().drop("price"), metadata=metadata)
    with pytest.raises(InvalidInputError, match="an Opal table already"):
        create(spark, tmp_path / "table")


def test_a_metagen_takes_its_own_key_and_pending_rows_are_withdrawn(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, path = create(spark, tmp_path / "t"), str(tmp_path / "t")
    table.ingest(frame(spark, [("a", 1, 1)]), partition_key="mon", token="mon 1")
    table.ingest(frame(spark, [("b", 1, 2)]), partition_key="tue", token="tue 1")
    spec = JobSpec.of("metagen", path, {"partition_key": "tue"})
    assert run_job(spark, spec).counts["pending_rows"] == 1
    assert content(table.read()) == [("b", 1, 2)]
    replaced = table.ingest(
        frame(spark, [("a", 1, 5)]), partition_key="mon", token="mon 2", replaces=["mon 1"]
    )
    assert replaced.counts["replaced"] == 1
    assert main(["metagen", path, "--token", "mon 2", "--job-token", "m"]) == OK
    assert content(table.read()) == [("a", 1, 5), ("b", 1, 2)]
    table.ingest(frame(spark, [("c", 1, 5)]), partition_key="wed", token="wed")
    discard = JobSpec.of("discard", path, {"token": "wed"}, "d")
    assert run_job(spark, discard).counts == {"segments": 1, "rows": 1, "files": 1}
    assert run_job(spark, discard).repeated
    assert main(["metagen", path, "--all"]) == OK
    assert content(table.read()) == [("a", 1, 5), ("b", 1, 2)]
    assert table.check() == []
