"""Flushes that one committer commits: the same rows and positions as by direct commits."""

import logging
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from opal_lake import layout
from opal_lake.definition.table_spec import TableLayout
from opal_lake.errors import CommitUnknownError, FormatError, StorageError
from opal_lake.log.commit import seal
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, table_on
from opal_lake.write import ingest_task
from opal_stream.errors import BadMessageError, GapError, TakenOverError, TopicChangedError
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.gathered.folder import GatheredFolder, Listing
from opal_stream.kafka.connection import Connection
from opal_stream.operations.reading import FormatOptions, Policies
from opal_stream.tracking.alarms import AlarmLimits, find_alarms
from opal_stream.tracking.events import Tracker
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.status import read_status
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import (
    LAYOUT,
    SCHEMA,
    ends,
    gather,
    gathered,
    ids,
    new_stream,
    new_table,
    new_topic,
    order,
    read,
)
from tests.opal_stream.shaky import Shaky


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def publish(table: Table, kafka: Kafka, topic: str, **options: Any) -> int:
    return read(table, kafka, topic, commit="gathered", **options).records


def test_many_flushes_are_one_commit_with_the_rows_and_positions_of_direct_ones(
    kafka: Kafka, table: Table
) -> None:
    topic, before = new_topic(kafka, 2), table.log.head().version
    for turn in range(3):
        for partition in (0, 1):
            kafka.produce(
                topic,
                [order(10 * partition + n, turn, name=f"t{turn}") for n in range(3)],
                partition=partition,
            )
        assert (
            publish(table, kafka, topic, partitions=[0])
            + publish(table, kafka, topic, partitions=[1])
            == 6
        )
    kafka.produce(topic, [order(0, 9, op="D")])
    assert (publish(table, kafka, topic), publish(table, kafka, topic)) == (1, 0)
    assert (table.log.head().version, ids(table), len(gathered(table)), ends(table)) == (
        before,
        [],
        7,
        [],
    )
    totals = gather(table)
    assert (totals.records, totals.flushes, totals.version, ends(table)) == (
        19,
        1,
        before + 1,
        [10, 9],
    )
    assert (ids(table), gathered(table), check_table(table)) == ([1, 2, 10, 11, 12], [], [])
    assert {row["name"] for row in table.read(columns=["name"]).to_pylist()} == {"t2"}
    assert (gather(table).flushes, read(table, kafka, topic).records, table.log.head().version) == (
        0,
        0,
        before + 1,
    )


def test_a_start_goes_on_behind_what_is_gathered_and_both_ways_take_turns(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    publish(table, kafka, topic)
    kafka.produce(topic, [order(2)])
    assert (publish(table, kafka, topic), gather(table).records) == (1, 2)
    kafka.produce(topic, [order(3)])
    publish(table, kafka, topic)
    assert read(table, kafka, topic).records == 1  # the direct way asks the table alone
    assert (ids(table), len(gathered(table))) == ([1, 2, 3], 1)
    kafka.produce(topic, [order(4)])
    assert (publish(table, kafka, topic), gather(table).records) == (1, 1)
    assert (ids(table), ends(table), gathered(table)) == ([1, 2, 3, 4], [4], [])


def test_one_of_two_gathering_processes_of_a_partition_stops(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    for commits in (False, True):
        kafka.produce(topic, [order(1)])
        first, second = (
            new_stream(table, kafka, topic, commit="gathered", until_empty=False) for _ in range(2)
        )
        for stream in (first, second):
            stream._begin()
        while not (first._buffer.rows and second._buffer.rows):
            for stream in (first, second):
                stream._take(stream._source.fetch(0.1))
        first._flush()
        if commits:
            gather(table)
        kafka.produce(topic, [order(2)])
        while second._buffer.rows < 2:
            second._take(second._source.fetch(0.1))
        with pytest.raises(
            TakenOverError, match=rf"{topic}/0: another process reads it for this table"
        ):
            second._flush()
        for stream in (first, second):
            stream._source.close()
        publish(table, kafka, topic)
        gather(table)
    assert (ends(table), table.snapshot_at().root.rows, gathered(table)) == ([4], 4, [])


def test_two_committers_by_mistake_commit_each_file_once(kafka: Kafka, table: Table) -> None:
    topic, batches = new_topic(kafka, 3), 6
    committers = [
        Committer(Table.open(table.uri), CommitterOptions(interval_s=0.01)) for _ in range(2)
    ]
    threads = [threading.Thread(target=committer.run) for committer in committers]
    for thread in threads:
        thread.start()
    for batch in range(batches):
        for partition in range(3):
            kafka.produce(
                topic, [order(100 * partition + n, batch) for n in range(20)], partition=partition
            )
        publish(table, kafka, topic, limits=FlushLimits(interval_s=60, rows=15))
    for committer in committers:
        committer.stop()
    for thread in threads:
        thread.join(60)
    gather(table)
    assert ends(table) == [20 * batches] * 3
    assert (table.snapshot_at().root.rows, len(ids(table)), gathered(table)) == (
        60 * batches,
        60,
        [],
    )


def test_a_commit_has_no_more_than_its_bytes_and_the_rest_comes_at_once(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 2)
    for turn in range(4):
        for partition in (0, 1):
            kafka.produce(
                topic, [order(n, turn, name="x" * 2000) for n in range(20)], partition=partition
            )
        publish(table, kafka, topic)
    totals = gather(table, bytes=100_000)
    assert (totals.flushes, totals.records, ends(table)) == (
        3,
        160,
        [80, 80],
    )  # 40 kB each, so three files a commit


def test_a_store_that_fails_or_does_not_answer_is_tried_again_and_what_has_landed_is_known(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(5)])
    store = Shaky(open_storage(table.uri), layout.GATHERED)
    store.failures = ["after", "before"]
    publish(table_on(store), kafka, topic, limits=FlushLimits(interval_s=60))
    assert (store.failures, len(gathered(table))) == ([], 1)
    store = Shaky(open_storage(table.uri))
    store.failures = ["after", "before"]
    totals = gather(table_on(store))
    assert (store.failures, totals.records, totals.flushes, ids(table), gathered(table)) == (
        [],
        5,
        1,
        [0, 1, 2, 3, 4],
        [],
    )
    kafka.produce(topic, [order(7)])
    publish(table, kafka, topic)
    store.failures = ["before"] * 100
    with pytest.raises((StorageError, CommitUnknownError)):
        gather(table_on(store), give_up_s=0.5)
    assert (ends(table), len(gathered(table))) == ([5], 1)


def test_bad_messages_stop_the_process_or_are_put_aside_by_the_committer(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2), b"nope", order(3)])
    with pytest.raises(BadMessageError, match=rf"{topic}/0@2: the message is not a JSON object"):
        publish(table, kafka, topic)
    assert (gather(table).records, ids(table), ends(table)) == (2, [1, 2], [2])
    stream = new_stream(table, kafka, topic, on_bad_message="quarantine", commit="gathered")
    assert stream.run().bad == gather(table).bad == 1
    assert (ids(table), ends(table)) == ([1, 2, 3], [4])
    [rejected] = [
        row
        for path in Path(table.uri).rglob("_opal/rejected/*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert rejected == {
        "reason": "the message is not a JSON object",
        "source": f"{topic}/0@2",
        "row": "nope",
    }


def test_rows_that_an_ingest_would_refuse_stop_the_process_that_reads_them(
    kafka: Kafka, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    table, topic = (
        Table.create(str(tmp_path / "t"), schema, keys=["id"], delta="at"),
        new_topic(kafka),
    )
    kafka.produce(topic, [{"id": "x" * (1 << 20), "at": 1}])
    with pytest.raises(BadMessageError, match="key is longer than"):
        publish(table, kafka, topic)
    assert gathered(table) == []
    assert publish(table, kafka, topic, on_bad_message="quarantine") == 1
    assert (gather(table).bad, ends(table)) == (1, [1])


def test_columns_added_later_are_null_in_rows_of_older_files(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    publish(table, kafka, topic)
    kafka.produce(topic, [order(2, gift="ribbon")])
    publish(table, kafka, topic, formats=FormatOptions(on_new_columns="add"))
    assert (len(gathered(table)), gather(table).records) == (2, 2)
    assert table.read(columns=["id", "gift"]).sort_by("id").to_pylist() == [
        {"id": 1, "gift": None},
        {"id": 2, "gift": "ribbon"},
    ]


def test_marks_of_transactions_move_the_position_and_a_gap_is_passed_over(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    kafka.produce_in_transaction(topic, order(1))
    publish(table, kafka, topic)
    kafka.produce(topic, [order(n) for n in range(2, 8)])
    admin = kafka.admin  # its answers end with it
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(30)
    stream = new_stream(
        table, kafka, topic, policies=Policies(on_gap="continue"), commit="gathered"
    )
    assert (stream.run().missing, gather(table).records) == (3, 4)
    assert (ids(table), ends(table)) == ([1, 5, 6, 7], [8])


@pytest.fixture
def damaged(kafka: Kafka, table: Table) -> tuple[str, list[Path]]:
    """Gather three files of each of a topic's two partitions."""
    topic = new_topic(kafka, 2)
    for turn in range(3):
        for partition in (0, 1):
            kafka.produce(topic, [order(10 * partition + turn)], partition=partition)
        publish(table, kafka, topic)
    return topic, sorted(Path(table.uri).rglob("_opal/gathered/*/*.rows"))


def _resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    line, _, rows = data.partition(b"\n")
    return seal(line.partition(b'"body":')[2][:-1].replace(old, new)) + rows


@pytest.mark.parametrize("how", ["garbage", "cut", "flipped", "empty", "moved", "of another table"])
def test_a_damaged_file_is_named_and_holds_back_its_own_partition(
    kafka: Kafka,
    table: Table,
    tmp_path: Path,
    damaged: tuple[str, list[Path]],
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, files = damaged
    data = files[1].read_bytes()
    (tmp_path / "other").mkdir()
    own_id, other_id = (
        item.log.head().root.table_id.encode() for item in (table, new_table(tmp_path / "other"))
    )
    bodies = {
        "garbage": b"\x00" * 300,
        "cut": data[:-1],
        "flipped": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        "empty": b"",
    }
    bodies |= {
        "moved": files[2].read_bytes(),
        "of another table": _resealed(data, own_id, other_id),
    }
    files[1].write_bytes(bodies[how])
    (files[0].parent / "stranger").write_bytes(b"?")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(FormatError, match=f"{files[1].name}.*delete it") as failure,
    ):
        gather(table)
    assert "stranger does not have the name of a file of gathered rows" in str(failure.value)
    assert (
        f"{files[2].name} begins at offset 2, but the table and the files before it reach only "
        "offset 1" in str(failure.value)
    )
    assert (ends(table), ids(table)) == ([1, 3], [0, 10, 11, 12])
    assert len(caplog.records) == 3
    for path in (files[1], files[0].parent / "stranger"):
        path.unlink()
    assert (publish(table, kafka, topic), gather(table).records) == (2, 2)
    assert (ids(table), ends(table), gathered(table)) == ([0, 1, 2, 10, 11, 12], [3, 3], [])


def test_damaged_files_of_another_stream_are_no_problem_of_this_one(
    kafka: Kafka, table: Table, damaged: tuple[str, list[Path]]
) -> None:
    damaged[1][1].write_bytes(b"?")
    read(table, kafka, damaged[0], commit="gathered", name="other")
    metrics = Metrics()
    done = Committer(
        table, CommitterOptions(name="other", until_empty=True), Tracker(metrics=metrics)
    ).run()
    assert (done.records, ids(table)) == (6, [0, 1, 2, 10, 11, 12])
    assert "opal_stream_stuck_files 0\n" in metrics.text()
    with pytest.raises(FormatError, match=damaged[1][1].name):
        gather(table)


@pytest.mark.parametrize("how", ["header", "rows"])
def test_a_file_that_somebody_replaces_is_read_again_by_the_committer_that_found_it_damaged(
    table: Table, damaged: tuple[str, list[Path]], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged[1][1]
    data, at = path.read_bytes(), 5 if how == "header" else -9
    wrong = bytearray(data)
    wrong[at] ^= 1
    path.write_bytes(wrong)
    committer = Committer(table, CommitterOptions())
    for _ in range(3):
        committer._turn()
    assert (ends(table), sum(path.name in record.getMessage() for record in caplog.records)) == (
        [1, 3],
        1,
    )
    path.write_bytes(data)
    committer._turn()
    assert (ends(table), gathered(table)) == ([3, 3], [])


def test_rows_that_do_not_fit_the_table_are_refused(
    kafka: Kafka, table: Table, damaged: tuple[str, list[Path]]
) -> None:
    head = table.log.head()
    folder = GatheredFolder(table.storage, head.root.table_id)
    path = damaged[1][0].relative_to(table.uri).as_posix()
    header = folder.read_header(path)
    [(_, decoded)] = folder.read_rows([header], head.spec)
    assert decoded is not None
    rows = decoded.rows
    for wrong, reason in (
        (rows.drop_columns(["name"]), "it lacks column 'name'"),
        (rows.append_column("more", pa.array([1])), "the table has no column 'more'"),
        (
            rows.set_column(0, "id", pa.array(["1"])),
            "its column 'id' is STRING, that of the table BIGINT",
        ),
    ):
        damaged[1][0].unlink()
        assert folder.put(header, replace(decoded, rows=wrong))
        with pytest.raises(FormatError, match=reason):
            gather(table)


def test_retention_keeps_uncommitted_files_and_deletes_committed_ones(
    kafka: Kafka, table: Table, damaged: tuple[str, list[Path]]
) -> None:
    files = damaged[1]
    remaining = {path: path.read_bytes() for path in files}

    def retain() -> int:
        return table.retain(window="0s", grace="0s").counts.get("gathered_files", 0)

    assert (retain(), len(gathered(table)), check_table(table)) == (0, 6, [])
    gather(table)
    for path, data in remaining.items():  # as of a committer that died before it deleted them
        path.write_bytes(data)
    (files[0].parent / "stranger").write_bytes(b"?")
    assert (retain(), gathered(table)) == (6, ["stranger"])


def test_files_gathered_on_s3_are_committed_and_deleted(
    kafka: Kafka, s3_options: dict[str, str]
) -> None:
    table, topic = (
        Table.create("s3://lake/gathered", SCHEMA, **asdict(LAYOUT), options=s3_options),
        new_topic(kafka, 2),
    )
    for partition in (0, 1):
        kafka.produce(topic, [order(10 * partition + n) for n in range(3)], partition=partition)
    assert publish(table, kafka, topic, partitions=[1]) + publish(table, kafka, topic) == 6
    assert [row.gathered for row in read_status(table, None)] == [3, 3]
    assert (gather(table).records, ids(table), ends(table)) == (6, [0, 1, 2, 10, 11, 12], [3, 3])
    assert ([*table.storage.list(layout.GATHERED)], read(table, kafka, topic).flushes) == ([], 0)


def test_the_status_counts_gathered_offsets_as_lag(
    kafka: Kafka, table: Table, damaged: tuple[str, list[Path]]
) -> None:
    topic, files = damaged
    connection = Connection(bootstrap_servers=kafka.servers)

    def status() -> list[tuple[int, int | None, int, str]]:
        return [
            (row.position, row.lag, row.gathered, row.note)
            for row in read_status(table, connection)
            if row.topic == topic
        ]

    assert status() == [(0, 3, 3, ""), (0, 3, 3, "")]
    files[4].write_bytes(b"")
    with pytest.raises(FormatError):
        gather(table)
    assert status() == [(3, 0, 0, ""), (1, 2, 0, "2 gathered files cannot be committed")]


def test_messages_in_gathered_files_are_not_lost_when_kafka_deletes_them(
    kafka: Kafka, table: Table
) -> None:
    topic, admin, connection = (
        new_topic(kafka),
        kafka.admin,
        Connection(bootstrap_servers=kafka.servers),
    )

    def delete_before(offset: int) -> tuple[int, list[str]]:
        [deleted] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        deleted.result(30)
        [status] = read_status(table, connection)
        return status.lost, [
            status.note,
            *(alarm.message.partition(": ")[2] for alarm in find_alarms([status], AlarmLimits())),
        ]

    kafka.produce(topic, [order(n) for n in range(4)])
    publish(table, kafka, topic)
    assert delete_before(3) == (0, [""])
    for on_gap in ("fail", "continue"):
        with pytest.raises(
            GapError,
            match=(
                f"{topic}/0: Kafka has deleted the messages before offset 3, .* files hold the "
                "offsets from 0 to 4: commit the files first"
            ),
        ):
            read(table, kafka, topic, policies=Policies(on_gap=on_gap))
    kafka.produce(topic, [order(n) for n in range(4, 8)])
    assert delete_before(6) == (
        2,
        ["2 offsets are lost", "Kafka deleted 2 offsets from 4 on before they were read"],
    )
    assert gather(table).records == 4
    with pytest.raises(GapError, match="the table stands at offset 4"):
        read(table, kafka, topic)
    assert read(table, kafka, topic, policies=Policies(on_gap="continue")).missing == 2
    assert ids(table) == [0, 1, 2, 3, 6, 7]


def test_a_file_that_an_ingest_refuses_is_found_among_the_others(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout_by_name = TableLayout(keys=["id"], delta="at", deletes="op = 'D'", partition_by=["name"])
    table, topic = (
        Table.create(str(tmp_path / "t"), SCHEMA, **asdict(layout_by_name)),
        new_topic(kafka, 3),
    )
    for partition, names in ((0, 2), (1, 6), (2, 3)):
        kafka.produce(
            topic,
            [order(10 * partition + n, name=f"n{n}") for n in range(names)],
            partition=partition,
        )
    publish(table, kafka, topic)
    monkeypatch.setattr(ingest_task, "FILES_A_TASK", 4)
    with pytest.raises(
        FormatError,
        match=(
            f"{topic}.*1/0+.rows: the table refuses its rows: one task would write "
            "more than 4 files"
        ),
    ):
        gather(table)
    assert ids(table) == [0, 1, 20, 21, 22]


def test_rows_of_a_topic_created_again_are_committed_after_the_earlier_ones(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    """Whatever the store says of when files were written."""
    topic, went_back = new_topic(kafka), False
    for turn in range(
        20
    ):  # by chance the next id is before the last one in the order of their names
        before = kafka.topic_id(topic)
        kafka.produce(topic, [order(1, name=f"old{turn}"), order(2, op="D")])
        publish(table, kafka, topic, policies=Policies(on_new_topic="continue"))
        for path in (tmp_path / "orders/_opal/gathered").rglob("*.rows"):
            os.utime(path, (time.time() + 3600, time.time() + 3600))
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        went_back = kafka.topic_id(topic) < before
        kafka.produce(topic, [order(1, name=f"new{turn}"), order(2)])
        publish(table, kafka, topic, policies=Policies(on_new_topic="continue"))
        assert gather(table).records == 4
        assert {
            row["id"]: row["name"] for row in table.read(columns=["id", "name"]).to_pylist()
        } == {1: f"new{turn}", 2: "n2"}
        if went_back:
            break
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
    assert went_back


def test_a_topic_created_again_waits_for_every_partition_of_the_one_before(
    kafka: Kafka, table: Table
) -> None:
    """Create the topic again, with its keys in other partitions than before.

    Commits hold one file each.
    """
    for parts in ((3, 1), (1, 3)):
        topic = new_topic(kafka, parts[0])
        for turn, partitions in enumerate(parts):
            if turn:
                kafka.delete_topic(topic)
                kafka.create_topic(topic, partitions)
            for round_ in range(2):
                kafka.produce(topic, [order(1, name=f"{turn}.{round_}")], partition=partitions - 1)
                kafka.produce(
                    topic, [order(n, name=f"{turn}.{round_}") for n in range(2, 9)], partition=0
                )
                publish(table, kafka, topic, policies=Policies(on_new_topic="continue"))
        assert gather(table, bytes=1).records == 32
        assert {*table.read(columns=["name"]).column("name").to_pylist()} == {"1.1"}


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_messages_whose_only_copy_is_in_files_are_not_passed_over_without_the_first_file(
    how: str, kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, admin = new_topic(kafka), kafka.admin  # its answers end with it
    for first in (0, 3):
        kafka.produce(topic, [order(n) for n in range(first, first + 3)])
        publish(table, kafka, topic)
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(30)
    kafka.produce(topic, [order(6)])
    file = min((tmp_path / "orders/_opal/gathered").rglob("*.rows"))
    copy = file.read_bytes()
    file.write_bytes(b"damaged") if how == "damaged" else file.unlink()
    begins = 0 if how == "damaged" else 3
    said = (
        f"{topic}/0: Kafka has deleted the messages before offset 6. Gathered files hold such "
        f"messages, from offset {begins} on, but cannot be committed: "
    )
    for commit in ("direct", "gathered"):
        with pytest.raises(GapError, match=said):
            read(table, kafka, topic, commit=commit)
    file.write_bytes(copy)
    publish(table, kafka, topic)
    gather(table)
    assert ids(table) == [*range(7)]


def test_direct_commits_of_a_recreated_topic_are_refused_until_older_gathered_rows_are_committed(
    kafka: Kafka, table: Table
) -> None:
    topic, continuing = new_topic(kafka), Policies(on_new_topic="continue")
    kafka.produce(topic, [order(1, name="old")])
    publish(table, kafka, topic)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [order(1, name="new")])
    with pytest.raises(
        TopicChangedError,
        match=(
            f"{topic} was deleted .* must be committed first: run `opal stream commit {table.uri}`"
        ),
    ):
        read(table, kafka, topic, policies=continuing)
    assert gather(table).records == 1
    assert read(table, kafka, topic, policies=continuing).records == 1
    assert table.read(columns=["name"]).column("name").to_pylist() == ["new"]


def test_a_commit_meanwhile_does_not_hide_files_of_the_earlier_topic(
    kafka: Kafka, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, committer = new_topic(kafka), Committer(table, CommitterOptions(bytes=1))
    for number in range(2):
        kafka.produce(topic, [order(number, name="old")])
        publish(table, kafka, topic)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [order(1, name="new")])
    look, between = GatheredFolder.look, [committer._turn]

    def look_behind_a_commit(folder: GatheredFolder) -> Listing:
        if between:
            between.pop()()
        return look(folder)

    monkeypatch.setattr(GatheredFolder, "look", look_behind_a_commit)
    with pytest.raises(TopicChangedError, match="must be committed first"):
        read(table, kafka, topic, policies=Policies(on_new_topic="continue"))
    assert (ids(table), between) == ([0], [])


def test_a_damaged_file_whose_rows_are_committed_is_only_deleted(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic = new_topic(kafka)
    for number in range(2):
        kafka.produce(topic, [order(number)])
        publish(table, kafka, topic)
        [file] = (tmp_path / "orders/_opal/gathered").rglob("*.rows")
        gather(table)
    file.write_bytes(b"damaged")
    [status] = read_status(table, None)
    assert (status.note, status.problems) == ("", {})
    assert gather(table).records == 0
    assert (gathered(table), ids(table)) == ([], [0, 1])


def test_without_its_first_file_a_partition_lags_by_all_that_kafka_has(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic = new_topic(kafka)
    for number in range(3):
        kafka.produce(topic, [order(number)])
        publish(table, kafka, topic)
    min((tmp_path / "orders/_opal/gathered").rglob("*.*")).unlink()
    (entry,) = read_status(table, Connection(bootstrap_servers=kafka.servers))
    assert (entry.position, entry.lag) == (0, 3)
