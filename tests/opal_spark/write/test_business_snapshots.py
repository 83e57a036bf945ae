"""Business snapshots on Spark: split batches, rows held back, restarted streams, and jobs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import opal_spark
from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.operations.job_spec import JobSpec
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.table import create_on, table_on
from opal_spark import Files, OpalTable
from opal_spark.engine.columns import arrow_of_spark
from opal_spark.submit.jobs import run_job
from tests.kit.clocks import SilentStore

DDL = "user STRING, at BIGINT, city STRING, day DATE"
HOUR_US = 3_600_000_000
FRIDAY, SATURDAY = "2022-07-15", "2022-07-16"
Row = tuple[str, int, str, str]
STREAM: list[list[Row]] = [
    [("A", 1, "Beijing", FRIDAY), ("B", 1, "Hangzhou", FRIDAY)],
    [("B", 5, "Beijing", SATURDAY), ("A", 3, "Wuhan", FRIDAY)],
    [("C", 4, "Wuhan", FRIDAY), ("A", 6, "Beijing", SATURDAY)],
]
ON_FRIDAY, ON_SATURDAY = (
    {"A": "Wuhan", "B": "Hangzhou", "C": "Wuhan"},
    {"A": "Beijing", "B": "Beijing", "C": "Wuhan"},
)


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    texts = spark.createDataFrame(list(rows), "user STRING, at BIGINT, city STRING, day STRING")
    return texts.withColumn("day", texts["day"].cast("date"))


def create(spark: SparkSession, path: Path, drift: str) -> tuple[OpalTable, ManualClock]:
    """Create a table with a clock of the test's own: the store has no time."""
    spec = plan_spec(
        arrow_of_spark(StructType.fromDDL(DDL)),
        TableLayout(keys=["user"], delta="at", properties={"drift": drift}),
    )
    clock = ManualClock(step_us=1000)
    made = create_on(SilentStore(inner=open_storage(str(path))), spec, clock)
    return OpalTable.on(spark, made), clock


def cities(table: OpalTable, business_snapshot: str | None = None) -> dict[str, str]:
    return {row.user: row.city for row in table.read(business_snapshot=business_snapshot).collect()}


@pytest.mark.parametrize("metadata", [pytest.param("batch", marks=pytest.mark.slow), "inline"])
def test_each_business_snapshot_reads_the_rows_up_to_its_day(
    spark: SparkSession, tmp_path: Path, metadata: str
) -> None:
    table, clock = create(spark, tmp_path / "t", "2h")
    for number, batch in enumerate(STREAM):
        table.ingest(
            frame(spark, batch),
            metadata=metadata,
            business_snapshot_column="day",
            application=("stream", number),
        )
    repeated = table.ingest(
        frame(spark, batch),
        metadata=metadata,
        business_snapshot_column="day",
        application=("stream", number),
    )
    assert repeated.repeated
    table.metagen()
    assert cities(table) == cities(table, FRIDAY) == ON_FRIDAY
    clock.at_us += 3 * HOUR_US
    table.metagen()
    assert cities(table) == cities(table, SATURDAY) == ON_SATURDAY
    assert cities(table, FRIDAY) == ON_FRIDAY
    changed = (
        table.changes(FRIDAY, SATURDAY, mode="netChanges")
        .where("_change_type = 'update_postimage'")
        .collect()
    )
    assert {row.user: row.city for row in changed} == {"A": "Beijing", "B": "Beijing"}
    assert table.check() == []
    with pytest.raises(
        InvalidInputError, match=f"{FRIDAY} is not after {FRIDAY}, which is finished"
    ):
        table.ingest(frame(spark, STREAM[0]), business_snapshot=FRIDAY)


class AddingStore(ForwardingStore):
    """A store in which another writer adds a column right before version 1 is put.

    Tasks get the store behind it.
    """

    def __init__(self, inner: Storage, add: Callable[[], object]) -> None:
        self.inner, self.add, self.is_added = inner, add, False

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[object, ...]]:
        return itself, (self.inner,)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if path == layout.commit_path(1) and not self.is_added:
            self.is_added = True
            self.add()
        return self.inner.put_if_absent(path, data)


def itself(store: Storage) -> Storage:
    return store


def test_a_column_may_be_added_while_days_are_committed_one_by_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, _ = create(spark, tmp_path / "t", "0s")
    store = AddingStore(table.storage, lambda: table.add_columns({"zip": "long"}))
    racing = OpalTable.on(spark, table_on(store, ManualClock()))
    rows = [("A", 1, "Xian", FRIDAY), ("B", 2, "Wuhan", SATURDAY)]
    racing.ingest(frame(spark, rows), metadata="inline", business_snapshot_column="day")
    assert cities(table) == {"A": "Xian", "B": "Wuhan"}
    assert table.check() == []


@pytest.mark.slow
def test_a_structured_stream_continues_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, clock = create(spark, tmp_path / "t", "2h")
    source = tmp_path / "in"
    source.mkdir()

    def ingest(rows: DataFrame, batch: int) -> None:
        table.ingest(
            rows, metadata="inline", business_snapshot_column="day", application=("stream", batch)
        )

    for number, batch in enumerate(STREAM):
        lines = [
            json.dumps(dict(zip(("user", "at", "city", "day"), row, strict=True))) for row in batch
        ]
        (source / f"{number}.json").write_text("\n".join(lines))
        stream = spark.readStream.schema(DDL).json(str(source)).writeStream.foreachBatch(ingest)
        query = (
            stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert cities(table) == ON_FRIDAY
    clock.at_us += 3 * HOUR_US
    ingest(
        frame(spark, [("D", 7, "Xian", SATURDAY)]), 3
    )  # the next batch finds that the drift time is over
    assert cities(table) == cities(table, SATURDAY) == {**ON_SATURDAY, "D": "Xian"}
    assert cities(table, FRIDAY) == ON_FRIDAY


@pytest.mark.slow
def test_late_rows_and_rows_of_none_are_put_aside_with_bad_rows_of_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, _ = create(spark, tmp_path / "t", "0s")
    for batch in ([("A", 1, "Beijing", FRIDAY)], [("A", 2, "Wuhan", SATURDAY)]):
        table.ingest(frame(spark, batch), metadata="inline", business_snapshot_column="day")
    (tmp_path / "in.csv").write_text(
        f"user,at,city,day\nB,3,Xian,{FRIDAY}\nC,3,Xian,\nD,many,Xian,{SATURDAY}\nE,3,Xian,{SATURDAY}\nF,3,Xian,2022-07-17\n"
    )
    source = Files(str(tmp_path / "in.csv"))
    with pytest.raises(InvalidInputError, match="3 rows cannot go into the table"):
        table.ingest(source, metadata="inline", business_snapshot_column="day")
    assert cities(table) == {"A": "Wuhan"}
    result = table.ingest(
        source, metadata="inline", business_snapshot_column="day", on_bad_rows="quarantine"
    )
    notes = "\n".join(result.notes)
    assert (
        f"rejected 1 row: business snapshot {FRIDAY} is not after {FRIDAY}, which is finished"
        in notes
    )
    assert "rejected 1 row: business snapshot column 'day' is null" in notes
    assert cities(table, SATURDAY) == {"A": "Wuhan", "E": "Xian"}
    assert cities(table) == {"A": "Wuhan", "E": "Xian", "F": "Xian"}


def test_a_job_names_the_business_snapshot_that_it_ingests_and_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    opal_spark.register(spark)
    OpalTable.create(spark, uri, StructType.fromDDL(DDL), keys=["user"], delta="at")
    for number, day in enumerate((FRIDAY, SATURDAY)):
        (tmp_path / f"{day}.json").write_text(
            json.dumps({"user": "A", "at": number, "city": f"city {number}", "day": day})
        )
        arguments = {
            "source": {"files": {"paths": [str(tmp_path / f"{day}.json")]}},
            "business_snapshot": day,
            "metadata": "inline",
        }
        run_job(spark, JobSpec.of("ingest", uri, arguments, token=day))
    shown = run_job(spark, JobSpec.of("read", uri, {"business_snapshot": FRIDAY}))
    assert [row["city"] for row in shown.examples] == ["city 0"]
    assert shown.version == 1
    assert [
        row.city
        for row in spark.read.format("opal").option("business_snapshot", FRIDAY).load(uri).collect()
    ] == ["city 0"]
    with pytest.raises(InvalidInputError, match="give one of them"):
        JobSpec.of("ingest", uri, {**arguments, "business_snapshot_column": "day"})
