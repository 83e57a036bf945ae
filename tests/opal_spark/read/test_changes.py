"""Spark's reads, change feed and history view are the core's.

The model table decides these (tests/opal_lake/test_histories.py). OPAL_SPARK_HISTORIES says how
many random histories the slow test plays, OPAL_SEED which.
"""

import itertools
import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from opal_lake.arguments.values import CHANGE_MODES
from opal_lake.definition.table_spec import plan_spec
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.read.changes import FeedLimits, plan_changes
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on
from opal_spark import OpalTable
from opal_spark.read import changes as spark_changes
from tests.kit.replay import Replay
from tests.kit.strategies import SERIAL, History, histories
from tests.opal_spark.twin import arrow_of

pytestmark = pytest.mark.spark

HISTORIES = int(os.environ.get("OPAL_SPARK_HISTORIES", "20"))
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.fixture(autouse=True, params=["by tasks", "in this process", "by tasks and keys"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a way to read a feed; all return the same.

    Feeds of few rows are read in this process, others by Spark's tasks. Where events do not say
    what followed, keys do.
    """
    if request.param != "in this process":
        monkeypatch.setattr(spark_changes, "IN_PROCESS", FeedLimits(files=-1))
    if request.param == "by tasks and keys":
        monkeypatch.setattr(
            spark_changes,
            "plan_changes",
            lambda *args, **options: replace(plan_changes(*args, **options), has_pairs=False),
        )
        monkeypatch.setattr(spark_changes, "_MAX_TIMES", 0)


def compare_random_histories(spark: SparkSession, file_format: str, count: int) -> None:
    print(f"OPAL_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories((file_format,)), draw=st.data())
    def run(history: History, draw: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            uri = str(Path(folder) / "t")
            create_on(
                open_storage(uri), plan_spec(history.shape.arrow_schema(), history.shape.layout())
            )
            replay = Replay(open_table=lambda: Table.open(uri), shape=history.shape)
            for step in history.steps:
                replay.play(step)
            ends = draw.draw(st.lists(st.sampled_from(replay.versions), min_size=2, max_size=2))
            for start, end in {tuple(sorted(ends)), (0, replay.versions[-1])}:
                compare_feeds(OpalTable.for_path(spark, uri), start, end)
            compare_views(OpalTable.for_path(spark, uri), ends[0])
            compare_reads(OpalTable.for_path(spark, uri), ends)

    run()


def compare_feeds(table: OpalTable, start: int, end: int) -> None:
    """Compare the feeds in every mode, with every column and with one of them."""
    for mode, compute_updates in itertools.product(CHANGE_MODES, (True, False)):
        expected = arrow_of(table).changes(start, end, mode=mode, compute_updates=compute_updates)
        columns = None if mode == "none" and compute_updates else [SERIAL]
        feed = table.changes(
            start, end, mode=mode, compute_updates=compute_updates, columns=columns
        )
        expected = expected.select(feed.columns)
        assert sorted_rows(feed.toArrow().cast(expected.schema)) == sorted_rows(expected)
    expected = arrow_of(table).changes(start, end, axis="event_time")
    history = table.changes(start, end, axis="event_time").toArrow()
    assert sorted_rows(history.cast(expected.schema)) == sorted_rows(expected)


def compare_views(table: OpalTable, version: int) -> None:
    expected = arrow_of(table).history_view(version=version)
    actual = table.history_view(version=version).toArrow().cast(expected.schema)
    assert sorted(actual.to_pylist(), key=serial) == sorted(expected.to_pylist(), key=serial)
    names = [field.name for field in table.snapshot_at().spec.keys]
    keys = expected.select(names).to_pylist()
    by_keys = table.history_view(keys=keys, version=version)
    assert by_keys.dtypes == table.history_view(version=version).dtypes
    assert sorted(by_keys.toArrow().cast(expected.schema).to_pylist(), key=serial) == sorted(
        expected.to_pylist(), key=serial
    )


def compare_reads(table: OpalTable, versions: list[int]) -> None:
    for version in versions:
        expected = arrow_of(table).read(version=version)
        actual = table.read(version=version).toArrow().cast(expected.schema)
        assert sorted(actual.to_pylist(), key=serial) == sorted(expected.to_pylist(), key=serial)


def serial(row: dict[str, int]) -> int:
    return row[SERIAL]


def sorted_rows(feed: pa.Table) -> list[dict[str, object]]:
    return sorted(
        feed.to_pylist(), key=lambda row: (row["_commit_version"], row["_change_type"], row[SERIAL])
    )


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_spark_s_feed_is_the_core_s(spark: SparkSession, file_format: str) -> None:
    compare_random_histories(spark, file_format, 1)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_spark_s_feed_of_many_histories_is_the_core_s(
    spark: SparkSession, file_format: str
) -> None:
    compare_random_histories(spark, file_format, max(1, HISTORIES // 2))


@pytest.fixture(scope="module")
def users(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OpalTable:
    """Return a table of five versions.

    1: a, b and c; 2: b changes, c is deleted; 3: d is inserted; 4: nothing, b is late; 5: one file.
    """
    columns = "id STRING, at INT, city STRING, gone BOOLEAN"
    schema = spark.createDataFrame([], columns).schema
    table = OpalTable.create(
        spark,
        str(tmp_path_factory.mktemp("users")),
        schema,
        keys=["id"],
        delta="at",
        deletes="gone",
    )
    for rows in (
        [("a", 1, "Rom", False), ("b", 1, "Bonn", False), ("c", 1, "Lyon", False)],
        [("b", 3, "Köln", False), ("c", 3, None, True)],
        [("d", 3, "Graz", False)],
        [("b", 2, "Ulm", False)],
    ):
        table.ingest(spark.createDataFrame(rows, columns), metadata="inline")
    table.compact()
    return table


def changes_of(table: OpalTable, *args: object, **options: object) -> list[tuple[object, ...]]:
    rows = table.changes(*args, **options).collect()  # type: ignore[arg-type]  # as tests name them
    return sorted(
        (row["_commit_version"], row["_change_type"], row["id"], row["city"]) for row in rows
    )


@pytest.mark.slow_but_one
def test_a_feed_has_the_changes_of_each_version(users: OpalTable) -> None:
    assert changes_of(users, 2, 5) == [
        (2, "delete", "c", "Lyon"),
        (2, "update_postimage", "b", "Köln"),
        (2, "update_preimage", "b", "Bonn"),
        (3, "insert", "d", "Graz"),
    ]
    assert changes_of(users, 4) == []
    assert changes_of(users, "latest") == []
    assert changes_of(users, 1, 2, mode="netChanges") == [
        (1, "insert", "a", "Rom"),
        (2, "insert", "b", "Köln"),
    ]
    assert [
        kind for _, kind, key, _ in changes_of(users, 2, compute_updates=False) if key == "b"
    ] == [
        "delete",
        "insert",
    ]


@pytest.mark.slow_but_one
def test_a_filter_prunes_by_keys_and_leaves_updates_whole(users: OpalTable) -> None:
    assert changes_of(users, 0, where="id = 'b'") == [
        (1, "insert", "b", "Bonn"),
        (2, "update_postimage", "b", "Köln"),
        (2, "update_preimage", "b", "Bonn"),
    ]
    assert changes_of(users, 2, where="city = 'Köln'") == [(2, "update_postimage", "b", "Köln")]
    assert changes_of(users, 1, where="_change_type = 'delete'") == [(2, "delete", "c", "Lyon")]
    with pytest.raises(InvalidInputError, match="no column 'town'"):
        users.changes(1, where="town = 1")


@pytest.mark.slow_but_one
def test_ends_are_versions_times_or_savepoints(users: OpalTable) -> None:
    users.savepoint("before", 1)
    users.savepoint("after", 2)
    second = users.log.read_commit(2).timestamp_us
    moment = users.spark.sql(f"SELECT timestamp_micros({second}) AS at").first()
    assert moment is not None
    only_second = changes_of(users, 2, 2)
    assert (
        only_second
        == changes_of(users, "before", "after")
        == changes_of(users, f"{moment['at'].isoformat()}Z", 2)
    )
    assert len(only_second) == 3


@pytest.mark.parametrize(
    "ends, error, words",
    [
        (
            (19,),
            NotFoundError,
            r"has no version 19 yet; the newest is \d: leave the end out to read up to it",
        ),
        ((3, 99), NotFoundError, r"has no version 99 yet"),
        (
            (3, 2),
            InvalidInputError,
            r"from start=3 \(version 3\) to end=2 \(version 2\) ends before it begins",
        ),
        (
            ("latest", 1),
            InvalidInputError,
            (
                r"from start='latest' \(version \d\) to end=1 .*; give an earlier start, or a "
                r"later end"
            ),
        ),
        (
            ("yesterday",),
            InvalidInputError,
            r"start='yesterday' is not a valid start; give a version such as 8, a commit time",
        ),
        ((-1,), InvalidInputError, r"start=-1 is not a valid start"),
        ((1.5,), InvalidInputError, r"start=1.5 is not a valid start"),
        (
            (1, "1999-01-01T00:00:00Z"),
            NotFoundError,
            r"no readable version is as old as 1999-01-01",
        ),
    ],
)
def test_ends_that_cannot_be_are_refused(
    users: OpalTable, ends: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        users.changes(*ends)


def test_options_that_cannot_be_are_refused(users: OpalTable) -> None:
    with pytest.raises(
        InvalidInputError,
        match="mode='net' is unknown; use one of none, dropCarryovers, netChanges",
    ):
        users.changes(1, mode="net")
    with pytest.raises(InvalidInputError, match=r"columns='id' is a text; give a list"):
        users.changes(1, columns="id")
    with pytest.raises(InvalidInputError, match="'town'"):
        users.changes(1, columns=["town"])


@pytest.mark.slow_but_one
def test_a_history_view_says_when_each_row_was_valid(users: OpalTable) -> None:
    def shown(**options: object) -> list[tuple[object, ...]]:
        view = users.history_view(**options)  # type: ignore[arg-type]  # as tests name them
        return sorted(
            tuple(row)
            for row in view.select(
                "id", "city", "valid_from", "valid_until", "is_current", "deleted"
            ).collect()
        )

    b = [
        ("b", "Bonn", 1, 2, False, False),
        ("b", "Köln", 3, None, True, False),
        ("b", "Ulm", 2, 3, False, False),
    ]
    c = ("c", "Lyon", 1, 3, False, True)
    assert shown() == [
        ("a", "Rom", 1, None, True, False),
        *b,
        c,
        ("d", "Graz", 3, None, True, False),
    ]
    assert shown(where="id = 'b'") == shown(keys=[{"id": "b"}]) == b
    assert (
        shown(where="valid_until = 3 AND deleted") == shown(keys=[{"id": "c"}, {"id": "x"}]) == [c]
    )
    assert shown(keys=[{"id": "b"}], where="is_current") == b[1:2]
    assert shown(version=3, where="id = 'b'") == [("b", "Bonn", 1, 3, False, False), b[1]]
    assert users.history_view(columns=["city"], where="is_current").columns == [
        "city",
        "valid_from",
        "valid_until",
        "is_current",
        "deleted",
    ]
    with pytest.raises(InvalidInputError, match="no column 'valid_to'"):
        users.history_view(where="valid_to = 3")


def test_rows_are_read_by_their_keys(users: OpalTable) -> None:
    rows = users.get([{"id": "d"}, {"id": "c"}, {"id": "b"}], columns=["id", "city"])
    assert rows.to_pylist() == [{"id": "d", "city": "Graz"}, {"id": "b", "city": "Köln"}]


@pytest.mark.slow_but_one
def test_columns_of_the_result_s_own_names_in_any_case_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "id INT, at INT, _COMMIT_TIMESTAMP STRING, Deleted BOOLEAN, Valid_From INT"
    schema = spark.createDataFrame([], columns).schema
    table = OpalTable.create(
        spark, str(tmp_path / "t"), schema, keys=["id"], delta="at", deletes="deleted"
    )
    assert table.changes(0, columns=["id"]).collect() == []
    table.ingest(
        spark.createDataFrame([(1, 1, "mine", False, 7), (2, 1, "mine", True, 7)], columns),
        metadata="inline",
    )
    (row,) = table.changes(0, columns=["id", "Valid_From"]).collect()
    assert (row["id"], row["Valid_From"], row["_change_type"], row["_commit_version"]) == (
        1,
        7,
        "insert",
        1,
    )
    for view in (
        table.history_view(columns=["id", "at"], where="valid_from = 1"),
        table.history_view(columns=["id", "at"], keys=[{"id": 1}]),
    ):
        assert [tuple(row) for row in view.collect()] == [(1, 1, 1, None, True, False)]
    with pytest.raises(
        InvalidInputError,
        match="column _COMMIT_TIMESTAMP of the table has the name of a column of a change",
    ):
        table.changes(0)
    with pytest.raises(
        InvalidInputError,
        match="column Deleted of the table has the name of a column of a history view",
    ):
        table.history_view()
