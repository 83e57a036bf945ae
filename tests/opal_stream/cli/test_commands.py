"""`opal stream` and `opal stream status` as people and programs call them."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from opal_lake.cli import main
from opal_lake.exit_codes import INPUT, OK
from opal_lake.table import Table
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import ends, ids, new_table, new_topic, order, read

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.usefixtures("opal_commands")


KAFKA_AT_1 = ["{table}", "--topic", "t", "--bootstrap-servers", "localhost:1"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def test_a_run_until_empty_writes_a_report_events_and_metrics_and_status_shows_its_lag(
    kafka: Kafka, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1), order(2), b"nope"])
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--until-empty",
        "--json",
    ]
    words += [
        "--on-bad-message",
        "quarantine",
        "--tracking",
        str(tmp_path / "tracking"),
        "--metrics-file",
        str(tmp_path / "m.prom"),
    ]
    assert main(words) == OK
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "table": table.uri,
        "records": 3,
        "bad": 1,
        "flushes": 1,
        "version": 1,
        "missing": 0,
    }
    [event] = [
        json.loads(line)
        for path in (tmp_path / "tracking").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert {
        name: event[name]
        for name in ("event", "topic", "partition", "low", "high", "records", "version", "process")
    } == {
        "event": "flush",
        "topic": topic,
        "partition": 0,
        "low": 0,
        "high": 3,
        "records": 3,
        "version": 1,
        "process": os.getpid(),
    }
    assert event["latency_ms"] > 0 < event["bytes"]
    metrics = (tmp_path / "m.prom").read_text()
    assert f'opal_stream_records_total{{topic="{topic}",partition="0"}} 3\n' in metrics
    assert (
        "# TYPE opal_stream_flushes_total counter\nopal_stream_flushes_total 1\nopal_stream"
        not in metrics.partition("HELP")[0]
    )
    kafka.produce(topic, [order(3)])
    assert (
        main(["stream", "status", table.uri, "--bootstrap-servers", kafka.servers, "--json"]) == OK
    )
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["topic"], entry["position"], entry["end"], entry["lag"], entry["note"]) == (
        topic,
        3,
        4,
        1,
        "",
    )
    assert main(["stream", "status", table.uri]) == OK
    assert topic in capsys.readouterr().out


def test_stream_commit_commits_the_messages_that_a_process_gathered(
    kafka: Kafka, table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, watched = new_topic(kafka), ["--tracking", str(tmp_path / "tracking")]
    kafka.produce(topic, [order(1), order(2)])
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--until-empty",
        "--commit",
        "gathered",
        *watched,
    ]
    assert main(words) == OK
    assert (
        capsys.readouterr().out
        == f"gathered 2 messages; run `opal stream commit {table.uri}` to commit them\n"
    )
    assert main(["stream", "commit", table.uri, "--until-empty", "--json", *watched]) == OK
    assert json.loads(capsys.readouterr().out) == {
        "table": table.uri,
        "records": 2,
        "bad": 0,
        "flushes": 1,
        "version": 1,
        "missing": 0,
    }
    [file] = (tmp_path / "tracking").iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [
        (event["event"], event["low"], event["high"], event["version"]) for event in events
    ] == [
        ("gathered", 0, 2, None),
        ("flush", 0, 2, 1),
    ]
    words.remove("--until-empty")
    for refused in (
        [*words, "--start-timestamp", "1", "--end-timestamp", "2"],
        [*words, "--spark"],
    ):
        assert main(refused) == INPUT
        assert "commit does not go with" in capsys.readouterr().err


def test_a_committer_goes_on_until_sigterm_and_commits_what_lies_there(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka)
    process = subprocess.Popen(
        [sys.executable, "-m", "opal_lake.cli", "stream", "commit", table.uri, "--json"],
        stdout=subprocess.PIPE,
    )
    try:
        for number in range(3):
            kafka.produce(topic, [order(number)])
            main(
                [
                    "stream",
                    "run",
                    table.uri,
                    "--bootstrap-servers",
                    kafka.servers,
                    "--topic",
                    topic,
                    "--until-empty",
                    "--commit",
                    "gathered",
                ]
            )
            until = time.monotonic() + 60
            while number < 2 and ids(table) != [*range(number + 1)]:
                assert time.monotonic() < until
                time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, ids(table), json.loads(output)["records"]) == (OK, [0, 1, 2], 3)


def test_status_notes_a_deleted_topic(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(1)])
    main(
        [
            "stream",
            "run",
            table.uri,
            "--bootstrap-servers",
            kafka.servers,
            "--topic",
            topic,
            "--until-empty",
        ]
    )
    kafka.delete_topic(topic)
    capsys.readouterr()
    assert (
        main(["stream", "status", table.uri, "--bootstrap-servers", kafka.servers, "--json"]) == OK
    )
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["lag"], entry["note"]) == (None, "of a topic that was deleted or created again")


BY_FIVE = ["--flush-rows", "5", "--flush-interval", "1h"]


def wait_until(holds: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        meanwhile()
        time.sleep(0.05)


def produce_what_is_fetched(
    kafka: Kafka,
    topic: str,
    table: Table,
    metrics: Path,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Produce five messages that are committed, and three that no limit flushes.

    The commit shows that the stream runs. It knows the lag from what it has fetched.
    """
    kafka.produce(topic, [order(n) for n in range(5)])
    wait_until(lambda: bool(ends(table)), meanwhile)
    kafka.produce(topic, [order(n) for n in range(5, 8)])
    lag = f'opal_stream_lag{{topic="{topic}",partition="0"}} 3\n'
    wait_until(lambda: metrics.exists() and lag in metrics.read_text(), meanwhile)
    assert ids(table) == [0, 1, 2, 3, 4]


def test_sigterm_flushes_and_ends(kafka: Kafka, table: Table, tmp_path: Path) -> None:
    topic, metrics = new_topic(kafka), tmp_path / "m.prom"
    words = [table.uri, "--bootstrap-servers", kafka.servers, "--topic", topic, *BY_FIVE]
    words += ["--metrics-port", "0", "--metrics-file", str(metrics)]
    process = subprocess.Popen(
        [sys.executable, "-m", "opal_lake.cli", "stream", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        produce_what_is_fetched(kafka, topic, table, metrics)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, ids(table), ends(table)) == (OK, [*range(8)], [8]), errors
    assert b"read 8 messages in 2 commits" in output


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "silent", "killed"])
def test_a_stream_that_is_watched_flushes_and_ends_without_its_watcher(
    kafka: Kafka, table: Table, tmp_path: Path, end: str
) -> None:
    topic, metrics = new_topic(kafka), tmp_path / "m.prom"
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        *BY_FIVE,
    ]
    words += ["--watched", "6s" if end == "silent" else "1h", "--metrics-file", str(metrics)]
    command = [sys.executable, "-m", "opal_lake.cli", *words]
    if end == "killed":  # a watcher that dies without a word
        program = (
            "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], "
            "stdin=subprocess.PIPE); time.sleep(3600)"
        )
        command = [sys.executable, "-c", program, *command]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    beat = functools.partial(process.stdin.write, b"\n")
    try:
        produce_what_is_fetched(kafka, topic, table, metrics, beat)
        if end == "killed":
            process.kill()
        elif end == "closed":
            process.stdin.close()
        wait_until(lambda: ids(table) == [*range(8)], lambda: None)
        assert process.wait(60) == (-signal.SIGKILL if end == "killed" else OK)
    finally:
        process.kill()
        process.wait()


def test_a_watched_stream_reports_its_totals_after_each_commit(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka)
    kafka.produce(topic, [order(n) for n in range(2)])
    read(table, kafka, topic)
    kafka.produce(topic, [order(n) for n in range(2, 12)])
    admin = kafka.admin  # lives as long as its answers are awaited
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(30)
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--until-empty",
        "--json",
        "--watched",
        "1h",
    ]
    words += ["--on-gap", "continue"]
    process = subprocess.Popen(
        [sys.executable, "-m", "opal_lake.cli", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        report = [json.loads(line) for line in process.stdout]
        assert process.wait(60) == OK
    finally:
        process.kill()
    assert len(report) == report[-1]["flushes"] + 1
    assert report[-2].items() <= report[-1].items()
    assert (report[-1]["records"], report[-1]["version"], report[-1]["table"]) == (
        7,
        table.log.head().version,
        table.uri,
    )
    assert [line["missing"] for line in report] == [3] * len(report)


def test_an_interval_of_time_with_settings_from_the_environment(
    kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka, retention_ms=str(10**15))
    kafka.produce(topic, [order(1), order(2)], moments_ms=[1_700_000_000_000, 1_700_000_060_000])
    words = [
        "stream",
        "run",
        table.uri,
        "--bootstrap-servers",
        kafka.servers,
        "--topic",
        topic,
        "--json",
    ]
    words += [
        "--start-timestamp",
        "2023-11-14T22:13:20",
        "--end-timestamp",
        "2023-11-14T23:14:20+01:00",
        "--partition-key",
        "hour",
    ]
    assert main(words) == OK
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["ranges"], report["open"], ids(table)) == (
        1,
        {f"{topic}/0": [0, 1]},
        [],
        [1],
    )
    monkeypatch.setenv("OPAL_KAFKA_SETTINGS", "security.protocol=nothing\n")
    assert main(words) == INPUT
    assert "security.protocol" in capsys.readouterr().err


AT_1 = ["run", *KAFKA_AT_1]
T = ["run", "{table}", "--topic", "t"]


@pytest.mark.parametrize(
    "words, message",
    [
        (T, "opal stream run needs --bootstrap-servers, for example --bootstrap-servers localhost"),
        ([*AT_1, "--flush-interval", "soon"], "--flush-interval='soon' is not a duration"),
        ([*AT_1, "--partitions", "0,x"], "partitions: 'x' is not a partition"),
        ([*AT_1, "--partitions", "t/x"], "partitions: 't/x' is not a partition"),
        ([*AT_1, "--partitions", ","], "--partitions=',' has no partition"),
        (
            [*AT_1, "--kafka", "group.id=x"],
            "the Kafka setting 'group.id' is the stream's own: the table keeps the positions",
        ),
        (
            [*AT_1, "--kafka", "isolation.level=read_uncommitted"],
            (
                "'isolation.level' is the stream's own: messages of aborted transactions are "
                "never read"
            ),
        ),
        (
            [*AT_1, "--kafka", "max.poll.interval.ms=1"],
            "'max.poll.interval.ms' is the stream's own: a commit may wait for a store",
        ),
        ([*T, "--broker-timeout", "0s"], "--broker-timeout='0s' is too short"),
        ([*T, "--metrics-host", "0.0.0.0"], "--metrics-host does nothing without --metrics-port"),
        (
            [*AT_1, "--metrics-port", "0", "--metrics-host", "nowhere.invalid"],
            "metrics cannot be served at nowhere.invalid:0: ",
        ),
        ([*AT_1, "--kafka-settings", "/no/file"], "cannot be read"),
        ([*AT_1, "--name", "a/b"], "not a name of a stream"),
        ([*AT_1, "--start-timestamp", "1"], "add --end-timestamp"),
        ([*AT_1, "--start-timestamp", "x", "--end-timestamp", "1"], "is not a moment"),
        ([*AT_1, "--partition-key", "k"], "--partition-key does nothing without an interval"),
        ([*T, "--processes", "0"], "processes must be a whole number of at least 1, got 0"),
        ([*T, "--capacity", "0"], "capacity must be a whole number of at least 1, got 0"),
        ([*T, "--flush-rows", "0"], "--flush-rows must be a whole number of at least 1, got 0"),
        ([*T, "--flush-mb", "0"], "--flush-mb must be a whole number of at least 1, got 0"),
        ([*T, "--watched", "0s"], "watched='0s' is too short"),
        (
            [*T, "--metrics-port", "65536"],
            "--metrics-port=65536 is not a port; give a number up to 65535",
        ),
        ([*T, "--gathered-mb", "5"], "--gathered-mb does nothing without --commit='gathered'"),
        ([*T, "--no-committer"], "--no-committer does nothing without several processes"),
        (
            [*T, "--registry", "http://r:1"],
            "messages of --format=json need no schema registry; leave it out",
        ),
        (
            [*T, "--registry", "http://r:1", "--format", "debezium-json"],
            "format=debezium-json need no schema registry",
        ),
        (
            [*T, "--stall-after", "1m"],
            "--stall-after does nothing without --processes or --capacity; add --processes or",
        ),
        (
            [*T, "--replan-interval", "1m"],
            "--replan-interval does nothing without --processes or --capacity",
        ),
        (
            [*T, "--start-timestamp", "1", "--end-timestamp", "2", "--until-empty"],
            "--until-empty does not go with an interval",
        ),
        ([*T, "--end-timestamp", "1", "--start", "latest"], "--start does not go with an interval"),
        (
            [*T, "--end-timestamp", "1", "--commit", "gathered"],
            "--commit does not go with an interval",
        ),
        (["commit", "{table}", "--tracking-topic", "t"], "nothing without --bootstrap-servers"),
        (
            ["status", "{table}", "--name", "x"],
            "--name does nothing without --topic; add --topic, or leave --name out",
        ),
        (
            ["status", "{table}", "--kafka", "a=b"],
            "--kafka does nothing without --bootstrap-servers",
        ),
        (
            ["status", "{table}", "--alarm-lag", "1"],
            "--alarm-lag does nothing without --bootstrap-servers",
        ),
        (
            ["plan", "--topic", "t", "--hours", "0"],
            "hours must be a whole number of at least 1, got 0",
        ),
        (["plan", "--topic", "t"], "give either --processes or --capacity"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], message: str, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", *(word.format(table=table.uri) for word in words)]) == INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["run", "lake/orders", "more", "--topic", "t"], "'more' is not known to opal stream run"),
        (["run", "lake/orders"], "required: --topic; see opal stream run --help"),
        (
            ["run", "lake/orders", "--topic", "t", "--alarm-lag", "1"],
            "'--alarm-lag' is not known to opal stream run",
        ),
        (["stauts", "lake/orders"], "unknown command 'stream stauts', did you mean 'status'?"),
        (
            ["lake/orders", "--topic", "t"],
            "the commands of opal stream are run, commit, status, plan, dashboard, alerts",
        ),
        (["commit", "lake/orders", "--topic", "t"], "'--topic' is not known to opal stream commit"),
        (
            ["plan", "lake/orders", "--topic", "t", "--until-empty"],
            "'--until-empty' is not known to opal stream",
        ),
        (["status"], "required: TABLE; see opal stream status --help"),
        (["alerts", "lake/orders"], "'lake/orders' is not known to opal stream alerts"),
        ([], "required: VERB; see opal stream --help"),
    ],
)
def test_a_verb_takes_its_own_options_alone(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stream", *words])
    assert ended.value.code == INPUT
    assert message in capsys.readouterr().err


def test_a_metrics_port_that_is_taken_is_wrong_input(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = [word.format(table=table.uri) for word in KAFKA_AT_1]
        for more in ([], ["--processes", "2"]):
            assert main(["stream", "run", *words, "--metrics-port", port, *more]) == INPUT
            report = capsys.readouterr().err
            assert f"metrics cannot be served at 127.0.0.1:{port}: Address already in use" in report
            assert "give another --metrics-port" in report
