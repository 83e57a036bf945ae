"""Traffic from Kafka's own timestamps, and the plan that `opal stream plan` makes of it."""

import json
import time
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.exit_codes import INPUT, OK
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.history import read_traffic
from opal_stream.traffic.hours import HOUR_MS, Volume
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.opal_stream.orders import new_table, new_topic, order

__all__ = ["metadata", "opal_commands"]

COUNTS = (600, 300, 200, 100)  # messages an hour


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    """Six hours of messages in four partitions; the fifth is new."""
    name, producer = new_topic(kafka, 5), kafka.producer()
    now_ms = time.time_ns() // 1_000_000
    for hour in range(6, -1, -1):
        for number, count in enumerate(COUNTS):
            for at in range(count):
                begin = (now_ms // HOUR_MS - hour) * HOUR_MS
                producer.produce(
                    name,
                    b"{}",
                    partition=number,
                    timestamp=min(now_ms, begin + at * HOUR_MS // count),
                )
    assert producer.flush(60) == 0
    return name


def test_hours_are_counted_by_the_timestamps_of_messages(kafka: Kafka, topic: str) -> None:
    hour = time.time_ns() // 1_000_000 // HOUR_MS
    partitions = [Partition(topic=topic, number=number) for number in range(5)]
    traffic = read_traffic(Connection(bootstrap_servers=kafka.servers), partitions, hour)
    assert set(traffic) == set(partitions[:4])
    for partition, count in zip(partitions[:4], COUNTS, strict=True):
        assert traffic[partition].predict(hour - 2) == Volume(count)
        assert len(traffic[partition].means) == 5  # the first of six may be deleted in part


@pytest.mark.usefixtures("opal_commands")
def test_the_command_spreads_by_load_and_keeps_an_even_spread(
    kafka: Kafka, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stream", "plan", "--bootstrap-servers", kafka.servers, "--topic", topic]
    assert main([*words, "--processes", "2", "--json"]) == OK
    first = json.loads(capsys.readouterr().out)
    parts = [part for process in first["processes"] for part in process["partitions"]]
    assert sorted(part["partition"] for part in parts) == [0, 1, 2, 3, 4]
    assert first["without_history"] == [f"{topic}/4"]
    assert first["skew"] < 1.15
    (tmp_path / "plan.json").write_text(json.dumps(first))
    assert (
        main([*words, "--processes", "2", "--current", str(tmp_path / "plan.json"), "--json"]) == OK
    )
    again = json.loads(capsys.readouterr().out)
    assert ([process["changed"] for process in again["processes"]], again["moved"]) == (
        [False, False],
        [],
    )
    assert main([*words, "--capacity", "1"]) == OK
    assert "without known traffic yet" in capsys.readouterr().out


@pytest.mark.usefixtures("opal_commands")
def test_sizes_that_streams_counted_into_their_table_weigh(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, table = new_topic(kafka, 2), new_table(tmp_path)
    kafka.produce(name, [order(number) for number in range(1000)], partition=0)
    kafka.produce(
        name, [order(1000 + number, name="x" * 5_000) for number in range(1000)], partition=1
    )
    words = ["--bootstrap-servers", kafka.servers, "--topic", name]
    assert main(["stream", "run", table.uri, *words, "--until-empty"]) == OK
    for verb, known in (("plan", False), (f"plan {table.uri}", True)):
        capsys.readouterr()
        assert main(["stream", *verb.split(" "), *words, "--processes", "2", "--json"]) == OK
        report = json.loads(capsys.readouterr().out)
        small, large = sorted(
            (part for process in report["processes"] for part in process["partitions"]),
            key=lambda part: part["partition"],
        )
        assert (large["bytes"] > 30 * small["bytes"] > 0) == known
        assert (large["load"] > 5 * small["load"] > 0) == known
        assert report["without_history"] == ([] if known else [f"{name}/0", f"{name}/1"])


@pytest.mark.usefixtures("opal_commands")
@pytest.mark.parametrize(
    "more, message",
    [
        (["--processes", "2"], "needs --bootstrap-servers"),
        (["--bootstrap-servers", "x:1"], "give either --processes or --capacity"),
    ],
)
def test_wrong_usage_is_one_line(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", "plan", "--topic", "t", *more]) == INPUT
    assert message in capsys.readouterr().err
