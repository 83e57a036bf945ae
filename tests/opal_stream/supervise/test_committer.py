"""`opal stream run --processes --commit gathered`: the committer is a child, too."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.errors import FormatError
from opal_lake.exit_codes import DAMAGE, INPUT, OK, RETRY
from opal_lake.table import Table
from opal_stream.errors import ProcessError
from opal_stream.supervise.committer import WatchedCommitter
from opal_stream.supervise.process import Tuning
from tests.fixtures_cli import metadata, opal_commands
from tests.fixtures_kafka import Kafka
from tests.kit.check import check_table
from tests.opal_stream.orders import ends, gather, gathered, ids, new_table, new_topic, order, read
from tests.opal_stream.supervise.build import (
    children_of,
    command,
    committers_of,
    fill,
    supervised,
    wait_until,
    watched_of,
)

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.usefixtures("opal_commands")

GATHERED = ["--processes", "2", "--commit", "gathered", "--flush-interval", "1s"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path)


def ended(table: Table, kafka: Kafka, topic: str, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(table, kafka, topic, *GATHERED, *more), capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_until_empty_commits_all_files_and_counts_the_commits(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, metrics = new_topic(kafka, 4), tmp_path / "m.prom"
    kafka.produce(topic, [order(1000)], partition=3)
    assert (
        read(table, kafka, topic, commit="gathered").records == 1
    )  # of a former run, which waits for a committer
    count = fill(kafka, topic, (40, 20, 10, 5))
    more = [
        "--flush-rows",
        "8",
        "--tracking",
        str(tmp_path / "events"),
        "--metrics-file",
        str(metrics),
    ]
    done = ended(table, kafka, topic, "--until-empty", "--json", *more)
    assert done.returncode == OK, done.stderr
    report = json.loads(done.stdout)
    paths = (tmp_path / "events").iterdir()
    events = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    versions = {event["version"] for event in events if event["event"] == "flush"}
    assert report == {
        "table": table.uri,
        "records": count + 1,
        "bad": 0,
        "flushes": len(versions),
        "version": max(versions),
        "missing": 0,
    }
    assert (report["version"], ids(table), gathered(table)) == (
        table.log.head().version,
        [*range(count), 1000],
        [],
    )
    assert sum(event["event"] == "gathered" for event in events) > len(versions)
    page = metrics.read_text()
    assert 'opal_stream_restarts_total{process="committer"} 0\n' in page
    assert (
        f'opal_stream_records_total{{process="committer",topic="{topic}",partition="0"}} ' in page
    )
    assert not watched_of(topic)
    again = ended(table, kafka, topic, "--until-empty")
    assert (again.returncode, again.stdout) == (OK, f"nothing new for {table.uri}\n"), again.stderr
    kafka.produce(topic, [order(2000)])
    process = ended(table, kafka, topic, "--until-empty")
    assert (
        process.stdout
        == f"read 1 message in 1 commit, version {report['version'] + 1} of {table.uri}\n"
    )


def record_count(events: Path) -> int:
    """Return the number of messages in the committers' events."""
    lines = (
        [line for path in events.iterdir() for line in path.read_text().splitlines()]
        if events.exists()
        else []
    )
    return sum(event["records"] for event in map(json.loads, lines) if event["event"] == "flush")


def test_a_killed_committer_is_started_again_and_commits_what_was_gathered(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, events = new_topic(kafka, 3), tmp_path / "events"
    count = fill(kafka, topic, (30, 20, 10))
    with supervised(table, kafka, topic, *GATHERED, "--tracking", str(events)):
        wait_until(lambda: record_count(events) == count)
        assert len(ids(table)) == count
        [victim] = committers_of(topic)
        victim.kill()
        count = fill(kafka, topic, (5, 5, 5), count)
        wait_until(lambda: record_count(events) == count)
        [successor] = committers_of(topic)
        assert successor != victim
        assert len(children_of(topic)) == 2
    assert ids(table) == [*range(count)]


def test_sigterm_commits_all_that_is_gathered_though_the_committer_was_just_killed(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, events = new_topic(kafka, 3), tmp_path / "events"
    count = fill(kafka, topic, (30, 20, 10))
    with supervised(table, kafka, topic, *GATHERED, "--json", "--tracking", str(events)) as process:
        wait_until(lambda: record_count(events) == count)
        [victim] = committers_of(topic)
        victim.kill()
        # The next committer starts after a pause of 1 s. SIGTERM comes earlier, so the committer
        # that is started at the end commits all files that the processes still write
        count = fill(kafka, topic, (2, 2, 2), count)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == OK, errors
        assert (
            "committer: the stream of what is gathered failed: it was ended by signal 9" in errors
        )
    assert gathered(table) == []
    assert {*range(count - 6)} <= set(ids(table)) <= {*range(count)}
    totals = json.loads(output)
    assert (totals["records"], totals["version"]) == (len(ids(table)), table.log.head().version), (
        "also the rows that the killed committer committed"
    )
    done = ended(table, kafka, topic, "--until-empty")
    assert (done.returncode, ids(table), sum(ends(table)), table.snapshot_at().root.rows) == (
        OK,
        [*range(count)],
        count,
        count,
    )
    assert check_table(table) == []


@pytest.mark.slow
def test_sigterm_commits_what_the_processes_flush_at_their_end(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    with supervised(table, kafka, topic, *GATHERED, "--flush-interval", "1h", "--json") as process:
        wait_until(lambda: len(watched_of(topic)) == 3)
        count = fill(kafka, topic, (30, 20))
        time.sleep(5)
        assert (gathered(table), ids(table)) == ([], [])
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, ids(table), json.loads(output)["records"]) == (
        OK,
        [*range(count)],
        count,
    ), errors
    assert gathered(table) == []


@pytest.mark.slow
def test_the_committer_of_a_killed_supervisor_ends_and_the_next_one_commits_the_rest(
    kafka: Kafka, table: Table
) -> None:
    topic = new_topic(kafka, 2)
    with supervised(table, kafka, topic, *GATHERED) as process:
        count = fill(kafka, topic, (30, 20))
        wait_until(lambda: len(ids(table)) == count)
        count = fill(kafka, topic, (7, 7), count)
        process.kill()
        wait_until(lambda: not watched_of(topic))
    with supervised(table, kafka, topic, *GATHERED):
        count = fill(kafka, topic, (5, 5), count)
        wait_until(lambda: len(ids(table)) == count)
    assert table.snapshot_at().root.rows == count


@pytest.mark.slow
def test_two_committers_commit_each_file_once(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    count = fill(kafka, topic, (30, 20))
    done = ended(table, kafka, topic, "--until-empty", "--no-committer")
    assert (done.returncode, ids(table)) == (OK, []), done.stderr
    assert (
        done.stdout
        == f"gathered {count} messages; run `opal stream commit {table.uri}` to commit them\n"
    )
    assert gather(table).records == count
    eager = "Committer(Table.open(sys.argv[1]), CommitterOptions(interval_s=0)).run()"
    imports = (
        "import sys; from opal_lake.table import Table; from opal_stream.flush.committer "
        "import Committer, CommitterOptions"
    )
    elsewhere = subprocess.Popen(
        [sys.executable, "-c", f"{imports}; {eager}", table.uri],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(3):
            count = fill(kafka, topic, (300, 200), count)
            done = ended(
                table, kafka, topic, "--until-empty", "--flush-rows", "20", "--gathered-mb", "1"
            )
            assert (done.returncode, ids(table)) == (OK, [*range(count)]), done.stderr
    finally:
        elsewhere.kill()
        elsewhere.wait()
    assert (table.snapshot_at().root.rows, gathered(table), check_table(table)) == (count, [], [])


def test_files_that_cannot_be_committed_are_reported_at_the_end(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    fill(kafka, topic, (3, 3))
    read(table, kafka, topic, commit="gathered")
    [file, _] = sorted(Path(table.uri).rglob("_opal/gathered/*/*.rows"))
    file.write_bytes(file.read_bytes()[:-1])
    done = ended(table, kafka, topic, "--until-empty")
    assert done.returncode == DAMAGE
    assert f"{file.name} is damaged" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].endswith("[committer]")
    assert ids(table) == [3, 4, 5]
    assert not watched_of(topic)


@pytest.mark.slow
def test_a_committer_that_is_down_shows_in_the_metrics(
    kafka: Kafka, table: Table, tmp_path: Path
) -> None:
    topic, page = new_topic(kafka, 2), tmp_path / "m.prom"

    def value(name: str) -> float:
        actual = [
            line
            for line in page.read_text().splitlines()
            if line.startswith(f'opal_stream_{name}{{process="committer"}}')
        ]
        return float(actual[0].split()[1]) if actual else -1.0

    def is_down() -> bool:
        for victim in committers_of(topic):
            victim.kill()
        return value("process_up") == 0 and value("commit_stalled_seconds") > 5

    with supervised(table, kafka, topic, *GATHERED, "--metrics-file", str(page)) as process:
        wait_until(lambda: page.exists() and value("process_up") == 1)
        count = fill(kafka, topic, (30, 20))
        wait_until(lambda: len(ids(table)) == count)
        for victim in committers_of(topic):
            victim.kill()
        count = fill(kafka, topic, (5, 5), count)
        wait_until(is_down)
        assert 'opal_stream_process_up{process="0"} 1\n' in page.read_text()
        wait_until(lambda: len(ids(table)) == count)
        wait_until(lambda: value("process_up") == 1 and 0 <= value("commit_stalled_seconds") < 5)
        process.terminate()
        process.communicate(timeout=60)
    assert value("process_up") == value("commit_stalled_seconds") == -1  # what is over is not down


@pytest.mark.slow
def test_a_committer_that_hangs_is_ended_and_started_again(kafka: Kafka, table: Table) -> None:
    topic = new_topic(kafka, 2)
    count = fill(kafka, topic, (30, 20))
    with supervised(table, kafka, topic, *GATHERED, "--stall-after", "6s") as process:
        wait_until(lambda: len(ids(table)) == count)
        time.sleep(8)  # nothing waits: that is no stall
        [victim] = committers_of(topic)
        readers = children_of(topic)
        victim.suspend()
        count = fill(kafka, topic, (5, 5), count)
        wait_until(lambda: len(ids(table)) == count)
        assert victim not in committers_of(topic)
        assert children_of(topic) == readers
        process.terminate()
        assert (
            "the committer has committed nothing for 7 s though files wait; it is started again"
            in process.communicate(timeout=60)[1]
        )


@pytest.mark.slow
def test_processes_that_wait_for_a_committer_are_left_alone(kafka: Kafka, table: Table) -> None:
    topic, count = new_topic(kafka, 2), 0
    more = [*GATHERED, "--no-committer", "--gathered-mb", "1", "--stall-after", "6s"]
    with supervised(table, kafka, topic, *more) as process:
        wait_until(lambda: len(children_of(topic)) == 2)
        readers = children_of(topic)
        for _ in range(8):
            before, count = len(gathered(table)), fill(kafka, topic, (1, 1), count)
            wait_until(lambda before=before: len(gathered(table)) >= before + 2)
        time.sleep(3)
        count = fill(kafka, topic, (1, 1), count)
        time.sleep(14)
        assert (len(gathered(table)), children_of(topic)) == (16, readers)
        gather(table)
        wait_until(lambda: len(gathered(table)) == 2)
        process.terminate()
        errors = process.communicate(timeout=60)[1]
    assert "started again" not in errors
    assert (
        "reading has stopped: 16 gathered files, which count as 1 MiB, wait for a "
        "commit, and the limit is 1 MiB (--gathered-mb)."
    ) in errors
    assert f"Check that `opal stream commit {table.uri}` runs" in errors
    gather(table)
    assert ids(table) == [*range(count)]


@pytest.mark.parametrize("code, kind", [(DAMAGE, FormatError), (RETRY, ProcessError)])
def test_a_final_failure_of_the_committer_ends_the_supervisor(
    code: int, kind: type[Exception]
) -> None:
    fails = [
        sys.executable,
        "-S",
        "-c",
        f"import sys; print('opal: no store', file=sys.stderr); sys.exit({code})",
    ]

    async def scene(*, stopped: bool) -> None:
        committer = WatchedCommitter(lambda: fails, restarts=2, tuning=Tuning(first_pause_s=0.01))
        committer.start()
        if stopped:
            await committer.finish(asyncio.Event(), until_empty=True)
        while committer.watching:
            await asyncio.wait(committer.watching)
            await committer.look()

    for stopped in (False, True):
        with pytest.raises(kind, match=r"no store \[committer\]"):
            asyncio.run(scene(stopped=stopped))


@pytest.mark.parametrize(
    "words",
    [
        ["--no-committer"],
        ["--no-committer", "--processes", "2"],
        ["--no-committer", "--commit", "gathered"],
    ],
)
def test_no_committer_is_refused_without_gathering_processes(
    words: list[str], kafka: Kafka, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(table, kafka, "t", *words)[3:]) == INPUT
    assert "--no-committer does nothing without several processes" in capsys.readouterr().err
