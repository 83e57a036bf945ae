"""`opal stream run --processes`: whatever dies or moves, all is read once, and all ends."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.exit_codes import INPUT, OK
from opal_lake.table import Table
from opal_stream.flush.options import StreamOptions
from opal_stream.gathered.backlog import MIN_FILE_BYTES
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition
from opal_stream.plan.spread import Shares, Spread
from opal_stream.supervise.metrics import FleetMetrics
from opal_stream.supervise.observation import Observation, Observer
from opal_stream.supervise.planner import Planner
from opal_stream.supervise.supervisor import FleetOptions, Supervisor
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import ends, ids, new_table, new_topic
from tests.opal_stream.supervise.build import (
    children_of,
    command,
    fill,
    share_of,
    supervised,
    wait_until,
)

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.usefixtures("opal_commands")

SKEWED = (400, 200, 50, 50, 20, 10)  # messages by partition


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def test_until_empty_processes_share_the_load_and_read_each_message_once(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic = new_topic(kafka, len(SKEWED))
    count, metrics = fill(kafka, topic, SKEWED), tmp_path / "m.prom"
    words = [
        "--processes",
        "2",
        "--until-empty",
        "--json",
        "--tracking",
        str(tmp_path / "events"),
        "--metrics-file",
        str(metrics),
    ]
    done = subprocess.run(
        command(table, kafka, topic, *words), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == OK, done.stderr
    report = json.loads(done.stdout)
    assert (report["records"], report["missing"], report["version"]) == (
        count,
        0,
        table.log.head().version,
    )
    assert ids(table) == [*range(count)]
    assert ends(table) == list(SKEWED)
    by_process: dict[int, int] = {}
    for path in (tmp_path / "events").iterdir():
        for event in map(json.loads, path.read_text().splitlines()):
            by_process[event["process"]] = by_process.get(event["process"], 0) + event["records"]
    assert sorted(by_process.values()) == [330, 400]  # as even as partitions allow
    assert f"reads {topic}/0, about" in done.stderr
    assert 'opal_stream_predicted_load{process="0"}' in metrics.read_text()
    assert check_table(table) == []


@pytest.mark.slow
def test_processes_that_gather_stand_where_their_files_end_until_one_committer_commits(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 3)
    count = fill(kafka, topic, (20, 10, 5))
    gathered = ["--processes", "2", "--until-empty", "--commit", "gathered", "--no-committer"]
    done = subprocess.run(
        command(table, kafka, topic, *gathered), capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, ids(table)) == (OK, []), done.stderr
    connection = Connection(bootstrap_servers=kafka.servers)
    for commit, position in (("direct", 0), ("gathered", 20)):
        observer = Observer(table, connection, StreamOptions(topics=[topic], commit=commit))
        seen, first = observer.look(), Partition(topic=topic, number=0)
        assert (seen.positions[first], seen.has_gathered, seen.is_held_back) == (
            position,
            commit == "gathered",
            False,
        )
        observer.close()
    observer = Observer(
        table,
        connection,
        StreamOptions(topics=[topic], commit="gathered", gathered_bytes=3 * MIN_FILE_BYTES),
    )
    assert observer.look().is_held_back
    observer.close()
    gather = [sys.executable, "-m", "opal_lake.cli", "stream", "commit", table.uri]
    assert (
        subprocess.run([*gather, "--until-empty"], capture_output=True, timeout=120).returncode
        == OK
    )
    assert (ids(table), ends(table)) == ([*range(count)], [20, 10, 5])
    refused = subprocess.run(
        [*gather, "--processes", "2"], capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == INPUT
    assert "not known to opal stream commit" in refused.stderr


@pytest.mark.slow
def test_a_message_that_stops_one_process_stops_all_with_its_error(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 3)
    fill(kafka, topic, (20, 20, 0))
    kafka.produce(topic, [b"nope"], partition=2)
    done = subprocess.run(
        command(table, kafka, topic, "--processes", "2"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == INPUT
    assert f"opal: {topic}/2@0: the message is not a JSON object" in done.stderr.splitlines()[-1]
    assert not children_of(topic)
    assert set(ids(table)) <= {*range(40)}
    words = ["--processes", "2", "--until-empty", "--on-bad-message", "quarantine", "--json"]
    done = subprocess.run(
        command(table, kafka, topic, *words), capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, json.loads(done.stdout)["bad"], ids(table)) == (OK, 1, [*range(40)]), (
        done.stderr
    )


def test_a_child_that_is_killed_is_started_again_and_sigterm_flushes_all(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 4)
    count = fill(kafka, topic, (30, 20, 10, 5))
    with supervised(table, kafka, topic, "--processes", "2") as process:
        wait_until(lambda: len(ids(table)) == count)
        victim, other = children_of(topic)
        victim.kill()
        count = fill(kafka, topic, (5, 5, 5, 5), count)
        wait_until(lambda: len(ids(table)) == count)
        again = children_of(topic)
        assert len({*again, victim, other}) == 3
        assert other in again
        count = fill(kafka, topic, (2, 2, 2, 2), count)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == OK, errors
        assert "ended by signal 9" in errors
    assert not children_of(topic)
    assert set(ids(table)) <= {*range(count)}
    done = subprocess.run(
        command(table, kafka, topic, "--processes", "2", "--until-empty"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, ids(table), sum(ends(table))) == (OK, [*range(count)], count)
    assert table.snapshot_at().root.rows == count


@pytest.mark.slow
def test_processes_of_a_killed_supervisor_end_and_the_next_supervisor_reads_on(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 4)
    with supervised(table, kafka, topic, "--processes", "2", "--flush-interval", "1h") as process:
        wait_until(lambda: len(children_of(topic)) == 2)
        count = fill(kafka, topic, (30, 20, 10, 5))
        time.sleep(5)
        assert ids(table) == []
        process.kill()
        wait_until(lambda: not children_of(topic))
        assert {*ids(table)} <= {*range(count)}
        assert ids(table)  # they flushed
    with supervised(table, kafka, topic, "--processes", "2"):
        count = fill(kafka, topic, (5, 5, 5, 5), count)
        wait_until(lambda: len(ids(table)) == count)
    assert table.snapshot_at().root.rows == count


@pytest.mark.slow
def test_new_partitions_restart_only_the_processes_that_read_them(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 2)
    count = fill(kafka, topic, (30, 20))
    with supervised(table, kafka, topic, "--processes", "2"):
        wait_until(lambda: len(ids(table)) == count)
        before = children_of(topic)
        kafka.add_partitions(topic, 3)
        count = fill(kafka, topic, (1, 1, 10), count)
        wait_until(lambda: len(ids(table)) == count)
        after = children_of(topic)
        assert (
            len([*before, *after]) - len({*before, *after}) == 1
        )  # one process was there before and after
        assert sorted(",".join(map(share_of, after)).split(",")) == [
            f"{topic}/{number}" for number in range(3)
        ]
    assert (sorted(ends(table)), table.snapshot_at().root.rows) == ([10, 21, 31], count)


class Turning(Planner):
    """Plans that move partitions round all the time."""

    turn = 0

    def plan(self, seen: Observation, current: Shares = ()) -> Spread:
        parts, self.turn = sorted(seen.ends), self.turn + 1
        shares = (self._share(parts, 0), self._share(parts, 1))
        changed = tuple(
            number
            for number, share in enumerate(shares)
            if number >= len(current) or share != current[number]
        )
        return Spread(shares=shares, loads=(1.0, 1.0), changed=changed)

    def _share(self, parts: list[Partition], process: int) -> frozenset[Partition]:
        return frozenset(part for part in parts if (part.number + self.turn) % 4 // 2 == process)


@pytest.mark.slow
def test_partitions_that_move_while_they_are_read_are_neither_lost_nor_doubled(
    kafka: Kafka, table: Table
) -> None:
    topic, over = new_topic(kafka, 4), threading.Event()
    count, shared = 0, command(table, kafka, topic, "--json", "--watched", "60s")
    connection, options = Connection(bootstrap_servers=kafka.servers), StreamOptions(topics=[topic])

    def words(share: "frozenset[Partition]") -> list[str]:
        return [*shared, f"--topic={topic}", f"--partitions={','.join(map(str, sorted(share)))}"]

    supervisor = Supervisor(
        table,
        connection,
        options,
        FleetOptions(processes=2, replan_s=4, restarts=0, look_s=0.5),
        words,
        metrics=FleetMetrics(),
        planner=Turning(table, connection, options, processes=2),
    )
    running = threading.Thread(target=lambda: (supervisor.run(), over.set()))
    running.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        count = fill(kafka, topic, (7, 5, 3, 1), count)
        time.sleep(0.2)
    wait_until(lambda: len(ids(table)) == count)
    supervisor.stop()
    running.join(60)
    assert over.is_set()  # with restarts=0 a TakenOverError would have ended it
    assert (table.snapshot_at().root.rows, sum(ends(table)), ids(table)) == (
        count,
        count,
        [*range(count)],
    )
    assert check_table(table) == []


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_and_started_again(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    count = fill(kafka, topic, (30, 20))
    with supervised(table, kafka, topic, "--processes", "2", "--stall-after", "6s") as process:
        wait_until(lambda: len(ids(table)) == count)
        victim = children_of(topic)[0]
        victim.suspend()
        count = fill(kafka, topic, (5, 5), count)
        wait_until(lambda: len(ids(table)) == count)
        assert victim not in children_of(topic)
        process.terminate()
        assert (
            "has not moved for 7 s though messages wait; the process is started again"
            in process.communicate(timeout=60)[1]
        )


def test_plans_follow_the_lag_and_capacity_gives_the_number_of_processes(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 6)
    fill(kafka, topic, SKEWED)
    connection = Connection(bootstrap_servers=kafka.servers)
    options = StreamOptions(topics=[topic], until_empty=True)
    observer = Observer(table, connection, options)
    seen = observer.look()
    observer.close()
    assert {part.number: seen.lag(part) for part in seen.ends} == dict(enumerate(SKEWED))
    spread = Planner(table, connection, options, processes=2).plan(seen)

    def lag_of(share: frozenset[Partition]) -> int:
        return sum(seen.lag(part) for part in share)

    assert sorted(lag_of(share) for share in spread.shares) == [330, 400]
    by_capacity = Planner(table, connection, options, capacity=410 / 3600)
    first = by_capacity.plan(seen)
    assert len(first.shares) == 2
    by_capacity_now = Planner(table, connection, options, capacity=800 / 3600)
    assert (
        len(by_capacity_now.plan(seen, first.shares).shares) == 2
    )  # one could carry it, but barely
    roomy = Planner(table, connection, options, capacity=2000 / 3600)
    assert len(roomy.plan(seen, first.shares).shares) == 1


def test_arrivals_above_the_prediction_count_in_the_next_plan(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 4)
    connection, options = Connection(bootstrap_servers=kafka.servers), StreamOptions(topics=[topic])
    observer, planner = (
        Observer(table, connection, options),
        Planner(table, connection, options, processes=2),
    )
    first = planner.plan(observer.look())
    assert sorted(map(len, first.shares)) == [2, 2]  # nothing known: by count
    busy = sorted(part.number for part in first.shares[0])
    fill(kafka, topic, tuple(300 if number in busy else 0 for number in range(4)))
    second = planner.plan(observer.look(), first.shares)
    observer.close()
    assert (
        len(
            {
                number
                for number, share in enumerate(second.shares)
                for part in share
                if part.number in busy
            }
        )
        == 2
    )
    assert second.skew < 1.1


@pytest.mark.parametrize(
    "words, message",
    [
        (["--processes", "2", "--capacity", "5"], "give one of --processes=N and --capacity=N"),
        (["--processes", "2", "--replan-interval", "0s"], "give more than 0"),
        (
            ["--processes", "2", "--start-timestamp", "1", "--end-timestamp", "2"],
            "processes does not go with an interval",
        ),
    ],
)
def test_wrong_usage_ends_with_a_message(
    words: list[str], message: str, kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(table, kafka, "t", *words)[3:]) == INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("has_traffic", [False, True])
def test_a_table_created_again_ends_an_idle_supervisor(
    kafka: Kafka, table: Table, *, has_traffic: bool
) -> None:
    topic = new_topic(kafka, 2)
    count = fill(kafka, topic, (3, 4))
    with supervised(table, kafka, topic, "--processes", "2") as process:
        wait_until(lambda: ids(table) == [*range(count)])
        shutil.rmtree(table.uri)
        new = new_table(Path(table.uri).parent)
        if has_traffic:  # a process sees it before the supervisor does, and is not started again
            count = fill(kafka, topic, (3, 4), count)
        _, errors = process.communicate(timeout=120)
    assert (
        process.returncode,
        f"{table.uri} is another table now" in errors,
        "started again" in errors,
    ) == (INPUT, True, False), errors
    assert (new.log.head().version, check_table(new)) == (0, [])
    assert main(command(new, kafka, topic, "--until-empty")[3:]) == OK
    assert ids(new) == [*range(count)]
