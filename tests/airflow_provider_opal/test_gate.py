"""A check between ingest and MetaGen, without a scheduler.

Tasks, clears and discards of six keys run in random orders. Whatever the order is, no version shows
rows whose check has not passed, and no event reports them.
"""

import json
import random
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal import (
    ConsumeOperator,
    Files,
    IngestOperator,
    MetaGenOperator,
    ReconcileOperator,
)
from airflow_provider_opal.assets import version_key
from lakechime import LakeChime
from lakechime.producers.opal import sync_opal
from opal_lake.engine.results import keep_result
from opal_lake.errors import InvalidInputError
from opal_lake.result import JobResult
from opal_lake.write.discard import discard
from tests.airflow_provider_opal.build import Events, Lake
from tests.airflow_provider_opal.jobs import BAD, create_table, do_job
from tests.airflow_provider_opal.stand_ins import Store, context, task_instance
from tests.kit.check import check_table

KEYS = [f"2026-11-{day:02}" for day in range(1, 7)]
# A task that the scheduler would not start now is passed over, so the frequent ones come more often
STEPS = ("ingest", "ingest", "check", "check", "metagen", "metagen", "discard", "retry", "consume")
STEPS_OF_A_STORY = 60
NEWEST = 1_000_000  # bad rows are later than all others: one that is shown replaces them
Row = tuple[str, int]


class Day:
    """The DAG run of a key, and what a correct table has of it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.clears = -1
        self.stores = {"ingest": Store(), "metagen": Store()}
        self.source: list[Row] = []
        self.has_passed = False
        self.is_new = True  # since the last clear no MetaGen has run
        self.pending: list[Row] = []
        self.is_discarded = False  # rows of the last ingest were withdrawn
        self.published: list[Row] = []
        self.ingests = 0  # that were published
        self.notified: int | None = None  # the version in the last event
        self.published_at: int | None = None
        self.consumed = 0  # of its ingests


class Gate:
    """A table, its six days, and all that may report them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, f"shop.{name}"
        self.table = create_table(str(folder / "shop" / name))
        self.chime = LakeChime.open(f"sqlite:///{folder}/{name}.db")
        self.lake, self.days = Lake(), {key: Day(key) for key in KEYS}
        self.events: list[tuple[str, str]] = []
        self.numbers = count(1)
        self.looked_at = 0  # the last version that was compared
        (folder / name).mkdir()

    def ingest(self, day: Day) -> IngestOperator:
        """Return the task as rendered. It registers nothing: each comparison does."""
        source = Files(str(self.source(day)))
        return IngestOperator(
            task_id="ingest", table=self.name, source=source, lakechime_conn_id=None
        )

    def source(self, day: Day) -> Path:
        return self.folder / self.name.removeprefix("shop.") / f"{day.key}.json"

    def step(self, day: Day, step: str, *, is_bad: bool) -> None:
        """Do what the scheduler or a user might do now; nothing if they would not."""
        if step == "ingest":
            self.run_ingest(day, is_bad=is_bad)
        elif step == "check" and day.clears >= 0:
            day.has_passed = BAD not in dict(day.source)
        elif step == "metagen" and day.has_passed:
            self.run_metagen(day)
        elif step == "discard" and day.pending:
            discard(self.table.log, partition_key=day.key)
            day.pending = []
            day.is_discarded = True
        elif step == "retry" and day.clears >= 0:
            self.run_retry(day)
        elif step == "consume" and day.notified is not None:
            self.run_consumer(day, day.notified)

    def run_ingest(self, day: Day, *, is_bad: bool) -> None:
        """Run the ingest for the first time or, with its downstream tasks, again."""
        at = next(self.numbers)
        day.source = [(f"only {day.key}", at), ("shared", NEWEST + at if is_bad else at)]
        if is_bad:
            day.source.append((BAD, at))
        lines = [json.dumps({"id": key, "at": time, "day": day.key}) for key, time in day.source]
        self.source(day).write_text("\n".join(lines) + "\n")
        day.clears += 1
        day.has_passed, day.is_new, day.is_discarded = False, True, False
        run = self.run(day, self.ingest(day))
        day.pending = day.source
        assert not run["outlet_events"]

    def run_retry(self, day: Day) -> None:
        """Run the last ingest again under its token; discarded rows have used it up."""
        if not day.is_discarded:
            self.run(day, self.ingest(day))
            return
        with pytest.raises(InvalidInputError, match="discarded the rows"):
            self.run(day, self.ingest(day))

    def run_metagen(self, day: Day) -> None:
        task = MetaGenOperator(task_id="metagen", table=self.name, lakechime_conn_id=None)
        run = self.run(day, task)
        if day.pending:
            day.published = [*day.published, *day.pending]
            day.ingests += 1
            day.published_at = self.table.snapshot_at().version
            self.events.append((str(day.published_at), day.key))
            day.pending = []
        version = run["result"]["version"]
        assert run["outlet_events"][task.versions].keys == [version_key(version)]
        if day.ingests:
            day.notified = version
            assert run["outlet_events"][task.asset].keys == [day.key]
            assert run["outlet_events"][task.asset].extra["version"] == version
        else:
            assert task.asset not in task.outlets
        stays = re.findall(r"partition key (\S+) stays pending", "\n".join(run["result"]["notes"]))
        if day.is_new:  # a retry repeats what was said
            assert sorted(stays) == [other.key for other in self.days.values() if other.pending]
        day.is_new = False

    def run_consumer(self, day: Day, version: int) -> None:
        task = ConsumeOperator(task_id="c", table=self.name, function="m:f")
        run_id = f"run {next(self.numbers)}"
        done = {"table": self.table.uri, "token": f"d/{run_id}/c/-1/0", "version": version}
        keep_result(self.table.storage, JobResult(operation="consume", **done))
        events = {task.asset: [SimpleNamespace(extra={"version": version})]}
        run = self.lake.run(task, run_id, partition_key=day.key, triggering_asset_events=events)
        task.execute(run)
        day.consumed = day.ingests

    def run(self, day: Day, task: IngestOperator | MetaGenOperator) -> dict[str, Any]:
        """Run a task as at its first try since the last clear, or as a retry of that."""
        store = day.stores[task.task_id]
        run = {
            **context(task, clears=day.clears, store=store, partition_key=day.key),
            "ti": task_instance(task, clears=day.clears, run_id=day.key),
            "outlet_events": Events(),
        }
        do_job(task.job(run))
        return {**run, "result": task.execute(run)}

    def expect_nothing_unchecked(self) -> None:
        """Compare each new version, and all that reports it, with the rows that passed."""
        published = [(key, at, day.key) for day in self.days.values() for key, at in day.published]
        expected = newest(published)
        head = self.table.snapshot_at().version
        for version in range(self.looked_at + 1, head + 1):
            shown = self.table.read(version).to_pylist()
            assert {row["id"]: (row["at"], row["day"]) for row in shown} == expected, version
        self.looked_at = head
        assert BAD not in expected
        sync_opal(self.chime, self.table, self.name)
        registered = [stored.event for stored in self.chime.events([self.name]).events]
        assert self.events == [
            (event.snapshot_id, event.partition[0]) for event in registered if event.partition
        ]
        assert self.reconciled() == {
            day.key: day.published_at
            for day in self.days.values()
            if day.ingests > day.consumed and not day.pending
        }

    def reconciled(self) -> dict[str, int]:
        """Return what is emitted again to a consumer."""
        task = ReconcileOperator(
            task_id="r",
            table=self.name,
            consumer="d.c",
            grace=timedelta(0),
            again=timedelta(0),
        )
        run = self.lake.run(task)
        try:
            missed = task.execute(run)
        except AirflowSkipException:
            return {}
        assert run["outlet_events"][task.emitted].keys == [*missed]
        return missed

    def expect_own_rows(self, day: Day) -> None:
        """Expect a report of the day to have the newest of its own rows."""
        rows = self.table.read(partition_key=day.key, net=True).to_pylist()
        expected = newest([(key, at, day.key) for key, at in day.published])
        assert {row["id"]: (row["at"], row["day"]) for row in rows} == expected


def newest(rows: list[tuple[str, int, str]]) -> dict[str, tuple[int, str]]:
    """Return the row of each id that changed last."""
    last: dict[str, tuple[int, str]] = {}
    for key, at, day in rows:
        last[key] = max(last.get(key, (0, "")), (at, day))
    return last


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as environment:
        connection = {"conn_type": "opal", "host": str(folder)}
        environment.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
        yield folder


@pytest.mark.slow_but_one
@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_runs_shows_or_tells_of_rows_whose_check_has_not_passed(
    folder: Path, seed: int
) -> None:
    gate, chance = Gate(folder, f"orders_{seed}"), random.Random(seed)
    for _ in range(STEPS_OF_A_STORY):
        day, step = gate.days[chance.choice(KEYS)], chance.choice(STEPS)
        is_bad = chance.random() < 0.5
        print(day.key, step, "bad" if is_bad else "good")
        gate.step(day, step, is_bad=is_bad)
        gate.expect_nothing_unchecked()
    for day in gate.days.values():
        for step in ("ingest", "check", "metagen"):
            gate.step(day, step, is_bad=False)
            gate.expect_nothing_unchecked()
        gate.expect_own_rows(day)
    assert check_table(gate.table) == []
    gate.chime.close()
