"""Consume: a function gets the rows of a partition key or a version, and its result is kept."""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import FunctionError, InvalidInputError, NotFoundError
from opal_lake.operations.job_spec import JobSpec
from opal_lake.result import JobResult
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from opal_spark import Change, OpalTable
from opal_spark.submit.runner import perform
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows

pytestmark = pytest.mark.spark

JOBS = """
calls = []


def note(change):
    calls.append(sorted((row.sku, row.price) for row in change.rows.collect()))
    return {"rows": len(calls[-1])}


def note_valid(change):
    calls.append(sorted((row.sku, row.price) for row in change.valid_rows.collect()))
    return {"rows": len(calls[-1])}


def note_both(change):
    result = note(change)
    note_valid(change)
    return result


def note_changes(change):
    calls.append(
        sorted(
            (row.sku, row.price, row._change_type, row._commit_version)
            for row in change.rows.collect()
        )
    )


def sum_up(change):
    sign = "IF(_change_type IN ('insert', 'update_postimage'), 1, -1)"
    counted = (
        change.rows.selectExpr("price", f"{sign} AS one").groupBy("price").sum("one").collect()
    )
    calls.append({row[0]: row[1] for row in counted})


def fail(change):
    raise KeyError("no such shop")


def refuse(change):
    from opal_lake.errors import InvalidInputError

    raise InvalidInputError("never")


def talk(change):
    return "done"
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return the notes of the module of the functions."""
    (tmp_path / "shop_test_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("shop_test_jobs").calls
    del sys.modules["shop_test_jobs"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Monday, Tuesday, Monday corrected, and a row that is not visible yet."""
    made = create(open_storage(str(tmp_path / "t")))
    for key, values in (
        ("mon", [("a", 1, 1), ("b", 1, 2)]),
        ("tue", [("b", 2, 3), ("c", 2, 4)]),
        ("mon", [("a", 1, 5), ("b", 1, 6)]),
    ):
        made.ingest(*rows(values), partition_key=key)  # type: ignore[arg-type]  # lists are invariant
        made.metagen(all=True)
    made.ingest(*rows([("d", 9, 9)]), partition_key="wed")
    return made


def run(
    spark: SparkSession, table: Table, token: str | None = None, **arguments: object
) -> JobResult:
    return perform(spark, JobSpec.of("consume", table.uri, arguments, token))


@pytest.mark.parametrize(
    "arguments, rows, valid",
    [
        ({"partition_key": "mon"}, [("a", 5), ("b", 6)], [("a", 5)]),
        ({"partition_key": "mon", "version": 2}, [("a", 1), ("b", 2)], [("a", 1), ("b", 2)]),
        ({"partition_key": "mon", "version": 5}, [("a", 1), ("b", 2)], [("a", 1)]),
        ({"partition_key": "tue"}, [("b", 3), ("c", 4)], [("b", 3), ("c", 4)]),
        ({"partition_key": "wed"}, [], []),
        ({"after": 0}, [("a", 5), ("b", 3), ("c", 4)], None),
        ({"after": 2, "version": 4}, [("b", 3), ("c", 4)], None),
        ({"after": 4}, [("a", 5)], None),
        ({"after": 7}, [], None),
    ],
)
def test_the_function_gets_the_new_rows_and_the_valid_ones_of_them(
    spark: SparkSession,
    table: Table,
    jobs: list[object],
    arguments: Mapping[str, object],
    rows: list[object],
    valid: list[object] | None,
) -> None:
    """A version has the same rows in both."""
    result = run(spark, table, function="shop_test_jobs:note_both", **arguments)
    assert result.counts == {"rows": len(rows)}
    assert result.version == arguments.get("version", 7)
    assert jobs == [rows, rows if valid is None else valid]


def test_the_function_gets_no_rows_of_an_empty_day(
    spark: SparkSession, table: Table, jobs: list[object]
) -> None:
    version = table.ingest(
        rows([("a", 1, 1)])[0].slice(0, 0), [], partition_key="sun", token="sun"
    ).version
    for function in ("note", "note_valid"):
        result = run(
            spark,
            table,
            function=f"shop_test_jobs:{function}",
            partition_key="sun",
            version=version,
        )
        assert (result.version, result.counts) == (version, {"rows": 0})
    assert jobs == [[], []]


def test_a_token_calls_the_function_once(
    spark: SparkSession, table: Table, jobs: list[object]
) -> None:
    first = run(spark, table, "t", function="shop_test_jobs:note", partition_key="mon")
    again = run(spark, table, "t", function="shop_test_jobs:note", partition_key="mon")
    assert len(jobs) == 1
    assert (again.repeated, again.counts, again.version) == (True, first.counts, first.version)
    assert OpalTable.for_path(spark, table.uri).check() == []


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    "function, arguments, error, said",
    [
        (
            "shop_test_jobs:fail",
            {"after": 0},
            FunctionError,
            "shop_test_jobs:fail failed: KeyError: 'no such shop'",
        ),
        ("shop_test_jobs:refuse", {"after": 0}, InvalidInputError, "never"),
        (
            "shop_test_jobs:talk",
            {"after": 0},
            InvalidInputError,
            "returned str; let the function return nothing, or counts by name",
        ),
        (
            "shop_test_jobs:nothing",
            {"after": 0},
            InvalidInputError,
            "the module shop_test_jobs has no function 'nothing'",
        ),
        (
            "no_such_module:f",
            {"after": 0},
            InvalidInputError,
            "No module named 'no_such_module'. Python searches .*py_files=",
        ),
        ("f", {"after": 0}, InvalidInputError, "write it as 'package.module:function'"),
        ("shop_test_jobs:note", {}, InvalidInputError, "consume needs either partition_key"),
        ("shop_test_jobs:note", {"after": 9}, NotFoundError, "has no version 9"),
        (
            "shop_test_jobs:note",
            {"partition_key": "sun"},
            NotFoundError,
            "no ingest of partition key 'sun' .*'mon', 'tue', 'wed'",
        ),
    ],
)
def test_a_failed_consumption_names_the_reason_and_stores_no_result(
    spark: SparkSession,
    table: Table,
    function: str,
    arguments: Mapping[str, object],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        run(spark, table, "t", function=function, **arguments)
    assert not list(table.storage.list("_opal/results/"))


def test_a_change_s_table_reads_the_rows_before_the_change(
    spark: SparkSession, table: Table
) -> None:
    change = Change(table=OpalTable.for_path(spark, table.uri), version=4, after=2)
    before = {row.sku: row.price for row in change.table.read(version=change.after).collect()}
    assert before == {"a": 1, "b": 2}


def test_changes_go_from_version_to_version(
    spark: SparkSession, table: Table, jobs: list[object]
) -> None:
    run(spark, table, function="shop_test_jobs:note_changes", rows="changes", after=0)
    inserted = [("a", 1, "insert", 2), ("b", 2, "insert", 2), ("c", 4, "insert", 4)]
    updated = [("a", 1, "update_preimage", 6), ("a", 5, "update_postimage", 6)]
    tuesday = [("b", 2, "update_preimage", 4), ("b", 3, "update_postimage", 4)]
    assert jobs.pop() == sorted([*inserted, *updated, *tuesday])
    run(spark, table, function="shop_test_jobs:note_changes", rows="changes", after=2, version=5)
    assert jobs.pop() == sorted([*tuesday, inserted[2]])
    run(spark, table, function="shop_test_jobs:note_changes", rows="changes", after=7)
    assert jobs.pop() == []
    with pytest.raises(
        InvalidInputError, match="rows='changes' does not go with partition_key; give after"
    ):
        run(
            spark,
            table,
            function="shop_test_jobs:note_changes",
            rows="changes",
            partition_key="mon",
        )


def test_a_consumer_of_changes_that_begins_late_gets_all_rows_as_inserts(
    spark: SparkSession, table: Table, jobs: list[object]
) -> None:
    table.savepoint("empty", 0)
    table.retain(window="0s", grace="0s")
    version = table.snapshot_at().version
    run(spark, table, function="shop_test_jobs:note_changes", rows="changes", after=0)
    assert jobs.pop() == [
        ("a", 5, "insert", version),
        ("b", 3, "insert", version),
        ("c", 4, "insert", version),
    ]
    with pytest.raises(NotFoundError, match="expired"):
        run(spark, table, function="shop_test_jobs:note_changes", rows="changes", after=3)


def test_a_sum_of_changes_is_the_sum_of_all(
    spark: SparkSession, tmp_path: Path, jobs: list[object]
) -> None:
    """Counts of rows by price follow changes alone.

    Batches are random, with late rows and deletes.
    """
    seed, made, counts, seen = (
        random.Random(7),
        create(open_storage(str(tmp_path / "s"))),
        Counter[int](),
        0,
    )
    for _ in range(12):
        batch = [
            (f"k{seed.randrange(9)}", seed.randrange(6), seed.choice([None, 1, 2, 3]))
            for _ in range(seed.randrange(1, 8))
        ]
        made.ingest(*rows(batch), metadata=seed.choice(["inline", "batch"]))
        if seed.random() < 0.4:
            made.metagen(all=True)
        if seed.random() < 0.3:
            compact(made)
        if seed.random() < 0.6:
            continue
        version = made.snapshot_at().version
        run(
            spark,
            made,
            function="shop_test_jobs:sum_up",
            rows="changes",
            after=seen,
            version=version,
        )
        counts.update(jobs.pop())  # type: ignore[call-overload]  # what the function notes
        seen = version
        assert +counts == Counter(row["price"] for row in made.read(version=version).to_pylist())
