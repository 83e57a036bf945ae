"""Random programs of statements, ingests and rewrites against a model: a dict for each version."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.schema import COMMIT
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from tests.kit.ids import CountingIds

OWN_DELTA = "at"
KEYS = range(6)
DAYS = ("a", "b", None)
STEPS = 12
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
Row = tuple[str | None, int]  # day and value


@dataclass(kw_only=True)
class Program:
    """A table and its model: the visible rows by key, and those of each version."""

    table: Table
    delta: str
    random: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    versions: dict[int, dict[int, Row]] = field(default_factory=dict)
    now: int = 0

    def step(self) -> None:
        """Do one random step on both, and remember the rows of the new version."""
        steps: list[Callable[[], None]] = [
            self.upsert,
            self.update,
            self.delete,
            self.insert,
            self.merge,
            self.overwrite,
            self.overwrite,
            self.drop_partition,
            self.compact,
            self.restore,
        ]
        self.now += 1
        self.random.choice(steps)()
        self.versions[self.table.log.head().version] = dict(self.rows)

    def upsert(self) -> None:
        rows = self._some_rows()
        self.table.upsert(self._arrow(rows))
        self.rows.update(rows)

    def update(self) -> None:
        day, value = self.random.choice(DAYS), self.random.randrange(100)
        self.table.update({"value": f"value + {value}"}, where=_is_day(day))
        for key, row in self.rows.items():
            if row[0] == day:
                self.rows[key] = (day, row[1] + value)

    def delete(self) -> None:
        key = self.random.choice(KEYS)
        self.table.delete(where=f"id >= {key} AND id < {key + 2}")
        self.rows = {own: row for own, row in self.rows.items() if own not in (key, key + 1)}

    def insert(self) -> None:
        rows = self._some_rows()
        if rows.keys() & self.rows.keys():
            with pytest.raises(InvalidInputError, match="the table has already"):
                self.table.insert(self._arrow(rows))
            return
        self.table.insert(self._arrow(rows))
        self.rows.update(rows)

    def merge(self) -> None:
        rows, day = self._some_rows(), self.random.choice(DAYS)
        merge = self.table.merge(self._arrow(rows), on="t.id = s.id")
        merge = merge.when_matched_delete(where="s.value < 20").when_matched_update_all()
        merge = merge.when_not_matched_insert_all(where="s.value >= 50")
        merge.when_not_matched_by_source_delete(where=_is_day(day)).execute()
        left = {}
        for key, row in self.rows.items():
            if key not in rows and row[0] != day:
                left[key] = row
            elif key in rows and rows[key][1] >= 20:
                left[key] = rows[key]
        new = [key for key in rows if key not in self.rows and rows[key][1] >= 50]
        left.update({key: rows[key] for key in new})
        self.rows = left

    def overwrite(self) -> None:
        """Overwrite a region, at times while another job upserts rows, and at times twice."""
        rows, day = self._some_rows(), self.random.choice(DAYS)
        kind = self.random.choice(["all", "where", "dynamic"])
        if kind == "dynamic" and not self.table.snapshot_at().spec.partition_by:
            kind = "where"
        arguments: dict[str, Any] = {"token": f"{self.now}"}
        if kind == "where":
            arguments["where"] = _is_day(day)
            if any(row[0] != day for row in rows.values()):
                with pytest.raises(InvalidInputError, match="would not meet"):
                    self.table.overwrite(self._arrow(rows), **arguments)
            rows = {key: (day, row[1]) for key, row in rows.items()}
        elif kind == "dynamic":
            arguments["partitions"] = "dynamic"
        days = {"all": {*DAYS}, "where": {day}, "dynamic": {row[0] for row in rows.values()}}
        self._racing().overwrite(self._arrow(rows), **arguments)
        if self.random.random() < 0.3:
            assert self.table.overwrite(self._arrow(rows), **arguments).repeated
        left = {key: row for key, row in self.rows.items() if row[0] not in days[kind]}
        self.rows = {**left, **rows}

    def drop_partition(self) -> None:
        day = self.random.choice(DAYS)
        if not self.table.snapshot_at().spec.partition_by:
            with pytest.raises(InvalidInputError, match="no partition columns"):
                self.table.drop_partition(day=day)
            return
        has_rows = any(row[0] == day for row in self.rows.values())
        result = self._racing().drop_partition(day=day)
        if not has_rows:
            # It commits nothing: its version comes before the other job's rows
            assert result.counts["deleted"] == 0
            return
        assert result.counts["deleted"] == len([r for r in self.rows.values() if r[0] == day])
        self.rows = {key: row for key, row in self.rows.items() if row[0] != day}

    def _racing(self) -> Table:
        """Return the table, at times one whose next job another job overtakes.

        The other job's rows come first in the model: the job has to run again if it matters.
        """
        if self.random.random() < 0.6:
            return self.table
        rows = self._some_rows()

        def interfere() -> None:
            self.table.upsert(self._arrow(rows))
            self.rows.update(rows)

        store = Overtaken(self.table.storage, interfere)
        return table_on(store, self.table.log.clock, self.table.log.ids)

    def compact(self) -> None:
        self.table.compact()

    def restore(self) -> None:
        version = self.random.choice([*self.versions])
        self.table.restore(version=version)
        self.rows = dict(self.versions[version])

    def check(self) -> None:
        """Compare all versions with the model, and check the table."""
        for version, rows in self.versions.items():
            shown = self.table.read(version=version, columns=["id", "day", "value"]).to_pylist()
            assert len(shown) == len(rows)
            assert {row["id"]: (row["day"], row["value"]) for row in shown} == rows
        assert self.table.check(all=True) == []

    def _some_rows(self) -> dict[int, Row]:
        keys = self.random.sample(KEYS, self.random.randint(1, 4))
        return {key: (self.random.choice(DAYS), self.random.randrange(100)) for key in keys}

    def _arrow(self, rows: dict[int, Row]) -> pa.Table:
        columns = {
            "id": pa.array(rows, pa.int64()),
            "day": pa.array([row[0] for row in rows.values()], pa.string()),
            "value": pa.array([row[1] for row in rows.values()], pa.int64()),
        }
        if self.delta == OWN_DELTA:
            columns[OWN_DELTA] = pa.array([self.now] * len(rows), pa.int64())
        return pa.table(columns)


@dataclass(slots=True)
class Overtaken(ForwardingStore):
    """A store in which another job commits once, after a job has claimed a number."""

    inner: Storage
    interfere: Callable[[], None]
    is_done: bool = False

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        is_put = self.inner.put_if_absent(path, data)
        if is_put and layout.claim_number(path) is not None and not self.is_done:
            self.is_done = True
            self.interfere()
        return is_put


def _is_day(day: str | None) -> str:
    return "day IS NULL" if day is None else f"day = '{day}'"


def new_program(seed: int) -> Program:
    chosen = random.Random(seed)
    delta = chosen.choice([OWN_DELTA, COMMIT])
    columns = [("id", pa.int64()), ("day", pa.string()), ("value", pa.int64())]
    if delta == OWN_DELTA:
        columns.append((OWN_DELTA, pa.int64()))
    layout = TableLayout(
        keys=["id"], delta=delta, partition_by=chosen.choice([["day"], []]), deletes="false"
    )
    spec = plan_spec(pa.schema(columns), layout)
    table = create_on(MemoryStorage(), spec, ManualClock(), CountingIds())
    return Program(table=table, delta=delta, random=chosen, versions={0: {}})


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(60, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_statements_do_what_the_model_does(seconds: float) -> None:
    end = time.monotonic() + seconds
    seed = SEED
    while time.monotonic() < end:
        program = new_program(seed)
        try:
            for _ in range(STEPS):
                program.step()
            program.check()
        except Exception as error:
            error.add_note(f"OPAL_SEED={seed}")
            raise
        seed += 1
