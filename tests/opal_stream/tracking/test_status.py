"""`opal stream status` of what no commit has reached: partitions, topics and whole tables."""

import json
import time
from itertools import chain
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from opal_lake.cli import main
from opal_lake.definition.positions import Advance
from opal_lake.exit_codes import DAMAGE, FINDINGS, INPUT, OK
from opal_lake.table import Table
from opal_stream.errors import TopicChangedError
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.stream import Tuning
from opal_stream.gathered import backlog as backlogs
from opal_stream.kafka.connection import Connection
from opal_stream.tracking.events import Tracker
from opal_stream.tracking.lag import read_lag
from opal_stream.tracking.metrics import Metrics
from opal_stream.tracking.status import read_status
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.opal_stream.flush.build import started, wait_for
from tests.opal_stream.orders import (
    SCHEMA,
    gather,
    ids,
    new_stream,
    new_table,
    new_topic,
    order,
    read,
)

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.usefixtures("opal_commands")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def words(table: Table, kafka: Kafka, *more: str) -> list[str]:
    return ["stream", "status", table.uri, "--bootstrap-servers", kafka.servers, *more]


def delete_before(kafka: Kafka, topic: str, partition: int, offset: int) -> None:
    admin = kafka.admin
    [deleted] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    deleted.result(30)


def test_partitions_that_no_commit_has_reached_are_behind_by_all_they_have(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, connection = new_topic(kafka, 2), Connection(bootstrap_servers=kafka.servers)
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic)
    assert main(words(table, kafka, "--alarm-lag", "0")) == OK
    time.sleep(1.2)
    kafka.produce(topic, [order(n) for n in range(10, 14)], partition=1)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [order(20)], partition=2)
    delete_before(kafka, topic, 1, 1)
    rows = [
        (row.partition, row.position, row.end, row.lag, row.note, row.lost)
        for row in read_status(table, connection)
    ]
    assert rows == [
        (0, 1, 1, 0, "", 0),
        (1, None, 4, 3, "not read yet", 0),
        (2, None, 1, 1, "not read yet", 0),
    ]
    assert read_lag(table, connection, "main").messages == 4  # the sensor's
    capsys.readouterr()
    assert main(words(table, kafka, "--alarm-lag", "2")) == FINDINGS
    *_, second, third, alarm = capsys.readouterr().out.splitlines()
    assert second.split()[:6] == ["main", topic, "1", "-", "4", "3"]
    assert third.split()[:6] == ["main", topic, "2", "-", "1", "1"]
    assert alarm == f"lag: main {topic}/1 is 3 messages behind, more than 2"
    time.sleep(1.2)
    assert main(words(table, kafka, "--alarm-stall", "1s", "--json")) == FINDINGS
    alarms = [entry["alarms"] for entry in json.loads(capsys.readouterr().out)]
    messages = [alarm["message"] for alarm in chain(*alarms)]
    assert [message.partition(": its oldest")[0] for message in messages] == [
        f"main {topic}/{number} has never been committed" for number in (1, 2)
    ]
    read(table, kafka, topic)
    assert main(words(table, kafka, "--alarm-lag", "0", "--alarm-stall", "1s")) == OK


def test_a_stream_that_began_a_moment_ago_stalls_nowhere(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2, retention_ms="-1")
    for partition in (0, 1):
        kafka.produce(
            topic, [order(partition)], partition=partition, moments_ms=[1_700_000_000_000]
        )
    read(table, kafka, topic, partitions=[0])
    assert main(words(table, kafka, "--alarm-stall", "1h")) == OK
    assert main(words(table, kafka, "--alarm-lag", "0", "--alarm-stall", "1h")) == FINDINGS


def test_a_table_without_a_stream_is_reported_as_unknown(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, nothing = new_topic(kafka), f"no stream has committed to {table.uri} yet"
    kafka.produce(topic, [order(1), order(2)])
    assert main(words(table, kafka)) == OK
    assert capsys.readouterr().out.startswith(nothing)
    for alarm in (["--alarm-lag", "100"], ["--alarm-stall", "1h"]):
        assert main(words(table, kafka, *alarm)) == FINDINGS
        assert capsys.readouterr().out.startswith(f"start: {nothing}")
    assert main(words(table, kafka, "--alarm-lag", "100", "--json")) == FINDINGS
    output, errors = capsys.readouterr()
    assert (json.loads(output), errors.startswith(f"start: {nothing}")) == ([], True)
    assert main(["stream", "status", table.uri, "--topic", "typo"]) == OK
    assert capsys.readouterr().out.startswith(
        f"stream main has committed nothing of typo to {table.uri}; to see the messages"
    )


def test_named_topics_are_shown_before_a_stream_has_read_them(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sorted((new_topic(kafka), new_topic(kafka)))
    kafka.produce(first, [order(1), order(2)])
    for name in ("main", "again"):
        named = words(table, kafka, "--topic", first, "--name", name)
        assert main([*named, "--alarm-lag", "2"]) == OK
        capsys.readouterr()
        assert main([*named, "--alarm-lag", "1"]) == FINDINGS
        assert (
            capsys.readouterr().out.splitlines()[-1]
            == f"lag: {name} {first}/0 is 2 messages behind, more than 1"
        )
    read(table, kafka, first)
    kafka.produce(second, [order(3)])
    read(table, kafka, second)
    for topic, name, lag in ((first, "main", 0), (second, "main", 0), (first, "again", 2)):
        assert main(words(table, kafka, "--topic", topic, "--name", name, "--json")) == OK
        [entry] = json.loads(capsys.readouterr().out)
        assert (entry["stream"], entry["topic"], entry["lag"]) == (name, topic, lag)
    assert main(words(table, kafka, "--topic", "nothing")) == INPUT
    assert "Kafka has no topic 'nothing'" in capsys.readouterr().err


def test_partitions_are_told_by_number_and_old_commits_by_what_came_since(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(kafka, 11)
    for partition in (2, 10):
        kafka.produce(topic, [order(partition)], partition=partition)
        read(table, kafka, topic, partitions=[partition])
    first, second = read_status(table, None, window_s=0.0)
    assert (first.partition, first.committed, first.committed_before) == (2, None, second.committed)
    assert (second.partition, second.committed_before) == (10, None)
    kafka.produce(topic, [order(3)], partition=3)
    read(table, kafka, topic, partitions=[3], commit="gathered")
    assert [
        (item.partition, item.committed_before)
        for item in read_status(table, None)
        if item.gathered
    ] == [(3, None)]
    gather(table)
    assert main(["stream", "status", table.uri]) == OK
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "2",
        "3",
        "10",
    ]


def test_a_topic_of_which_only_the_start_is_committed_has_been_begun(
    kafka: Kafka, table: Table
) -> None:
    topic, connection = new_topic(kafka), Connection(bootstrap_servers=kafka.servers)
    read(table, kafka, topic, start="latest")
    kafka.produce(topic, [order(1), order(2)])
    assert [(row.position, row.lag) for row in read_status(table, connection)] == [(None, 2)]
    assert read_lag(table, connection, "main").messages == 2


def alarms(
    table: Table, kafka: Kafka, capsys: pytest.CaptureFixture[str], *more: str
) -> dict[str, str]:
    """Return the alarms by kind; each entry has its own."""
    capsys.readouterr()
    code = main(words(table, kafka, "--json", *more))
    actual = {
        alarm["kind"]: alarm["message"]
        for entry in json.loads(capsys.readouterr().out)
        for alarm in entry["alarms"]
    }
    assert code == (FINDINGS if actual else OK)
    return actual


LIMITS = (["--alarm-lag", "1000"], ["--alarm-stall", "1h"])


def test_a_topic_created_again_is_an_alarm_until_the_new_one_is_read(
    kafka: Kafka, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, metrics = new_topic(kafka), tmp_path / "m.prom"
    kafka.produce(topic, [order(n) for n in range(3)])
    stream = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--until-empty",
        "--metrics-file",
        str(metrics),
    ]
    report = f'opal_stream_topic_changed{{topic="{topic}"}} '
    assert main(stream) == OK
    assert report not in metrics.read_text()
    kafka.delete_topic(topic)
    for limit in LIMITS:
        said = alarms(table, kafka, capsys, *limit)["topic"]
        assert said.startswith(f"main {topic}/0: Kafka has no topic {topic!r} any more")
        assert "create the topic again, and start the stream with on_new_topic='continue'" in said
    kafka.create_topic(topic)
    assert alarms(table, kafka, capsys) == {}  # nobody asked
    for limit in LIMITS:
        assert alarms(table, kafka, capsys, *limit)["topic"].startswith(
            f"main {topic}/0: the table stands at offset 3 of the topic with id "
        )
    assert "--on-new-topic continue" in alarms(table, kafka, capsys, *LIMITS[0])["topic"]
    assert main(stream) == INPUT
    assert f"{report}1\n" in metrics.read_text()
    kafka.produce(topic, [order(4)])
    assert main([*stream, "--on-new-topic", "continue"]) == OK
    assert report not in metrics.read_text()
    assert alarms(table, kafka, capsys, *LIMITS[0]) == {}


def test_a_topic_that_ends_before_the_position_is_an_alarm(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    name = f"kafka:main/{topic}@{kafka.topic_id(topic)}/0"
    table.ingest(
        SCHEMA.empty_table(),
        metadata="inline",
        positions={name: Advance(start=7, end=7, first=True)},
    )  # as of a broker restored
    with pytest.raises(TopicChangedError):
        read(table, kafka, topic)
    for limit in LIMITS:
        assert alarms(table, kafka, capsys, *limit)["topic"].startswith(
            f"main {topic}/0: the table stands at offset 7, but Kafka ends at 1: an "
            "unclean election or a"
        )
    assert alarms(table, kafka, capsys) == {}


def test_gathered_files_that_cannot_be_committed_are_an_alarm(
    kafka: Kafka,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, metrics, report = new_topic(kafka), tmp_path / "m.prom", "opal_stream_stuck_files "
    commit = ["stream", "commit", table.uri, "--until-empty", "--metrics-file", str(metrics)]
    for number in range(3):
        kafka.produce(topic, [order(number)])
        read(table, kafka, topic, commit="gathered")
    assert [alarms(table, kafka, capsys, *limit) for limit in LIMITS] == [{}, {}]
    monkeypatch.setattr(backlogs, "MIN_FILE_BYTES", backlogs.MIB)
    assert alarms(table, kafka, capsys, "--gathered-mb", "4", *LIMITS[0]) == {}
    assert alarms(table, kafka, capsys, "--gathered-mb", "3", *LIMITS[0])["gathered"].startswith(
        "main is held back: 3 gathered files"
    )
    assert alarms(table, kafka, capsys, "--gathered-mb", "3") == {}
    path = sorted(Path(table.uri).rglob("_opal/gathered/*/*.rows"))[1]
    data = path.read_bytes()
    path.write_bytes(b"")
    for limit in LIMITS:
        actual = alarms(table, kafka, capsys, *limit)
        assert actual["gathered"].startswith(
            f"main {topic}/0: 2 gathered files cannot be committed: "
        )
        assert f"{path.name} is damaged" in actual["gathered"]
        assert "delete it and start its stream again" in actual["gathered"]
    path.unlink()
    actual = alarms(table, kafka, capsys, *LIMITS[0])
    assert (
        "begins at offset 2, but the table and the files before it reach only offset 1: a file "
        "between them is missing"
    ) in actual["gathered"]
    assert main(commit) == DAMAGE
    assert f"{report}1\n" in metrics.read_text()
    path.write_bytes(data)
    assert main(commit) == OK
    assert f"{report}0\n" in metrics.read_text()
    assert alarms(table, kafka, capsys, *LIMITS[0]) == {}


def test_messages_that_were_read_and_wait_for_their_flush_are_no_open_transaction(
    kafka: Kafka, table: Table
) -> None:
    topic, metrics = new_topic(kafka), Metrics()
    kafka.produce(topic, [order(1)])
    read(table, kafka, topic)
    stream = new_stream(
        table,
        kafka,
        topic,
        until_empty=False,
        limits=FlushLimits(interval_s=60),
        tracker=Tracker(metrics=metrics),
        # One message a fetch, so that it does not reach the end again
        tuning=Tuning(look_s=0.05, max_at_once=1),
    )
    thread, failures = started(stream)
    labels = f'{{topic="{topic}",partition="0"}}'
    wait_for(lambda _: f"opal_stream_lag{labels} 0\n" in metrics.text(), table, True)
    time.sleep(0.3)  # it has reached the end
    kafka.produce(topic, [order(number) for number in range(2, 4_000)])
    waits = set()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        lines = metrics.text().splitlines()
        waits |= {line for line in lines if line.startswith("opal_stream_transaction_seconds{")}
        time.sleep(0.02)
    page = metrics.text()
    stream.stop()
    thread.join(30)
    assert not failures
    assert waits == {f"opal_stream_transaction_seconds{labels} 0"}
    assert f"opal_stream_stalled_seconds{labels} 0\n" not in page


def test_a_transaction_that_hangs_is_lag_everywhere_and_an_alarm(
    kafka: Kafka, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, connection = new_topic(kafka), Connection(bootstrap_servers=kafka.servers)
    kafka.produce(topic, [order(1)])
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in (2, 3):
        producer.produce(topic, json.dumps(order(number)).encode(), partition=0)
    assert producer.flush(30) == 0
    kafka.produce(topic, [order(4)])
    metrics = Metrics(path=str(tmp_path / "m.prom"))
    stream = new_stream(table, kafka, topic, until_empty=False, tracker=Tracker(metrics=metrics))
    thread, failures = started(stream)
    labels = f'{{topic="{topic}",partition="0"}}'
    wait_for(lambda _: f"opal_stream_lag{labels} 3\n" in metrics.text(), table, True)
    stalled = f"opal_stream_stalled_seconds{labels} 0\n"
    wait_for(lambda _: stalled in metrics.text(), table, True)
    wait_for(lambda _: "transaction_seconds" + labels + " 0\n" in metrics.text(), table, False)
    [entry] = read_status(table, connection, stall_s=0.5)
    assert (entry.position, entry.end, entry.lag, ids(table)) == (1, 4, 3, [1])
    assert entry.note == "waits for an open transaction, which 3 offsets are in or behind"
    lag = read_lag(table, connection, "main")
    assert (lag.messages, lag.delay_s > 0) == (3, True)
    assert main(words(table, kafka, "--alarm-lag", "3", "--alarm-stall", "1h")) == OK
    time.sleep(1)
    capsys.readouterr()
    assert main(words(table, kafka, "--alarm-lag", "2", "--alarm-stall", "1s")) == FINDINGS
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == f"lag: main {topic}/0 is 3 messages behind, more than 2"
    assert second.startswith(f"transaction: main {topic}/0 waits for a transaction that has been")
    producer.commit_transaction(30)
    wait_for(ids, table, [1, 2, 3, 4])
    wait_for(lambda _: f"opal_stream_lag{labels} 0\n" in metrics.text(), table, True)
    stream.stop()
    thread.join(60)
    assert failures == []
    assert main(words(table, kafka, "--alarm-lag", "0", "--alarm-stall", "1s")) == OK
    assert read_lag(table, connection, "main").messages == 0
