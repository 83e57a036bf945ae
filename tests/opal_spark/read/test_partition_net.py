"""Spark reads the net rows of a partition key as the core does, from that key's files alone."""

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.read.partition_net import plan_net
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on
from opal_spark import OpalTable
from tests.kit.model import ModelRow, net
from tests.opal_lake.compacting import compact

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("rank", pa.int32()),
        ("gone", pa.bool_()),
        ("n", pa.int64()),
    ]
)
KEYS = ("mon", "tue", "wed")


def random_rows(seed: random.Random, first: int) -> list[dict[str, Any]]:
    """Return rows of few keys and moments.

    So equal deltas and equal tie-breaks are frequent.
    """

    def random_row(number: int) -> dict[str, Any]:
        columns = {
            "id": seed.randrange(12),
            "part": seed.choice("xy"),
            "at": seed.randrange(4) * 1_000_000,
        }
        return {
            **columns,
            "rank": seed.choice([None, 0, 1]),
            "gone": seed.random() < 0.25,
            "n": first + number,
        }

    return [random_row(number) for number in range(seed.randrange(1, 30))]


@pytest.fixture(params=["parquet", "orc"])
def table(request: pytest.FixtureRequest, tmp_path: Any) -> Table:
    layout = TableLayout(
        keys=["id", "part"],
        delta="at",
        tie_break=["rank"],
        deletes="gone",
        partition_by=["part"],
        file_format=request.param,
        properties={"segment_rows": 8, "read_verify": "full"},
    )
    return create_on(open_storage(str(tmp_path / "t")), plan_spec(SCHEMA, layout))


def put(table: Table, key: str, values: list[dict[str, Any]]) -> None:
    columns = []
    for field in SCHEMA:
        cells = [row[field.name] for row in values]
        columns.append(pa.array(cells).cast(field.type))
    rows = pa.table(columns, schema=SCHEMA)
    table.ingest(rows, [row["gone"] for row in values], partition_key=key)


@pytest.mark.slow_but_one
def test_spark_reads_the_net_rows_of_a_key_as_the_core_does(
    spark: SparkSession, table: Table
) -> None:
    """Rows are late, equal in deltas, deleted, repeated, or moved by a compaction.

    Tie-breaks may lack a value, and the table is partitioned.
    """
    seed, rows, versions = random.Random(7), 0, []
    for number in range(9):
        values = random_rows(seed, rows)
        rows += len(values)
        put(table, KEYS[number % 3], values)
        if number % 2:
            table.metagen(all=True)
            versions.append(table.snapshot_at().version)
        if number == 5:
            compact(table)
    table.metagen(all=True)
    opened = OpalTable.for_path(spark, table.uri)
    for version in (versions[1], None):
        for key in KEYS:
            for view in ({}, {"event_time": "1970-01-01T00:00:01Z"}):
                expected = table.read(version=version, partition_key=key, net=True, **view)[
                    "n"
                ].to_pylist()  # type: ignore[arg-type]
                given = opened.read(version=version, partition_key=key, net=True, **view).collect()  # type: ignore[arg-type]
                assert sorted(row.n for row in given) == sorted(expected), (version, key, view)


def test_a_filter_comes_after_the_choice_of_rows(spark: SparkSession, table: Table) -> None:
    row = {"id": 1, "part": "x", "rank": None, "gone": False}
    put(table, "mon", [{**row, "at": 1, "n": 1}])
    put(table, "mon", [{**row, "at": 2, "n": 2}])
    put(table, "tue", [{**row, "at": 3, "n": 3}])
    table.metagen(all=True)
    opened = OpalTable.for_path(spark, table.uri)
    assert [
        row.n for row in opened.read(partition_key="mon", net=True, columns=["n"]).collect()
    ] == [2]
    assert opened.read(partition_key="mon", net=True, where="n = 1").count() == 0
    assert opened.read(
        partition_key="mon", net=True, where="id = 1", columns=["part"]
    ).collect() == [("x",)]


def test_only_the_files_of_the_key_are_opened_and_sorted_only_where_rows_were_replaced(
    spark: SparkSession, table: Table
) -> None:
    for position, key in enumerate(KEYS):
        put(
            table,
            key,
            [{"id": position, "part": "x", "at": 1, "rank": 0, "gone": False, "n": position}],
        )
    table.metagen(all=True)
    opened = OpalTable.for_path(spark, table.uri)
    assert len(plan_net(table.snapshot_at(), "mon").files) == 1
    plans = []
    for _ in range(2):
        rows = opened.read(partition_key="mon", net=True)
        assert len(rows.inputFiles()) == 1
        plans.append(rows._jdf.queryExecution().toString())  # type: ignore[operator]  # py4j
        put(table, "tue", [{"id": 0, "part": "x", "at": 2, "rank": 0, "gone": False, "n": 9}])
        table.metagen(all=True)
    assert ["row_number" in plan for plan in plans] == [False, True]
    assert "WindowGroupLimit" in plans[1]


def test_a_net_read_of_a_partition_key_shows_no_rows_of_others_in_the_same_files(
    spark: SparkSession, table: Table
) -> None:
    for number in range(40):
        for key in ("mon", "tue"):
            put(
                table,
                key,
                [
                    {
                        "id": number % 3,
                        "part": "x",
                        "at": number,
                        "rank": 0,
                        "gone": False,
                        "n": number + (key == "tue"),
                    }
                ],
            )
    table.metagen(all=True)
    compact(table)
    assert len(table.snapshot_at().files) < 40
    given = OpalTable.for_path(spark, table.uri).read(partition_key="mon", net=True).collect()
    assert sorted(row.n for row in given) == [37, 38, 39]


def test_net_rows_of_random_ingests_are_those_of_the_model(
    spark: SparkSession, table: Table
) -> None:
    seed, model = random.Random(11), []
    for number in range(6):
        values = random_rows(seed, 100 * number)
        put(table, KEYS[number % 2], values)
        model += [(KEYS[number % 2], number, position, row) for position, row in enumerate(values)]
    table.metagen(all=True)
    rows = [
        ModelRow(
            key=(row["id"], row["part"]),
            delta=row["at"],
            ties=(row["rank"],),
            row_id=(number, position),
            deleted=row["gone"],
            processed=1,
            partition_key=key,
            values=row,
        )
        for key, number, position, row in model
    ]
    for key in KEYS[:2]:
        given = OpalTable.for_path(spark, table.uri).read(partition_key=key, net=True).collect()
        expected = {row.key: row for row in net(rows, key)}
        assert {(row.id, row.part): (row.at.timestamp() * 1e6, row.rank) for row in given} == {
            position: (row.delta, *row.ties) for position, row in expected.items()
        }
