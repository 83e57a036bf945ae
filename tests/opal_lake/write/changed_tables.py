"""Random programs that change columns of a table, and a model that knows what a read returns.

The model has a tree of columns for each version. A row holds its values by the numbers of columns,
so that a rename changes nothing, and a column that is added after a drop is another one.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.sql_types import arrow_of_type
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.engine.arrow_rows import ArrowRows
from opal_lake.errors import ConflictError
from opal_lake.log.commit_log import CommitLog
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest, write_inline
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

WIDER = {
    "smallint": ["int", "bigint"],
    "int": ["bigint"],
    "float": ["double"],
    "decimal(5,2)": ["decimal(9,2)", "decimal(30,2)"],
    "decimal(9,2)": ["decimal(30,2)"],
    "date": ["timestamp_ntz"],
}
NEW_TYPES = ["smallint", "int", "float", "decimal(5,2)", "string", "date"]
# For each type a value of it that no narrower type holds
VALUES: dict[str, Callable[[int], Any]] = {
    "smallint": lambda small: small,
    "int": lambda small: small << 20,
    "bigint": lambda small: small << 45,
    "float": lambda small: small / 2,
    "double": lambda small: small / 2 + 2**-40,
    "decimal(5,2)": lambda small: Decimal(small).scaleb(-2),
    "decimal(9,2)": lambda small: Decimal(small * 10_000).scaleb(-2),
    "decimal(30,2)": lambda small: Decimal(small * 10**25).scaleb(-2),
    "date": lambda small: date(2000, 1, 1 + abs(small) % 28),
    "timestamp_ntz": lambda small: datetime(2000, 1, 1 + abs(small) % 28, 3, 4, 5, 6),
    "string": lambda small: f"text {small}",
}
NAMES = ("f", "price", "day", "a", "b", "p", "q", "x y")
KEYS, DELTAS = range(1, 6), range(1, 30_000)


@dataclass
class Node:
    """A column, or a member of a struct: `type` is an atomic type, "struct" or "list".

    `initial` is the value in rows from before the column, `write` that in new rows which lack it.
    """

    number: int
    name: str
    type: str
    role: str = ""
    is_added: bool = False
    initial: Any = None
    write: Any = None
    parts: "list[Node]" = field(default_factory=list)

    @property
    def may_be_left_out(self) -> bool:
        """Return whether rows may lack the column."""
        return not self.parts and not self.role and (self.is_added or self.write is not None)

    def arrow(self) -> pa.DataType:
        if not self.parts:
            return arrow_of_type(self.name, self.type)
        struct = pa.struct([(part.name, part.arrow()) for part in self.parts])
        return struct if self.type == "struct" else pa.list_(struct)

    def shown(self, value: Any) -> Any:
        """Return a value with the names and the type that the column has."""
        if value is None:
            return None
        if self.type == "list":
            return [self._members(element) for element in value]
        if self.type == "struct":
            return self._members(value)
        if self.type == "timestamp_ntz" and not isinstance(value, datetime):
            return datetime(value.year, value.month, value.day)
        return value

    def _members(self, value: dict[int, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return {part.name: part.shown(value.get(part.number)) for part in self.parts}


@dataclass
class Row:
    """A row by the numbers of its columns."""

    key: int
    delta: int
    deletes: bool
    values: dict[int, Any]


@dataclass
class State:
    """A version: its columns, its visible and invisible rows, and the pending ones."""

    columns: list[Node]
    rows: list[Row] = field(default_factory=list)
    pending: list[Row] = field(default_factory=list)

    def view(
        self, at: int | None = None, columns: list[Node] | None = None
    ) -> list[dict[str, Any]]:
        last: dict[int, Row] = {}
        for row in self.rows:
            is_later = row.key not in last or last[row.key].delta < row.delta
            if (at is None or row.delta <= at) and is_later:
                last[row.key] = row
        visible = [last[key] for key in sorted(last) if not last[key].deletes]
        return [shown_row(row, columns or self.columns) for row in visible]


class ColumnChanges:
    """Random changes of columns, made to the model; each is returned as `alter` takes it."""

    def __init__(self, random: Random, file_format: str) -> None:
        self.random = random
        self.file_format = file_format
        self.numbers = iter(range(1, 10_000))
        self.names = iter(range(1, 10_000))
        self.zorder: int | None = None

    def node(self, name: str, kind: str, role: str = "", **more: Any) -> Node:
        return Node(number=next(self.numbers), name=name, type=kind, role=role, **more)

    def siblings(self, columns: list[Node]) -> tuple[str, list[Node]]:
        """Return the path and the columns of a random level."""
        nested = [node for node in columns if node.parts]
        if not nested or self.random.random() < 0.6:
            return "", columns
        node = self.random.choice(nested)
        inner = f"{node.name}.element." if node.type == "list" else f"{node.name}."
        return inner, node.parts

    def put(self, siblings: list[Node], node: Node) -> dict[str, Any]:
        """Put a node at a random place, and return the place as a change has it."""
        if not siblings or self.random.random() < 0.3:
            siblings.insert(0, node)
            return {"first": True}
        other = self.random.choice(siblings)
        siblings.insert(siblings.index(other) + 1, node)
        return {"after": other.name}

    def free_name(self, siblings: list[Node]) -> str:
        """Return a name that no sibling has; often one that another column had."""
        used = {node.name for node in siblings}
        free = [name for name in NAMES if name not in used]
        return self.random.choice(free) if free else f"n{next(self.names)}"

    def add(self, columns: list[Node]) -> dict[str, Any]:
        path, siblings = self.siblings(columns)
        types = self.new_types(is_member=siblings is not columns)
        node = self.node(self.free_name(siblings), self.random.choice(types), is_added=True)
        change = {"add": f"{path}{node.name}", "type": node.type}
        if self.random.random() < 0.5:
            siblings.append(node)
            return change
        return {**change, **self.put(siblings, node)}

    def new_types(self, *, is_member: bool) -> list[str]:
        """Return the types that a new column or member may have."""
        return [kind for kind in NEW_TYPES if kind != "date" or self.file_format == "parquet"]

    def rename(self, columns: list[Node]) -> dict[str, Any]:
        path, siblings = self.siblings(columns)
        node = self.random.choice(siblings)
        old, node.name = node.name, self.free_name(siblings)
        return {"rename": f"{path}{old}", "to": node.name}

    def drop(self, columns: list[Node]) -> dict[str, Any] | None:
        path, siblings = self.siblings(columns)
        node = self.random.choice(siblings)
        if node.role or node.number == self.zorder or len(siblings) == 1:
            return None
        siblings.remove(node)
        return {"drop": f"{path}{node.name}"}

    def move(self, columns: list[Node]) -> dict[str, Any] | None:
        path, siblings = self.siblings(columns)
        node = self.random.choice(siblings)
        if len(siblings) == 1:
            return None
        siblings.remove(node)
        return {"move": f"{path}{node.name}", **self.put(siblings, node)}

    def widen(self, columns: list[Node]) -> dict[str, Any] | None:
        path, siblings = self.siblings(columns)
        nodes = [node for node in siblings if node.type in WIDER]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        node.type = self.random.choice(WIDER[node.type])
        return {"widen": f"{path}{node.name}", "type": node.type}


class Program(ColumnChanges):
    """One table and its model; `run` does random steps and compares."""

    def __init__(self, seed: int, file_format: str) -> None:
        ColumnChanges.__init__(self, Random(seed), file_format)
        self.deltas = self.random.sample(DELTAS, 400)
        columns = [
            self.node("id", "smallint", "id"),
            self.node("at", "smallint", "at"),
            self.node("op", "string", "op"),
            self.node("f", "float"),
            self.node("price", "decimal(5,2)"),
            self.node("s", "struct", parts=[self.node("a", "int"), self.node("b", "string")]),
            self.node("l", "list", parts=[self.node("p", "smallint"), self.node("q", "string")]),
        ]
        if file_format == "parquet":
            columns.append(self.node("day", "date"))
        self.states = [State(columns)]
        self.storage, self.clock, self.ids = MemoryStorage(), ManualClock(), CountingIds()
        schema = pa.schema([(node.name, node.arrow()) for node in columns])
        layout = TableLayout(
            keys=["id"],
            delta="at",
            deletes="op = 'D'",
            file_format=file_format,
            properties={"checkpoint_commits": 2, "zorder": "f"},
        )
        create_on(self.storage, plan_spec(schema, layout), self.clock, self.ids)
        log = CommitLog(storage=self.storage, clock=self.clock, ids=self.ids)
        self.table: Table[pa.Table] = Table(log=log, cache=MemoryRuns(storage=self.storage))
        self.zorder = columns[3].number
        self.log_of_steps: list[str] = []

    @property
    def now(self) -> State:
        return self.states[-1]

    @property
    def has_committed(self) -> bool:
        """True if the table has a version that the model lacks."""
        return self.table.snapshot_at().version == len(self.states)

    def commit(self, **changes: Any) -> None:
        """Record one more version."""
        state = State(self.now.columns, list(self.now.rows), list(self.now.pending))
        for name, value in changes.items():
            setattr(state, name, value)
        self.states.append(state)

    def run(self, steps: int) -> None:
        kinds: list[Callable[[], None]] = [
            self.ingest,
            self.ingest,
            self.alter,
            self.alter,
            self.pending,
            self.metagen,
            self.rewrite,
            self.race,
            self.restore,
        ]
        self.ingest()
        for _ in range(steps):
            step = self.random.choice(kinds)
            self.log_of_steps.append(step.__name__)
            step()
            self.compare()
        assert check_table(self.table) == []

    # Steps

    def batch(self, columns: list[Node]) -> tuple[list[Row], pa.Table]:
        """Return rows of the model, and the same rows for an ingest."""
        left_out = {
            node.number for node in columns if node.may_be_left_out and self.random.random() < 0.3
        }
        given = [node for node in columns if node.number not in left_out]
        rows = []
        for key in self.random.sample(KEYS, self.random.randint(1, 3)):
            deletes, delta = self.random.random() < 0.15, self.deltas.pop()
            values = {node.number: self.value(node) for node in given}
            for node in given:
                known = {"id": key, "at": delta, "op": "D" if deletes else "U"}
                if node.role:
                    values[node.number] = known[node.role]
            for node in columns:
                if node.number in left_out:
                    values[node.number] = node.write
            rows.append(Row(key, delta, deletes, values))
        schema = pa.schema([(node.name, node.arrow()) for node in given])
        shown = [shown_row(row, given) for row in rows]
        return rows, pa.Table.from_pylist(shown, schema)

    def value(self, node: Node) -> Any:
        if self.random.random() < 0.2:
            return None
        if node.type == "struct":
            return {part.number: self.value(part) for part in node.parts}
        if node.type == "list":
            members = [{part.number: self.value(part) for part in node.parts}, None]
            return members[: self.random.randint(0, 2)]
        return VALUES[node.type](self.random.randint(-99, 99))

    def ingest(self) -> None:
        rows, table = self.batch(self.now.columns)
        self.table.ingest(table, metadata="inline")
        self.commit(rows=[*self.now.rows, *rows])

    def pending(self) -> None:
        rows, table = self.batch(self.now.columns)
        self.table.ingest(table)
        self.commit(pending=[*self.now.pending, *rows])

    def metagen(self) -> None:
        self.table.metagen(all=True)
        if self.has_committed:
            self.commit(rows=[*self.now.rows, *self.now.pending], pending=[])

    def rewrite(self) -> None:
        before = self.table.snapshot_at().version
        if self.random.random() < 0.5:
            self.table.compact()
        else:
            names = [node.name for node in self.now.columns if not node.parts]
            self.table.zorder(self.random.sample(names, 2), whole=True)
        for _ in range(self.table.snapshot_at().version - before):
            self.commit()

    def restore(self) -> None:
        version = self.random.randrange(len(self.states))
        self.table.restore(version=version)
        if self.has_committed:
            old = self.states[version]
            self.commit(rows=list(old.rows), pending=list(old.pending))

    def race(self) -> None:
        """Change columns while an ingest runs; it fails only if one was dropped."""
        rows, table = self.batch(self.now.columns)
        run = start_ingest(self.table, Ingest([], metadata="inline"))
        assert isinstance(run, IngestRun)
        fitted = ArrowRows(given=table, deleted=None).rows(run.base.spec)
        outputs, rule_outputs = write_inline(self.table, fitted, run)
        before = numbers_of(self.now.columns)
        self.alter()
        is_dropped = not before <= numbers_of(self.now.columns)
        try:
            commit_ingest(self.table.log, run, outputs, rule_outputs)
        except ConflictError:
            assert is_dropped
            return
        assert not is_dropped
        self.commit(rows=[*self.now.rows, *rows])

    def alter(self) -> None:
        columns, changes = deepcopy(self.now.columns), []
        for _ in range(self.random.randint(1, 3)):
            kinds = [self.add_with_default, self.add, self.rename, self.drop, self.move]
            step = self.random.choice([*kinds, self.widen, self.default])
            change = step(columns)
            if change is not None:
                changes.append(change)
        if not changes:
            return
        self.log_of_steps.append(repr(changes))
        self.table.alter(changes)
        if self.has_committed:
            self.commit(columns=columns)

    def add_with_default(self, columns: list[Node]) -> dict[str, Any]:
        """Add a column whose value is known in rows from before it."""
        types = [kind for kind in NEW_TYPES if kind != "date" or self.file_format == "parquet"]
        node = self.node(self.free_name(columns), self.random.choice(types), is_added=True)
        node.initial = node.write = VALUES[node.type](self.random.randint(-99, 99))
        change = {"add": node.name, "type": node.type, "default": given_default(node.write)}
        return {**change, **self.put(columns, node)}

    def default(self, columns: list[Node]) -> dict[str, Any] | None:
        """Set or drop the default of a column for new rows."""
        nodes = [node for node in columns if not node.parts and not node.role]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        if node.write is not None and self.random.random() < 0.3:
            node.write = None
            return {"drop_default": f"`{node.name}`"}
        node.write = VALUES[node.type](self.random.randint(-99, 99))
        return {"set_default": f"`{node.name}`", "value": given_default(node.write)}

    # Comparisons

    def compare(self) -> None:
        key = self.key(self.now)
        assert self.table.snapshot_at().version == len(self.states) - 1
        assert self.shown(self.table.read(), key) == self.now.view()
        version = self.random.randrange(len(self.states))
        old = self.states[version]
        assert self.shown(self.table.read(version=version), self.key(old)) == old.view()
        rows = self.table.read(version=version, newest_columns=True)
        assert self.shown(rows, key) == old.view(columns=self.now.columns)
        at = self.random.choice(DELTAS)
        assert self.shown(self.table.read(event_time=at), key) == self.now.view(at)
        node = self.random.choice([node for node in self.now.columns if not node.parts])
        rows = self.table.read(where=f"`{node.name}` IS NULL")
        assert self.shown(rows, key) == [row for row in self.now.view() if row[node.name] is None]
        self.compare_range(key)
        self.compare_feed(key)
        wanted = self.table.get([{key: number} for number in KEYS])
        assert self.shown(wanted, key) == self.now.view()

    def compare_feed(self, key: str) -> None:
        """Compare the sum of a feed: its inserts less its deletes are the rows of now."""
        start = self.random.randrange(1, len(self.states))
        before = {row[key]: row for row in self.states[start - 1].view(columns=self.now.columns)}
        feed = self.table.changes(start, mode="netChanges", compute_updates=False)
        names = [node.name for node in self.now.columns]
        for change in feed.to_pylist():
            row = {name: change[name] for name in names}
            if change["_change_type"] == "delete":
                assert before.pop(row[key]) == row
            else:
                before[row[key]] = row
        assert [before[number] for number in sorted(before)] == self.now.view()
        history = self.table.changes(start, axis="event_time")
        assert [*history.column_names][: len(names)] == names

    def compare_range(self, key: str) -> None:
        """Compare a read that skips files by their bounds."""
        kinds = ("bigint", "int", "smallint", "timestamp_ntz", "date")
        for node in self.now.columns:
            if node.type not in kinds or node.role:
                continue
            bound, shown = 0, "0"
            if node.type in ("timestamp_ntz", "date"):
                day = date(2000, 1, 14)
                bound = datetime(2000, 1, 14) if node.type == "timestamp_ntz" else day
                shown = f"{node.type.upper()} '{bound}'"
            rows = self.table.read(where=f"`{node.name}` > {shown}")
            known = [row for row in self.now.view() if row[node.name] is not None]
            assert self.shown(rows, key) == [row for row in known if row[node.name] > bound]

    def key(self, state: State) -> str:
        return next(node.name for node in state.columns if node.role == "id")

    def shown(self, rows: pa.Table, key: str) -> list[dict[str, Any]]:
        return sorted(rows.to_pylist(), key=lambda row: row[key])


def shown_row(row: Row, nodes: list[Node]) -> dict[str, Any]:
    """Return the values of a row by the names of columns."""
    return {node.name: node.shown(row.values.get(node.number, node.initial)) for node in nodes}


def given_default(value: Any) -> Any:
    """Return a default as a change takes it: a text is a literal of SQL."""
    return f"'{value}'" if isinstance(value, str) else value


def numbers_of(nodes: list[Node]) -> set[int]:
    numbers = {node.number for node in nodes}
    for node in nodes:
        numbers |= numbers_of(node.parts)
    return numbers
