"""One loop over many tables: failures of one stay its own."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakechime import DataChangeEvent, LakeChime, TableFormat, UnavailableError
from lakechime.producers.outbox import Position, Step, Synced, Target, sync
from lakechime.producers.watch import Watch
from tests.lakechime.producers.build import events_of


@dataclass
class Counter:
    """A source with a new snapshot at each look, or with none, or that fails."""

    target: Target
    failing: int = 0
    most: int = 1_000_000
    looks: list[float] = field(default_factory=list)

    def steps(self, position: Position | None) -> Iterator[Step]:
        self.looks.append(time.monotonic())
        if len(self.looks) <= self.failing:
            raise OSError(f"look {len(self.looks)} fails")
        for number in range(0 if position is None else position["next"], self.most)[:1]:
            event = DataChangeEvent(
                table=self.target.table,
                snapshot_id=str(number),
                prev_snapshot_id=str(number - 1) if number else None,
                table_format=TableFormat.PAIMON,
            )
            yield Step(position={"next": number + 1}, events=(event,))


def run(
    client: LakeChime, *sources: Counter, until: Callable[[], bool], **options: Any
) -> tuple[list[tuple[str, Synced]], list[str]]:
    stop, results, failures = threading.Event(), list[tuple[str, Synced]](), list[str]()
    watch = Watch(
        client=options.pop("open_client", lambda: client),
        sources={source.target.table: source for source in sources},
        interval_seconds=0.05,
        at_result=lambda name, synced: results.append((name, synced)),
        at_failure=lambda name, error, pause: failures.append(
            f"{name}: {error}, again in {pause:.2f}"
        ),
        **options,
    )
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 60
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    return results, failures


def test_each_table_is_looked_at_again_and_again(tmp_path: Path) -> None:
    client = LakeChime.open(f"sqlite:///{tmp_path}/events.db")
    sources = [Counter(Target(table=name)) for name in ("a", "b")]
    results, failures = run(
        client, *sources, until=lambda: all(len(source.looks) > 3 for source in sources)
    )
    assert failures == []
    client = LakeChime.open(f"sqlite:///{tmp_path}/events.db")  # the loop closed its own
    for source in sources:
        reported = [event.snapshot_id for event in events_of(client, source.target.table)]
        assert reported == [str(number) for number in range(len(source.looks))]
    assert sum(synced.events for _, synced in results) == sum(
        len(source.looks) for source in sources
    )


def test_failing_table_is_watched_less_often_and_other_tables_as_before(tmp_path: Path) -> None:
    client = LakeChime.open(f"sqlite:///{tmp_path}/events.db")
    broken, sound = Counter(Target(table="broken"), failing=10_000), Counter(Target(table="sound"))
    _, failures = run(
        client, broken, sound, until=lambda: len(broken.looks) >= 3 and len(sound.looks) >= 4
    )
    assert [failure.partition(", ")[2] for failure in failures[:3]] == [
        "again in 0.10",
        "again in 0.20",
        "again in 0.40",
    ]
    assert len(sound.looks) >= 4


def test_failed_table_is_watched_as_before_once_it_works(tmp_path: Path) -> None:
    client = LakeChime.open(f"sqlite:///{tmp_path}/events.db")
    source = Counter(Target(table="a"), failing=2)
    results, failures = run(
        client, source, until=lambda: len(source.looks) >= 5, max_pause_seconds=0.05
    )
    assert len(failures) == 2
    assert [synced.last for _, synced in results[:2]] == ["0", "1"]


def test_watch_waits_for_a_database_that_is_away_at_its_start(tmp_path: Path) -> None:
    calls: list[int] = []

    def open_client() -> LakeChime:
        calls.append(1)
        if len(calls) < 3:
            raise UnavailableError("away")
        return LakeChime.open(f"sqlite:///{tmp_path}/events.db")

    source = Counter(Target(table="a"))
    results, failures = run(
        None, source, until=lambda: len(source.looks) >= 2, open_client=open_client
    )  # type: ignore[arg-type]
    assert len(failures) == 2
    assert results


def test_stopped_look_ends_after_a_registration(tmp_path: Path) -> None:
    class Long(Counter):
        def steps(self, position: Position | None) -> Iterator[Step]:
            for number in range(2_000):
                event = DataChangeEvent(
                    table="long", snapshot_id=str(number), table_format=TableFormat.PAIMON
                )
                yield Step(position={"next": number + 1}, events=(event,))

    with LakeChime.open(f"sqlite:///{tmp_path}/events.db") as client:
        synced = sync(client, Long(Target(table="long")), stop=lambda: True)
        assert synced.events == 500
        state = client.table_state("long")
        assert state is not None
        assert state.position == {"next": 500}
