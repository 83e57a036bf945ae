"""A stream returns every change once and in order, whatever happens between its runs.

If it cannot continue, it fails.
"""

import itertools
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

import opal_spark
from opal_lake.errors import NotFoundError, OpalError
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.result import JobResult
from opal_lake.table import Table
from opal_spark import run_available
from opal_spark.data_source.available_now import since_4_2  # type: ignore[attr-defined]
from opal_spark.data_source.source import OpalDataSource
from opal_spark.data_source.stream import OpalStreamReader
from opal_spark.data_source.stream_parts import Tuning
from tests.opal_spark.data_source.build import (
    expected,
    new_table,
    plain_rows,
    upsert,
)

FEED = {"readChangeFeed": "true"}


@dataclass(kw_only=True)
class Stream:
    """A query over a table, with its checkpoint and its micro-batches by their ids."""

    uri: str
    checkpoint: Path
    options: dict[str, str] = field(default_factory=dict)
    schema: StructType | None = None
    batches: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self) -> Self:
        """Run until everything so far has been read."""
        raise NotImplementedError

    def forget_commit(self) -> None:
        """Forget that the first micro-batch has ended."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def ids(self) -> list[list[int]]:
        """Return the ids of each micro-batch that had rows."""
        ids = []
        for _, rows in sorted(self.batches.items()):
            if rows:
                ids.append(sorted(row["id"] for row in rows))
        return ids

    def changes(self) -> list[tuple[object, ...]]:
        return plain_rows(self.rows())


@dataclass(kw_only=True)
class SparkStream(Stream):
    """Spark's own."""

    spark: SparkSession

    def writer(self) -> DataStreamWriter:
        reader: DataStreamReader = self.spark.readStream.format("opal").options(**self.options)
        rows = (reader if self.schema is None else reader.schema(self.schema)).load(self.uri)
        return rows.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(
            self._keep
        )

    def _keep(self, rows: DataFrame, batch: int) -> None:
        self.batches[batch] = [row.asDict() for row in rows.collect()]

    def run(self) -> Self:
        query = self.writer().start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return self

    def forget_commit(self) -> None:
        for file in (self.checkpoint / "commits").glob("*0*"):
            file.unlink()
        self.batches.clear()


@dataclass(kw_only=True)
class CalledStream(Stream):
    """The calls that Spark makes, in their order, without Spark.

    Each run has new objects, and offsets as the JSON of the checkpoint.
    """

    gives_start: bool = False  # as Spark 4.2 does, and 4.1 does not
    available_now: bool = False  # 4.1 asks then for the newest offset first, and only once
    offsets: list[str] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    committed: int = 0
    tuning: Tuning = field(default_factory=Tuning)

    def run(self) -> Self:
        source = OpalDataSource(CaseInsensitiveDict({**self.options, "path": self.uri}))
        schema = self.schema or source.schema()
        reader = source.streamReader(schema)
        reader.tuning = self.tuning
        fetched = json.dumps(reader.latestOffset()) if self.available_now else None
        if self.offsets and not self.gives_start:
            last = json.loads(self.offsets[-1])
            assert reader.partitions(last, last) == []
        while self.committed < len(self.offsets) or self._has_more(reader, fetched):
            end = json.loads(self.offsets[self.committed])
            start = (
                json.loads(self.offsets[self.committed - 1])
                if self.committed
                else reader.initialOffset()
            )
            task = pickle.loads(cloudpickle.dumps(source.streamReader(schema)))  # type: ignore[no-untyped-call]  # PySpark's copy has no types
            parts = [
                pickle.loads(cloudpickle.dumps(part)) for part in reader.partitions(start, end)
            ]  # type: ignore[no-untyped-call]
            self.tasks.append(len(parts))
            self.batches[self.committed] = [
                row for part in parts for batch in task.read(part) for row in batch.to_pylist()
            ]
            self.committed += 1
        return self

    def _has_more(self, reader: OpalStreamReader, fetched: str | None) -> bool:
        newest = fetched or json.dumps(
            reader.latestOffset(self._start(reader)) if self.gives_start else reader.latestOffset()
        )
        if self.offsets and self.offsets[-1] == newest:
            return False
        self.offsets.append(newest)
        return True

    def _start(self, reader: OpalStreamReader) -> Any:
        return json.loads(self.offsets[-1]) if self.offsets else reader.initialOffset()

    def forget_commit(self) -> None:
        del self.offsets[1:]
        self.committed = 0
        self.batches.clear()


NewStream = Callable[..., Any]


@pytest.fixture(
    params=[
        "called",
        "called with start",
        pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.spark]),
    ]
)
def new_stream(request: pytest.FixtureRequest, tmp_path: Path) -> NewStream:
    if request.param == "spark":
        return on_spark(request.getfixturevalue("spark"), tmp_path)
    return makes(partial(CalledStream, gives_start=request.param == "called with start"), tmp_path)


@pytest.fixture(params=["available now", "called"])
def any_stream(request: pytest.FixtureRequest, tmp_path: Path) -> NewStream:
    return makes(partial(CalledStream, available_now=request.param == "available now"), tmp_path)


def on_spark(spark: SparkSession, folder: Path) -> NewStream:
    opal_spark.register(spark)
    return makes(partial(SparkStream, spark=spark), folder)


def makes(kind: Callable[..., Stream], folder: Path) -> NewStream:
    counter = itertools.count()

    def make(table: Table, schema: StructType | None = None, **options: object) -> Any:
        given = {name: str(value) for name, value in options.items()}
        return kind(
            uri=table.uri,
            checkpoint=folder / f"checkpoint-{next(counter)}",
            options=given,
            schema=schema,
        )

    return make


def columns(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def assert_in_order(stream: Stream, table: Table) -> None:
    """Assert that a commit is in one micro-batch, and that versions and times rise."""
    last = (0, None)
    for _, rows in sorted(stream.batches.items()):
        if rows:
            versions = {row["_commit_version"] for row in rows}
            times = {row["_commit_timestamp"] for row in rows}
            assert min(versions) > last[0]
            assert last[1] is None or min(times) > last[1]
            last = (max(versions), max(times))


def run_with_commits_between(table: Table, stream: Stream) -> None:
    upsert(table, (1, 1, "Rom"), (2, 1, "Bonn"), (3, 1, "Lyon"))
    stream.run()
    upsert(table, (2, 3, "Köln"), (3, 3, None), (4, 3, "Graz"))
    upsert(table, (2, 2, "Ulm"))  # late: no change of what is there now
    table.compact()
    upsert(table, (4, 4, "Wien"), metadata="batch")
    upsert(table, (5, 4, "Nice"), metadata="batch")
    assert stream.run().changes() == expected(table, 0), "pending rows are not a change"
    table.zorder(["id"])
    table.metagen()
    upsert(table, (3, 5, "Pisa"))
    table.compact(mode="major", look_back=0)
    assert stream.run().changes() == expected(table, 0)
    assert len(stream.rows()) == 11
    assert_in_order(stream, table)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_restarted_stream_of_changes_returns_the_change_feed_of_the_table(
    tmp_path: Path, new_stream: NewStream, file_format: str
) -> None:
    table = new_table(tmp_path / "t", file_format)
    run_with_commits_between(table, new_stream(table, startingVersion=0, **FEED))


def test_a_stream_begins_with_the_whole_table_and_continues(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"), (2, 1, "Bonn"), (3, 1, "Lyon"))
    upsert(table, (2, 3, "Köln"), (3, 3, None))
    feed, rows = new_stream(table, **FEED).run(), new_stream(table, ignoreDeletes="true").run()
    time_us = table.log.read_commit(2).timestamp_us
    assert feed.changes() == [(2, 1, "insert", "Rom"), (2, 2, "insert", "Köln")], (
        "as inserts of the newest version"
    )
    assert {row["_commit_timestamp"].timestamp() for row in feed.rows()} == {time_us / 1_000_000}
    upsert(table, (4, 4, "Graz"), (2, 4, "Ulm"), (1, 4, None))
    upsert(table, (2, 5, "Linz"), (3, 5, "Pau"), (3, 2, "late"))
    assert feed.run().changes()[2:] == expected(table, 3)
    came = [(row["id"], row["at"], row["city"]) for row in rows.run().rows()]
    assert sorted(came) == [
        (1, 1, "Rom"),
        (2, 3, "Köln"),
        (2, 4, "Ulm"),
        (2, 5, "Linz"),
        (3, 5, "Pau"),
        (4, 4, "Graz"),
    ]
    assert rows.run().ids() == [[1, 2], [2, 2, 3, 4]], "nothing new, nothing again"


def test_a_stream_of_rows_stops_at_deletes_unless_they_are_to_be_left_out(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"), (2, 1, "Bonn"))
    stream = new_stream(table).run()
    upsert(table, (2, 2, None), (3, 2, "Lyon"))
    broken(
        stream,
        r"version 2 has deletes \(1\), which a stream of rows cannot express; read changes with",
    )
    stream.options = {"ignoreDeletes": "true"}
    assert stream.run().ids() == [[1, 2], [3]], "the same micro-batch, run again"


def test_rows_of_files_that_a_compaction_put_together_come_once(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    stream = new_stream(table, startingVersion="latest").run()
    for key in (2, 3, 1):
        upsert(table, (key, 2, "x"))
    table.compact()
    assert len(table.snapshot_at().files) == 1
    assert stream.run().ids() == [[1, 2, 3]]
    assert {row["at"] for row in stream.rows()} == {2}


def test_a_micro_batch_is_spread_over_tasks(tmp_path: Path) -> None:
    table, make = new_table(tmp_path / "t"), makes(CalledStream, tmp_path)
    for key in range(1, 5):
        upsert(table, (key, key, "x"), (9, key, "y"))
    whole = [
        make(table, startingVersion=1, **FEED).run(),
        make(table, startingVersion=1).run(),
        make(table).run(),
    ]
    make = makes(partial(CalledStream, tuning=Tuning(task_rows=6, task_bytes=1)), tmp_path)
    cut = [
        make(table, startingVersion=1, **FEED).run(),
        make(table, startingVersion=1).run(),
        make(table).run(),
    ]
    assert [
        (of_whole.tasks, of_cut.tasks) for of_whole, of_cut in zip(whole, cut, strict=True)
    ] == [
        ([1], [2]),
        ([1], [4]),
        ([1], [4]),
    ]
    assert [sorted(map(str, stream.rows())) for stream in whole] == [
        sorted(map(str, stream.rows())) for stream in cut
    ]


@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_the_changes_of_a_large_version_that_ended_no_row_are_spread_over_tasks(
    tmp_path: Path, metadata: str
) -> None:
    """A first load of two keys twice, say. An update in a version makes it one task's."""
    table = new_table(tmp_path / "t", segment_rows=3)
    upsert(table, *((key % 7, key, "x") for key in range(9)), metadata=metadata)
    table.metagen()
    upsert(table, *((key, 10, "y") for key in range(5, 15)), metadata=metadata)
    table.metagen()
    make = makes(partial(CalledStream, tuning=Tuning(task_rows=4, task_bytes=1)), tmp_path)
    stream = make(table, startingVersion=1, **FEED).run()
    assert stream.tasks == [3 + 1], "three files of the first load, and the second one"
    assert stream.changes() == expected(table, 1)


def test_a_micro_batch_has_at_most_the_given_number_of_versions(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    for key in range(1, 6):
        upsert(table, (key, key, "x"))
    assert new_stream(table, startingVersion=1, maxVersionsPerTrigger=2).run().ids() == [
        [1, 2],
        [3, 4],
        [5],
    ]
    assert new_stream(table, startingVersion=4, maxVersionsPerTrigger=9, **FEED).run().ids() == [
        [4, 5]
    ]
    whole = new_stream(table, maxVersionsPerTrigger=1).run()
    upsert(table, (6, 6, "x"))
    upsert(table, (7, 7, "x"))
    assert whole.run().ids() == [[1, 2, 3, 4, 5], [6], [7]], (
        "also after a restart; a table to begin with is one"
    )


STARTS: list[dict[str, object]] = [{}, {"startingVersion": 1}, {"startingVersion": "latest"}]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("options", [FEED, {}])
def test_a_stream_that_asks_before_it_says_where_it_is_continues_from_there(
    tmp_path: Path, start: dict[str, object], options: dict[str, object]
) -> None:
    """The stream continues even if its start has expired."""
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "x"), (2, 1, "x"))
    stream = makes(partial(CalledStream, available_now=True), tmp_path)(table, **start, **options)
    first = [] if start.get("startingVersion") == "latest" else [[1, 2]]
    assert stream.run().ids() == first
    assert stream.run().ids() == first
    upsert(table, (3, 1, "x"))
    upsert(table, (4, 1, "x"))
    assert stream.run().ids() == [*first, [3, 4]]
    table.retain(window="0s", grace="0s")
    with pytest.raises(NotFoundError, match="have expired"):
        table.changes(1)
    upsert(table, (5, 1, "x"))
    assert stream.run().ids() == [*first, [3, 4], [5]]
    assert stream.run().ids() == [*first, [3, 4], [5]]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_start_that_has_expired_is_an_error_until_another_one_is_given(
    tmp_path: Path, available_now: bool
) -> None:
    """Spark 4.1 keeps the first offset before it hears of it."""
    table = new_table(tmp_path / "t", checkpoint_commits=1)
    for key in range(1, 5):
        upsert(table, (key, key, "x"))
    table.retain(window="0s", grace="0s")
    upsert(table, (5, 5, "x"))
    stream = makes(partial(CalledStream, available_now=available_now), tmp_path)(
        table, startingVersion=1, **FEED
    )
    for _ in range(2):
        broken(
            stream,
            (
                "the changes of version 1 have expired; begin with version 5, the oldest one with "
                "readable changes"
            ),
        )
    stream.options["startingVersion"] = "5"
    assert stream.run().ids() == [[5]]
    upsert(table, (6, 6, "x"))
    assert stream.run().ids() == [[5], [6]]


def test_an_available_now_stream_stops_at_a_renamed_column(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "x"))
    stream = makes(partial(CalledStream, available_now=True), tmp_path)(
        table, columns("city", "_change_type"), startingVersion=1, **FEED
    )
    assert len(stream.run().rows()) == 1
    rename(table, "city", "town")
    broken(stream, "column 'city' does not exist")


def test_an_available_now_stream_with_a_version_limit_cannot_continue(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "x"))
    stream = makes(partial(CalledStream, available_now=True), tmp_path)(
        table, startingVersion=1, maxVersionsPerTrigger=1, **FEED
    )
    assert stream.run().ids() == [[1]]
    broken(
        stream, r"cannot continue after a restart; run it by opal_spark\.run_available\(writer\)"
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("start", STARTS)
def test_spark_continues_with_what_is_available_now(
    spark: SparkSession, tmp_path: Path, start: dict[str, object]
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "x"))
    stream = on_spark(spark, tmp_path)(table, **start, **FEED)
    assert isinstance(stream, SparkStream)
    for key in (2, 3, 4):
        assert stream.writer().trigger(availableNow=True).start().awaitTermination(300)
        upsert(table, (key, 1, "x"))
    assert stream.writer().trigger(availableNow=True).start().awaitTermination(300)
    assert stream.ids() == [[1], [2], [3], [4]][start.get("startingVersion") == "latest" :]


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_of_available_now_reads_the_existing_versions_and_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Across a restart. Spark 4.1 puts everything so far into one micro-batch."""
    table = new_table(tmp_path / "t")
    for key in (1, 2, 3):
        upsert(table, (key, key, "x"))
    stream = on_spark(spark, tmp_path)(table, startingVersion=1, **FEED)
    assert isinstance(stream, SparkStream)
    assert stream.writer().trigger(availableNow=True).start().awaitTermination(300)
    upsert(table, (3, 5, "y"), (4, 5, "y"))
    table.compact()
    upsert(table, (1, 6, None))
    upsert(table, (5, 6, "z"))
    stream.options["maxVersionsPerTrigger"] = "2"
    run_available(stream.writer())
    assert stream.ids() == [[1, 2, 3], [3, 3, 4], [1, 5]]
    assert stream.changes() == expected(table, 1)
    assert_in_order(stream, table)


@pytest.mark.spark
@pytest.mark.skipif(
    since_4_2 is None,
    reason="Spark 4.1 puts everything so far into one micro-batch (make test-next-spark)",
)
def test_spark_itself_limits_micro_batches_and_ends_with_the_existing_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = new_table(tmp_path / "t")
    for key in (1, 2, 3, 4, 5):
        upsert(table, (key, key, "x"))
    new = on_spark(spark, tmp_path)
    stream = new(table, startingVersion=1, maxVersionsPerTrigger=2, **FEED)
    assert isinstance(stream, SparkStream)

    def keep(rows: DataFrame, batch: int) -> None:
        upsert(table, (9, 9 + batch, "later"))
        stream._keep(rows, batch)

    query = stream.writer().foreachBatch(keep).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert stream.ids() == [[1, 2], [3, 4], [5]]
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"])["version"] > 5
    once = new(table, startingVersion=1, maxVersionsPerTrigger=2, **FEED)
    assert isinstance(once, SparkStream)
    assert once.writer().trigger(once=True).start().awaitTermination(300)
    assert once.changes() == expected(table, 1), "Trigger.Once reads all there is"


def test_a_stream_begins_at_its_start(tmp_path: Path, new_stream: NewStream) -> None:
    table = new_table(tmp_path / "t")
    for key in range(1, 4):
        upsert(table, (key, key, "x"))
    moment = (
        pa.scalar(table.log.read_commit(2).timestamp_us, pa.timestamp("us", "UTC"))
        .as_py()
        .isoformat()
    )
    assert new_stream(table, startingTimestamp=moment).run().ids() == [[2, 3]]
    latest = new_stream(table, startingVersion="latest", **FEED).run()
    ahead = new_stream(table, startingVersion=4).run()
    assert latest.ids() == ahead.ids() == []
    upsert(table, (4, 4, "x"))
    assert latest.run().ids() == ahead.run().ids() == [[4]], (
        "the first run has fixed where it begins"
    )
    few = new_stream(table, columns("CITY", "_change_type"), startingVersion=4, **FEED).run()
    assert few.rows() == [{"CITY": "x", "_change_type": "insert"}]
    no_updates = new_stream(table, startingVersion=5, computeUpdates="false", **FEED)
    upsert(table, (4, 5, "y"))
    assert no_updates.run().changes() == expected(table, 5, compute_updates=False)


def test_the_first_micro_batch_is_the_same_when_it_runs_again(
    tmp_path: Path, new_stream: NewStream
) -> None:
    """Spark stores the end of a micro-batch, but not its start."""
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    streams = [
        new_stream(table),
        new_stream(table, startingVersion="latest"),
        new_stream(table, startingVersion=1, **FEED),
    ]
    before = [stream.run().rows() for stream in streams]
    assert [len(rows) for rows in before] == [1, 0, 1]
    upsert(table, (2, 2, "Bonn"))
    for stream, rows in zip(streams, before, strict=True):
        stream.forget_commit()
        assert stream.run().batches[0] == rows
        assert stream.ids()[-1] == [2]


def broken(stream: Stream, words: str) -> None:
    with pytest.raises((StreamingQueryException, OpalError), match=words):
        stream.run()


def test_a_stream_does_not_continue_with_another_table(
    tmp_path: Path, any_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    stream = any_stream(table).run()
    (tmp_path / "t").rename(tmp_path / "dropped")
    upsert(new_table(tmp_path / "t"), (2, 1, "Bonn"))
    broken(
        stream,
        (
            r"the stream has read up to version 1 of a table at .* that was dropped "
            r"and created again since then; start over"
        ),
    )


def test_a_stream_does_not_continue_with_a_table_that_lost_versions(
    tmp_path: Path, any_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    shutil.copytree(tmp_path / "t", tmp_path / "backup")
    upsert(table, (2, 1, "Bonn"))
    stream = any_stream(table).run()
    (tmp_path / "t").rename(tmp_path / "lost")
    shutil.copytree(tmp_path / "backup", tmp_path / "t")
    broken(
        stream,
        (
            r"1 is the newest version of .*, but the stream has read up to version 2\. "
            r"Versions were lost, for example by restoring"
        ),
    )


def test_a_stream_does_not_begin_in_the_future(tmp_path: Path, new_stream: NewStream) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    late = new_stream(table, startingTimestamp="2999-01-01T00:00:00Z")
    broken(
        late,
        "is after the newest version 1, of .*; give an earlier time, or startingVersion=latest",
    )


def commit_as_it_is(table: Table, **changes: Any) -> None:
    """Commit another spec, which no operation does yet."""
    head = table.log.head()
    draft = Draft(
        actions=Actions(),
        result=JobResult(operation="set_properties", table=table.uri),
        changes_view=True,
    )
    proposal = Proposal(
        operation="set_properties", number=None, build=lambda head, winners: draft, started_us=0
    )
    link: Commit = table.log._link(head, proposal, draft)
    assert table.log.put(replace(link, **changes))


def test_changes_go_on_over_a_restore_and_rows_need_leave_to(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"), (2, 1, "Bonn"))
    upsert(table, (1, 2, "Oslo"))
    feed, rows = new_stream(table, startingVersion=1, **FEED).run(), new_stream(table).run()
    table.restore(version=1)
    upsert(table, (2, 3, "Lima"))
    assert feed.run().changes() == plain_rows(table.changes(1).to_pylist())
    broken(
        rows,
        (
            r"version 3 restored an older one, which a stream of rows cannot express; read changes "
            r"with"
        ),
    )
    assert new_stream(table).run().ids() == [[1, 2]], "a new one begins with what is there"
    willing = new_stream(table, startingVersion=3, ignoreDeletes="true").run()
    assert sorted((row["id"], row["city"]) for row in willing.rows()) == [(1, "Rom"), (2, "Lima")]


def test_a_stream_continues_when_a_column_is_renamed(tmp_path: Path, new_stream: NewStream) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    stream = new_stream(table, columns("city", "_change_type"), startingVersion=1, **FEED).run()
    rename(table, "city", "town")
    table.ingest(pa.table({"id": [2], "at": [2], "town": ["Bonn"]}), metadata="inline")
    assert [row["city"] for row in stream.run().rows()] == ["Rom", "Bonn"]
    rename(table, "town", "place")
    assert [row["city"] for row in stream.run().rows()] == ["Rom", "Bonn"]
    rename(table, "place", "site")
    table.ingest(pa.table({"id": [3], "at": [3], "site": ["Oslo"]}), metadata="inline")
    assert [row["city"] for row in stream.run().rows()] == ["Rom", "Bonn", "Oslo"]


def rename(table: Table, old: str, new: str) -> None:
    spec = table.snapshot_at().spec
    fields = tuple(
        replace(known, name=new) if known.name == old else known for known in spec.schema.fields
    )
    commit_as_it_is(
        table,
        actions=Actions(
            spec=replace(spec, schema=replace(spec.schema, fields=fields), deletes=None)
        ),
    )


def test_expired_versions_that_were_not_read_stop_a_stream(
    tmp_path: Path, new_stream: NewStream
) -> None:
    table = new_table(tmp_path / "t", checkpoint_commits=1)
    for key in range(1, 4):
        upsert(table, (key, key, "x"))
    stream = new_stream(table, startingVersion=1).run()
    for key in range(4, 7):
        upsert(table, (key, key, "x"))
    table.retain(window="0s", grace="0s")
    oldest = table.snapshot_at().root.oldest_version
    assert oldest == 6
    broken(
        stream,
        r"the changes of version 4 have expired; begin with version 7, the oldest one with",
    )
    broken(
        new_stream(table, startingVersion=1),
        r"the changes of version 1 have expired; begin with version 7, the oldest one",
    )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"startingVersion": "7"}, "has no version 7 yet; the newest is 1"),
        ({"startingVersion": "one"}, "option startingVersion='one' is not a version"),
        (
            {"startingVersion": "1", "startingTimestamp": "2026-01-01T00:00:00Z"},
            "are the same bound of the versions; leave one of them out",
        ),
        (
            {"maxVersionsPerTrigger": "0"},
            (
                "option maxVersionsPerTrigger='0' is not a number of versions; give a whole number "
                "of at least 1"
            ),
        ),
        (
            {"readChangeFeed": "perhaps"},
            "option readChangeFeed='perhaps' is neither true nor false",
        ),
        (
            {"readChangeFeed": "true", "ignoreDeletes": "true"},
            "option ignoreDeletes applies only to a stream of rows",
        ),
        (
            {"readChangeFeed": "true", "deduplicationMode": "netChanges"},
            "deduplicationMode=netChanges applies only to a batch read",
        ),
        (
            {"computeUpdates": "false"},
            (
                r"option computeUpdates applies only to a change feed; add "
                r".option\('readChangeFeed', "
                r"'true'\)"
            ),
        ),
        (
            {"endingVersion": "1"},
            "option endingVersion applies only to a batch read, because a stream has no end",
        ),
        (
            {"version": "1"},
            "option version does not apply to a stream; set its start with startingVersion",
        ),
        ({"maxFilesPerTrigger": "1"}, "has no option maxfilespertrigger"),
    ],
)
def test_options_of_a_stream_that_cannot_be_are_refused(
    tmp_path: Path, new_stream: NewStream, options: dict[str, str], words: str
) -> None:
    table = new_table(tmp_path / "t")
    upsert(table, (1, 1, "Rom"))
    with pytest.raises(Exception, match=words):  # whatever Spark makes of it
        new_stream(table, **options).run()
    assert table.snapshot_at().version == 1


def test_a_checkpoint_of_another_source_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    stream = CalledStream(
        uri=table.uri, checkpoint=tmp_path, offsets=['{"partition": 4}'], committed=1
    )
    broken(
        stream, r"the checkpoint holds {'partition': 4}, which is not an offset of format\('opal'\)"
    )
