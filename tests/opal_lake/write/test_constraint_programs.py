"""Random ingests, updates and constraints against a model with its own three-valued logic."""

import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.ids import CountingIds

SCHEMA = pa.schema(
    {"id": pa.int64(), "at": pa.int64(), "op": pa.string(), "a": pa.float64(), "b": pa.float64()}
)
VALUES = (None, math.nan, -1.0, 0.0, 1.0, 2.0)
KEYS = range(6)
STEPS = 15
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
Row = Mapping[str, Any]
Truth = bool | None
# A condition as its text, and as the model knows it
Check = tuple[str, Callable[[Row], Truth]]


def order_of(value: float) -> tuple[bool, float]:
    """Return a number's place in the order, in which NaN is the greatest."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def compared(op: str, left: float | None, right: float | None) -> Truth:
    if left is None or right is None:
        return None
    low, high = order_of(left), order_of(right)
    return {"<": low < high, "=": low == high, ">=": low >= high, "<>": low != high}[op]


def negated(value: Truth) -> Truth:
    return None if value is None else not value


def both(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def among(value: float | None, members: tuple[float, ...]) -> Truth:
    return None if value is None else value in members


def drawn_check(chance: random.Random, depth: int = 2) -> Check:
    """Return a random condition on the columns a and b."""
    kind = chance.choice(["compare", "columns", "null", "in"])
    if depth:
        kind = chance.choice(["not", "and", "or", kind])
    if kind == "not":
        text, holds = drawn_check(chance, depth - 1)
        return f"NOT ({text})", lambda row: negated(holds(row))
    if kind in ("and", "or"):
        (left, holds_left), (right, holds_right) = (
            drawn_check(chance, depth - 1),
            drawn_check(chance, depth - 1),
        )
        if kind == "and":
            return f"({left}) AND ({right})", lambda row: both(holds_left(row), holds_right(row))
        return f"({left}) OR ({right})", lambda row: negated(
            both(negated(holds_left(row)), negated(holds_right(row)))
        )
    name, op = chance.choice("ab"), chance.choice(["<", "=", ">=", "<>"])
    if kind == "columns":
        return f"a {op} b", lambda row: compared(op, row["a"], row["b"])
    if kind == "null":
        return f"{name} IS NULL", lambda row: row[name] is None
    if kind == "in":
        return (
            f"{name} IN (0, 2)",
            lambda row: None if row[name] is None else row[name] in (0.0, 2.0),
        )
    number = chance.choice([-1, 0, 1])
    return f"{name} {op} {number}", lambda row: compared(op, row[name], number)


@dataclass(kw_only=True)
class Program:
    """A table and its model: the visible rows by key, and the constraints in force."""

    table: Table
    random: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    not_null: set[str] = field(default_factory=set)
    now: int = 0

    def step(self) -> None:
        self.now += 1
        self.random.choice(
            [self.ingest, self.ingest, self.update, self.constrain, self.release, self.compact]
        )()

    def ingest(self) -> None:
        keys = self.random.sample(KEYS, self.random.randint(1, 4))
        rows = [self._drawn_row(key) for key in keys]
        bad = [row for row in rows if self._violates(row)]
        arrow = pa.Table.from_pylist([dict(row) for row in rows], SCHEMA)
        if bad and self.random.random() < 0.5:
            with pytest.raises(InvalidInputError, match="cannot go into the table"):
                self.table.ingest(arrow, metadata="inline")
            return
        done = self.table.ingest(arrow, metadata="inline", on_bad_rows="quarantine")
        assert done.counts["rejected"] == len(bad)
        for row in rows:
            if row["op"] == "D":
                self.rows.pop(row["id"], None)
            elif row not in bad:
                self.rows[row["id"]] = row

    def update(self) -> None:
        name, value = self.random.choice("ab"), self.random.choice([None, -1.0, 0.0, 1.0])
        changed = {key: {**row, name: value} for key, row in self.rows.items()}
        update = {name: "NULL" if value is None else value}
        if any(self._violates(row) for row in changed.values()):
            with pytest.raises(InvalidInputError, match="cannot go into the table"):
                self.table.update(set=update)
            return
        self.table.update(set=update)
        self.rows = dict(changed)

    def constrain(self) -> None:
        """Add a constraint, which is refused if a row violates it."""
        before = dict(self.checks), set(self.not_null)
        change: dict[str, Any]
        if self.random.random() < 0.3:
            name = self.random.choice("ab")
            change = {"set_not_null": name}
            self.not_null.add(name)
        else:
            text, holds = drawn_check(self.random)
            change = {"add_constraint": f"c{self.now}", "check": text}
            self.checks[f"c{self.now}"] = text, holds
        if any(self._violates(row) for row in self.rows.values()):
            with pytest.raises(InvalidInputError, match=r"violates? the new constraints"):
                self.table.alter([change])
            self.checks, self.not_null = before
            return
        self.table.alter([change])

    def release(self) -> None:
        """Drop a constraint."""
        if self.checks and self.random.random() < 0.8:
            name = self.random.choice([*self.checks])
            del self.checks[name]
            self.table.alter([{"drop_constraint": name}])
        elif self.not_null:
            self.table.alter([{"drop_not_null": self.not_null.pop()}])

    def compact(self) -> None:
        self.table.compact()

    def check(self) -> None:
        shown = {row["id"]: row for row in self.table.read().to_pylist()}
        assert repr(sorted(shown.items())) == repr(sorted(self.rows.items()))
        assert check_table(self.table) == []

    def _drawn_row(self, key: int) -> Row:
        op = "D" if self.random.random() < 0.15 else "U"
        a, b = self.random.choice(VALUES), self.random.choice(VALUES)
        return {"id": key, "at": self.now, "op": op, "a": a, "b": b}

    def _violates(self, row: Row) -> bool:
        if row["op"] == "D":
            return False
        if any(row[name] is None for name in self.not_null):
            return True
        return any(holds(row) is False for _, holds in self.checks.values())


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(60, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_constraints_refuse_the_rows_that_the_model_refuses(seconds: float) -> None:
    end = time.monotonic() + seconds
    seed = SEED
    while time.monotonic() < end:
        layout = TableLayout(keys=["id"], delta="at", deletes="op = 'D'")
        table = create_on(MemoryStorage(), plan_spec(SCHEMA, layout), ManualClock(), CountingIds())
        program = Program(table=table, random=random.Random(seed))
        try:
            for _ in range(STEPS):
                program.step()
                program.check()
        except BaseException as error:
            error.add_note(f"OPAL_SEED={seed}")
            raise
        seed += 1
