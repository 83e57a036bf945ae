"""Hive-style folders: new partitions are events, and rewritten ones are updates."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest

from lakechime import (
    DataChangeEvent,
    InvalidEventError,
    LakeChime,
    NotFoundError,
    TableFormat,
)
from lakechime.completeness import completeness_tag
from lakechime.event import JsonValue
from lakechime.producers.hive import (
    HiveSource,
    partition_of_path,
    partition_states,
    register_partition,
)
from lakechime.producers.outbox import Step, Synced, Target, sync
from tests.fixtures_s3 import BUCKET
from tests.lakechime.producers.build import events_of

NAME = "web.logs"


def put(root: Path, path: str, at_s: int = 1_790_000_000) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    os.utime(file, (at_s, at_s))


def look(client: LakeChime, path: object, **options: object) -> Synced:
    return sync(client, HiveSource(path=str(path), target=Target(table=NAME), **options))  # type: ignore[arg-type]  # the test's own


def reported(client: LakeChime) -> list[tuple[object, str]]:
    return [(event.partition, event.operation_type.value) for event in events_of(client, NAME)]


def test_paths_of_partitions() -> None:
    assert partition_of_path("dt=2026-11-01/hour=03") == ("2026-11-01", "03")
    assert partition_of_path("a=x%3Ay/b=__HIVE_DEFAULT_PARTITION__/") == ("x:y", None)
    with pytest.raises(InvalidEventError, match="not a partition"):
        partition_of_path("2026-11-01/hour=03")
    with pytest.raises(InvalidEventError, match="levels dt, minute"):
        partition_of_path("dt=1/minute=3", ("dt", "hour"))


def test_new_partitions_and_those_written_again(client: LakeChime, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    put(root, "dt=1/hour=02/a.parquet", 20)
    put(root, "dt=1/hour=01/a.parquet", 10)
    put(root, "dt=1/hour=03/.hidden", 30)
    put(root, "_temporary/dt=1/hour=09/a.parquet", 30)
    assert look(client, root).events == 2
    assert look(client, root).events == 0
    put(root, "dt=1/hour=03/b.parquet", 40)
    put(root, "dt=1/hour=01/b.parquet", 50)
    look(client, root)
    assert reported(client) == [
        (("1", "01"), "APPEND"),
        (("1", "02"), "APPEND"),
        (("1", "03"), "APPEND"),
        (("1", "01"), "UPDATE"),
    ]
    assert [event.snapshot_ts for event in events_of(client, NAME)] == [
        10_000,
        20_000,
        40_000,
        50_000,
    ]
    assert look(client, root).events == 0


def test_partition_is_registered_once_it_has_its_marker(client: LakeChime, tmp_path: Path) -> None:
    put(tmp_path / "logs", "dt=1/a.parquet", 10)
    put(tmp_path / "logs", "dt=2/a.parquet", 10)
    put(tmp_path / "logs", "dt=2/_SUCCESS", 11)
    look(client, tmp_path / "logs", marker="_SUCCESS")
    assert reported(client) == [(("2",), "APPEND")]


def test_folders_of_other_levels_are_named_and_not_registered(
    client: LakeChime, tmp_path: Path
) -> None:
    put(tmp_path / "logs", "dt=1/hour=1/a", 10)
    put(tmp_path / "logs", "dt=1/a", 20)
    put(tmp_path / "logs", "old/a", 20)
    put(tmp_path / "logs", "dt=1/hour=2/a", 30)
    synced = look(client, tmp_path / "logs")
    assert reported(client) == [(("1", "1"), "APPEND"), (("1", "2"), "APPEND")]
    assert "'dt=1'" in synced.notes[0]
    assert "'old'" in synced.notes[0]
    assert look(client, tmp_path / "logs").notes == ()  # it was said
    with pytest.raises(NotFoundError, match="correct the path"):
        look(client, tmp_path / "none")


def test_who_wrote_a_partition_registers_it_with_what_is_complete(client: LakeChime) -> None:
    for _ in range(2):
        first = register_partition(
            client, NAME, "dt=1/hour=1", keys=("dt", "hour"), tags=completeness_tag("hourly", 99)
        )
    assert first.duplicate
    register_partition(client, NAME, "dt=1/hour=1", tags=completeness_tag("hourly", 100))
    assert [dict(event.tags) for event in events_of(client, NAME)] == [
        {"completeness.hourly": "99"},
        {"completeness.hourly": "100"},
    ]
    with pytest.raises(InvalidEventError, match="levels"):
        register_partition(client, NAME, "dt=1")


def test_a_change_within_the_same_second_is_seen(client: LakeChime, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    put(root, "dt=1/a", 20)
    put(root, "dt=2/a", 20)
    look(client, root)
    put(root, "dt=1/b", 20)
    (root / "dt=2/a").write_bytes(b"longer")
    os.utime(root / "dt=2/a", (20, 20))
    assert look(client, root).events == 2
    (root / "dt=1/b").unlink()
    assert look(client, root).events == 1
    put(root, "dt=1/b", 20)
    assert look(client, root).events == 1
    assert [kind for partition, kind in reported(client) if partition == ("1",)] == [
        "APPEND",
        "UPDATE",
        "UPDATE",
        "UPDATE",
    ]
    assert look(client, root).events == 0


@dataclass
class Moments:
    """A clock that goes on while somebody sleeps. `meanwhile`: what happens then."""

    at_s: float
    meanwhile: Callable[[], None] = lambda: None
    slept: list[float] = field(default_factory=list)

    def now_us(self) -> int:
        return int(self.at_s * 1_000_000)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds
        self.meanwhile()


def test_recently_written_partition_is_registered_once_its_changes_show(
    client: LakeChime, tmp_path: Path
) -> None:
    put(tmp_path / "logs", "dt=1/a", 100)
    moments = Moments(at_s=100.5)
    assert look(client, tmp_path / "logs", clock=moments, sleep=moments.sleep).events == 1
    assert moments.slept == [pytest.approx(1.51)]
    assert look(client, tmp_path / "logs", clock=moments, sleep=moments.sleep).events == 0
    assert len(moments.slept) == 1


def test_partition_being_written_waits_for_the_next_look(client: LakeChime, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    put(root, "dt=1/a", 50)
    put(root, "dt=2/a", 100)
    moments = Moments(at_s=100.5)
    moments.meanwhile = lambda: put(root, "dt=2/b", int(moments.at_s))
    synced = look(client, root, clock=moments, sleep=moments.sleep)
    assert reported(client) == [(("1",), "APPEND")]
    assert synced.notes == (
        "1 partitions are being written, such as 'dt=2': a later look registers them",
    )
    moments.at_s += 60
    assert look(client, root, clock=moments, sleep=moments.sleep).notes == ()
    assert reported(client) == [(("1",), "APPEND"), (("2",), "APPEND")]
    put(root, "dt=3/a", 10_000)
    assert look(client, root, clock=moments, sleep=moments.sleep).events == 1, (
        "a time far ahead is none to wait for"
    )


def test_each_portion_of_many_partitions_is_kept(client: LakeChime, tmp_path: Path) -> None:
    """Whoever is stopped in between goes on behind it, and the position does not grow."""
    root = tmp_path / "logs"
    for number in range(1_200):
        put(root, f"dt={number:04}/a", 10 + number)
    source = HiveSource(path=str(root), target=Target(table=NAME))
    assert sync(client, source, stop=lambda: True).events == 500
    assert look(client, root).events == 700
    assert [event.partition for event in events_of(client, NAME)] == [
        (f"{number:04}",) for number in range(1_200)
    ]
    state = client.table_state(NAME)
    assert state is not None
    assert len(json.dumps(state.position)) < 300
    assert len(client.seen(NAME)) == 1_200


@pytest.mark.s3
def test_folders_on_s3(client: LakeChime, s3_options: dict[str, str]) -> None:
    names = ("aws_access_key_id", "aws_secret_access_key", "region_name", "endpoint_url")
    store = boto3.client("s3", **{name: s3_options[name] for name in names})  # type: ignore[call-overload]  # by name
    store.put_object(Bucket=BUCKET, Key="hive/logs/dt=1/hour=01/a.parquet", Body=b"x")
    assert look(client, f"s3://{BUCKET}/hive/logs", options=s3_options).events == 1
    store.put_object(Bucket=BUCKET, Key="hive/logs/dt=1/hour=02/a.parquet", Body=b"x")
    assert look(client, f"s3://{BUCKET}/hive/logs", options=s3_options).events == 1
    assert reported(client) == [(("1", "01"), "APPEND"), (("1", "02"), "APPEND")]


def test_a_folder_without_files_has_no_partitions() -> None:
    assert partition_states(iter(()), None) == {}


class _Remembered:
    """A look with more items than one registration takes, and one event at its end."""

    target = Target(table=NAME)

    def steps(self, position: object) -> Iterator[Step]:
        if position is not None:
            return
        for portion in range(21):
            seen: dict[str, JsonValue] = {
                f"old={portion}/n={number}": None for number in range(500)
            }
            yield Step(position={"at": portion}, seen=seen)
        event = DataChangeEvent(table=NAME, table_format=TableFormat.HIVE, partition=("1",))
        yield Step(position={"at": 21}, events=(event,))


def test_seen_partitions_are_registered_in_portions(client: LakeChime) -> None:
    assert sync(client, _Remembered()).events == 1
    assert len(client.seen(NAME)) == 10_500
    assert sync(client, _Remembered()).events == 0


@pytest.mark.slow
def test_very_many_folders_of_other_levels_stop_nobody(client: LakeChime, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    put(root, "dt=1/hour=01/a.parquet", 10)
    for number in range(10_100):
        put(root, f"old={number}/a.parquet", 20)
    synced = look(client, root)
    assert synced.events == 1
    assert "10,097 more" in synced.notes[0]
    assert look(client, root).notes == ()
    put(root, "dt=1/hour=02/a.parquet", 30)
    assert look(client, root).events == 1


def test_a_partition_with_the_longest_path_that_a_disk_takes_stops_nobody(
    client: LakeChime, tmp_path: Path
) -> None:
    root = tmp_path / "logs"
    put(root, "dt=1/a.parquet", 10)
    deep = "/".join(f"k{level}=" + "\u6f22" * 80 for level in range(7))
    put(root, f"{deep}/a.parquet", 20)
    assert look(client, root).events == 1
    assert look(client, root).notes == ()
