"""Z-order on Spark: native ranks are numpy's, files hold close values, reads do not change."""

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.data.z_value import interleave, z_fields
from opal_lake.engine.executor import Executor, Ordering, T, Task
from opal_lake.errors import InvalidInputError
from opal_lake.maintenance.zorder_plan import plan_zorder
from opal_lake.operations.job_spec import JobSpec
from opal_lake.operations.zorder import ZOrder
from opal_spark import OpalTable
from opal_spark.engine.zorder import (
    bin_rows,
    numbered_rows,
    plan_curves,
    ranking_value,
    rows_with_part,
)
from opal_spark.spark_engine import SparkEngine
from opal_spark.submit.jobs import run_job
from tests.opal_lake.clustering import zorder
from tests.opal_lake.shop import Row, latest
from tests.opal_spark.build import DAYS, content, create, frame

PREFIX = "the same for longer than bounds hold: "
KINDS: dict[str, list[Any]] = {
    "byte": list(range(-128, 128)),
    "bigint": [*range(300), -(2**63), 2**63 - 1],
    "float": [*(value / 4 for value in range(300)), -0.0, math.inf, -math.inf, math.nan],
    "double": [*(value / 4 for value in range(300)), -0.0, math.inf, -math.inf, math.nan],
    "decimal(30,3)": [Decimal(value).scaleb(-3) for value in [*range(-150, 150), 10**29]],
    "string": [f"{PREFIX}{value:04d}" for value in range(300)] + ["", "a", "z", "é", "\U0001f600"],
    "binary": [bytes([value, 255 - value]) for value in range(256)] + [b""],
    "boolean": [True, False] * 50,
    "date": [dt.date(1500, 1, 1) + dt.timedelta(days=value * 997) for value in range(200)],
    "timestamp": [
        dt.datetime(1, 1, 2, tzinfo=dt.UTC) + dt.timedelta(days=value * 997, microseconds=value)
        for value in range(200)
    ],
    "timestamp_ntz": [
        dt.datetime(2026, 3, 29) + dt.timedelta(minutes=value) for value in range(200)
    ],
}


def ordered(
    table: OpalTable,
    *names: str,
    target_bytes: int = 20_000,
    executor: Executor | None = None,
    **options: Any,
) -> Any:
    """Order a table by files of a size that tests can afford."""
    fields = z_fields(table.snapshot_at().spec, names)
    return zorder(
        replace(table, executor=executor or SparkEngine(spark=table.spark)),
        fields,
        target_bytes=target_bytes,
        **options,
    )


def ordering_of(table: OpalTable, *names: str) -> Ordering:
    base = table.snapshot_at()
    fields = z_fields(base.spec, names)
    plan = plan_zorder(base, tuple(field.id for field in fields), 5_000, whole=True)
    bins, files = (
        tuple(planned.files for planned in plan.bins),
        tuple(planned.size / 5_000 for planned in plan.bins),
    )
    return Ordering(base=base, bins=bins, columns=fields, files=files)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_native_z_values_are_those_of_numpy_for_every_type(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    """The zone has gaps; values are null, NaN, or texts with one start of 32 letters."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        ddl = ", ".join(f"c{position} {kind}" for position, kind in enumerate(KINDS))
        dice = np.random.default_rng(0)
        values: list[tuple[Any, ...]] = []
        for position in range(600):
            row: list[Any] = [position]
            for members in KINDS.values():
                is_null = dice.random() < 0.1
                row.append(None if is_null else members[dice.integers(len(members))])
            values.append(tuple(row))
        rows = spark.createDataFrame(values, f"id BIGINT, {ddl}")
        path = str(tmp_path / "t")
        table = OpalTable.create(
            spark, path, rows.schema, keys=["id"], delta="id", file_format=file_format
        )
        for half in (0, 1):
            table.ingest(rows.where(F.col("id") % 2 == half), metadata="inline")
        for names in (
            ("c0", "c1", "c2"),
            ("c3", "c4", "c5"),
            ("c6", "c7", "c8"),
            ("c9", "c10"),
            ("c5",),
        ):
            compare(table, ordering_of(table, *names))
        assert ordered(table, "c3", "c5", "c10", target_bytes=5_000).counts["rows"] == 600
        assert table.check() == []
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def compare(table: OpalTable, work: Ordering) -> None:
    spec, spark = work.base.spec, table.spark
    placed = numbered_rows(spark, bin_rows(spark, work), work)
    curves = plan_curves(placed, work)
    orc = spec.file_format == "orc"
    measures = [
        f"{ranking_value(field.physical, field, orc=orc)} AS v{position}"
        for position, field in enumerate(work.columns)
    ]
    ties = f"shiftright(cast(_opal_offset AS BIGINT), {work.tie_shift}) AS tie"
    actual = (
        rows_with_part(spark, placed, work, curves)
        .selectExpr("_opal_z", "_opal_part", ties, *measures)
        .toArrow()
    )
    columns = [actual[f"v{position}"].combine_chunks() for position in range(len(work.columns))]
    z = interleave(columns, curves[0].knots) | actual["tie"].to_numpy()
    assert len(curves) == 1
    assert actual["_opal_z"].to_pylist() == z.tolist()
    assert (
        actual["_opal_part"].to_pylist()
        == np.searchsorted(curves[0].cuts, z, side="right").tolist()
    )


def test_the_search_is_generated_code_that_does_not_double(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = points(spark, tmp_path, 4_000)
    work = ordering_of(table, "x", "y")
    placed = numbered_rows(spark, bin_rows(spark, work), work)
    plan = plan_text(rows_with_part(spark, placed, work, plan_curves(placed, work)))
    assert len(plan) < 60_000, "each step refers to the one before once"


def plan_text(rows: DataFrame) -> str:
    import contextlib
    import io

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        rows.explain("extended")
    return shown.getvalue()


def points(
    spark: SparkSession, path: Path, count: int, file_format: str = "parquet", **layout: Any
) -> OpalTable:
    rows = point_rows(spark, count)
    table = OpalTable.create(
        spark,
        str(path / "points"),
        rows.schema,
        keys=["id"],
        delta="at",
        file_format=file_format,
        **layout,
    )
    table.ingest(rows, metadata="inline")
    return table


def point_rows(spark: SparkSession, count: int, first: int = 0, at: int = 1) -> DataFrame:
    return spark.range(first, first + count, 1, 2).selectExpr(
        "id",
        f"{at}L AS at",
        f"rand({at}) AS x",
        f"rand({at + 100}) AS y",
        "concat('d', id % 40) AS day",
    )


def opened(table: OpalTable, where: str) -> int:
    """Return how many files a read opens."""
    return len(table.read(where=where).inputFiles())


@pytest.mark.parametrize("file_format", ["parquet", pytest.param("orc", marks=pytest.mark.slow)])
def test_reads_after_a_zorder_open_few_files_and_return_the_same_rows(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    table = points(spark, tmp_path, 10_000, file_format)
    table.ingest(point_rows(spark, 6_000, 5_000, at=2), metadata="inline")
    wheres = ["x < 0.1", "y BETWEEN 0.5 AND 0.55", "x > 0.9 AND y > 0.9", "at = 1"]
    views: list[dict[str, Any]] = [
        {},
        {"event_time": 1},
        {"version": 1},
        {"version": 1, "event_time": 0},
    ]

    def answers() -> list[Any]:
        """Return the answers of all reads, in one job."""
        reads = [
            table.read(where=where, **view).withColumn("read", F.lit(f"{where} {view}"))
            for where in wheres
            for view in views
        ]
        return sorted(reduce(DataFrame.union, reads).collect())

    before = answers()
    assert len({row["read"] for row in before}) == 12, (
        "before the first event time there is nothing"
    )
    result = ordered(table, "x", "y")
    assert result.counts["rows"] == 16_000
    assert answers() == before
    files = len(table.files())
    assert files >= 12
    assert opened(table, "x < 0.1") <= files / 2
    assert opened(table, "x > 0.9 AND y > 0.9") <= 2
    assert ordered(table, "x", "y").version is None
    table.ingest(point_rows(spark, 1_000, 0, at=3), metadata="inline")
    again = ordered(table, "x", "y")
    assert again.counts.get("rows", 0) <= 1_000, "what is clustered stays"
    assert table.check() == []


@pytest.mark.slow
def test_histories_read_as_the_model_says(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t")
    for day in DAYS:
        table.ingest(frame(spark, day), metadata="inline")
    result = table.zorder(["sku", "price"], token="night-1")
    assert result.counts["rows"] == sum(map(len, DAYS))
    assert table.zorder(["sku", "price"], token="night-1").repeated
    for moment in range(8):
        assert content(table.read(event_time=moment)) == latest(DAYS, moment)
        assert content(table.read(version=2, event_time=moment)) == latest(DAYS[:2], moment)
    more: list[Row] = [("ax", 7, 1), ("dye", 6, None), ("bow", 3, 9)]
    table.ingest(frame(spark, more), metadata="inline")
    assert content(table.read()) == latest([*DAYS, more])
    assert table.check() == []


def test_an_upsert_commits_while_a_zorder_runs(spark: SparkSession, tmp_path: Path) -> None:
    table = points(spark, tmp_path, 4_000)

    class WithAnUpsert(SparkEngine):
        def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
            results = SparkEngine.in_order(self, ordering, task)
            table.ingest(point_rows(spark, 3_000, 2_000, at=2), metadata="inline")
            return results

    assert ordered(table, "x", "y", executor=WithAnUpsert(spark=spark)).version == 3
    assert table.read().count() == 5_000
    assert table.read(event_time=1).count() == 4_000
    assert table.check() == []


@pytest.mark.slow
def test_many_folders_are_one_job_and_hot_values_several_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(0, 20_000, 1, 2).selectExpr(
        "id",
        "1L AS at",
        "if(id % 10 < 7, 0.5D, rand(1)) AS x",
        "if(id % 10 < 7, 0.5D, rand(2)) AS y",
        "if(id < 12000, 'hot', concat('d', id % 30)) AS day",
    )
    table = OpalTable.create(
        spark, str(tmp_path / "t"), rows.schema, keys=["id"], delta="at", partition_by=["day"]
    )
    for half in (0, 1):
        table.ingest(rows.where(F.col("id") % 2 == half), metadata="inline")
    before = sorted(table.read().collect())
    result = ordered(table, "x", "y")
    assert result.counts["commits"] == 1
    hot = [file for file in table.snapshot_at().files.values() if "day=hot/" in file.path]
    assert len(hot) >= 4
    assert max(file.rows for file in hot) < 3 * 12_000 / len(hot), (
        "rows that are all alike are parted by their offsets"
    )
    assert len(table.files()) - len(hot) == 30, "the others are a file each"
    assert sorted(table.read().collect()) == before
    assert table.check() == []


def test_the_operation_takes_the_arguments_of_a_spec(spark: SparkSession, tmp_path: Path) -> None:
    table = points(spark, tmp_path, 2_000)
    table.ingest(point_rows(spark, 1_000, 2_000), metadata="inline")
    arguments = {"columns": ["x", "y"], "target_mb": 64, "only_if_due": True}
    spec = JobSpec.of("zorder", table.uri, arguments, "z/1")
    first = run_job(spark, spec)
    assert first.counts["rows"] == 3_000
    assert run_job(spark, spec).repeated
    again = run_job(
        spark,
        JobSpec(operation=ZOrder(columns=["x", "y"], only_if_due=True), table=table.uri),
    )
    assert again.notes[0].startswith("not due: 0%")
    with pytest.raises(InvalidInputError, match="give 1 to 8"):
        table.zorder([])
