"""A program: a table of a random shape, and random jobs on it and on the model."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.schema import COMMIT
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.log.version_window import is_readable
from opal_lake.result import JobResult
from opal_lake.table import Table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.model import ModelRow
from tests.opal_lake.compacting import compact
from tests.opal_lake.write.changed_tables import Node
from tests.programs.engines import Arrow, Engine, MeddledStore
from tests.programs.evolution import (
    Evolution,
    has_constrained,
    has_dropped,
    named_generated,
    same_definition,
    violating,
)
from tests.programs.formulas import (
    LIMITS,
    POOLS,
    Formula,
    RefusedError,
    columns_of,
    condition,
    expression,
    literal,
    spelled,
)
from tests.programs.model import (
    SOURCE,
    TARGET,
    Clause,
    Roles,
    Source,
    State,
    Statement,
    Written,
    check_order,
    new_row,
    processed,
    region_of,
    rows_after,
    rows_of_statement,
    shown_values,
    violation,
)

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY_TYPES = ["bigint", "int", "smallint", "string", "date", "decimal(5,2)", "timestamp", "binary"]
DELTA_TYPES = ["bigint", "int", "smallint", "date", "timestamp", "timestamp_ntz", "decimal(5,2)"]
# The spans that a major compaction keeps: a number if the delta is one
LOOK_BACKS = {"bigint": [1, 3], "int": [1, 3], "smallint": [1, 3]}
DELTAS: dict[str, list[Any]] = {
    "bigint": [-5, 0, 1, 2, 3, 4, 5, 6],
    "int": [-5, 0, 1, 2, 3, 4, 5, 6],
    "smallint": [-5, 0, 1, 2, 3, 4, 5, 6],
}
PARTITION_KEYS = (None, "2026-11-01", "2026-11-02")
# So that a row of an earlier job and a statement meet at the same delta
MAX_ROWS = 4
# Numbers that rows of a job get although another job runs meanwhile
RESERVED = 100
FAILURES: tuple[Mode, ...] = ("before", "after", "failed", "done_but_failed")
MAX_CALLS = 25  # before a job's store fails; most jobs make fewer
# Jobs that run while an ingest, a metagen or a statement does
MEDDLERS = (
    "ingest",
    "ingest",
    "update",
    "update",
    "delete",
    "insert",
    "merge",
    "merge",
    "overwrite",
    "drop_partition",
    "replace",
    "metagen",
    "compact",
    "cluster",
    "restore",
    "properties",
    "add_column",
    "evolve",
    "evolve",
)
# Changes of the definition that leave the meaning of all texts as it is
EVOLUTION = (
    "add_with_default",
    "set_default",
    "set_default",
    "add_check",
    "add_check",
    "drop_check",
    "set_not_null",
    "drop_not_null",
)
ALTERATIONS = (
    *("add", "add_with_default", "rename", "rename", "drop", "drop", "move", "widen"),
    *("set_default", "add_check", "add_check", "drop_check", "set_not_null", "drop_not_null"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A job that was applied with a token, and can be repeated."""

    operation: str
    call: Callable[[], JobResult]
    version: int | None
    has_commit: bool


class Program(Evolution):
    """One table and its model. Each step is done on both, and compared."""

    def __init__(self, seed: int, engine: Engine | None = None) -> None:
        random = Random(seed)
        Evolution.__init__(self, random, random.choice(["parquet", "parquet", "orc"]))
        self.engine = engine or Arrow(
            tasks=random.choice([1, 1, 2, 3]), fold_at_logs=random.choice([1, 32])
        )
        self.steps: list[str] = []
        self.job_token: str | None = None
        self.orders_by_commit = random.random() < 0.25
        self.pools: dict[int, list[Any]] = {}
        columns = self._first_columns()
        self.clock = ManualClock()
        self.deletes = self._deletes(columns)
        self.table = self._create(columns)
        self.states = {0: State(columns=columns, generated=self.generated)}
        self.operations = {0: "create"}
        self.times = {0: self.table.log.read_commit(0).timestamp_us}
        self.next_number = 1
        self.jobs = 0
        self.job_deltas: set[Any] = set()
        self.happened: Counter[str] = Counter()
        self.is_meddling = False
        self.changed_meanwhile = False
        self.may_have_changed_meanwhile = False
        self.has_deletes_meanwhile = False
        self.has_restored_meanwhile = False
        self.number_meanwhile = 0
        self.ran_meanwhile = False
        self.has_deletes = self.deletes is not None
        self.applied: list[Applied] = []
        self.savepoints: dict[str, int] = {}

    # The table

    def _first_columns(self) -> list[Node]:
        random = self.random
        key_types = random.sample(KEY_TYPES, random.choice([1, 1, 2]))
        keys = [self.node(name, kind, "key") for name, kind in zip("kj", key_types, strict=False)]
        columns = list(keys)
        for position, key in enumerate(keys):
            size = 2 if position else 4
            self.pools[key.number] = random.sample(POOLS[key.type], min(size, len(POOLS[key.type])))
        delta, ties = None, []
        if not self.orders_by_commit:
            delta = self.node("at", random.choice(DELTA_TYPES), "delta")
            self.pools[delta.number] = DELTAS.get(delta.type, POOLS[delta.type])
            columns.append(delta)
            if random.random() < 0.4:
                tie = self.node("tie", random.choice(["int", "smallint"]), "tie")
                self.pools[tie.number] = [None, 0, 1, 2]
                ties = [tie]
        columns += ties
        part = self.node("part", random.choice(["string", "bigint", "date", "boolean"]))
        op = self.node("op", "string", "op")
        self.pools[op.number] = ["D", "U", "U", "U", None]
        n = self.node("n", "bigint")
        self.pools[n.number] = [*range(4), None]
        columns += [part, op, n]
        computed = self._generated_column(op, n)
        columns += computed
        self.partition = random.choice([None, part, keys[0], *computed, *computed])
        if self.partition is part or self.partition in computed:
            self.partition.role = "part"
        others = [
            self.node("f", "float"),
            self.node("x", "double"),
            self.node("price", "decimal(5,2)"),
            self.node("small", "smallint"),
            self.node("text", "string"),
            self.node("flag", "boolean"),
            self.node("pair", "struct", parts=[self.node("a", "int"), self.node("b", "string")]),
            self.node("l", "list", parts=[self.node("p", "smallint"), self.node("q", "string")]),
        ]
        if self.file_format == "parquet":
            others.append(self.node("born", "date"))
        columns += random.sample(others, random.randint(1, 4))
        self.roles = Roles(
            keys=tuple(key.number for key in keys),
            delta=None if delta is None else delta.number,
            ties=tuple(tie.number for tie in ties),
        )
        self.op = op.number
        return columns

    def _generated_column(self, op: Node, n: Node) -> list[Node]:
        """Return a generated column, or none."""
        if self.random.random() < 0.4:
            return []

        def n_or_zero(sides: Any) -> int:
            value = sides[TARGET].get(n.number)
            return 0 if value is None else value

        def op_or_none(sides: Any) -> str:
            value = sides[TARGET].get(op.number)
            return "none" if value is None else value

        def is_large(sides: Any) -> bool | None:
            value = sides[TARGET].get(n.number)
            return None if value is None else value > 1

        kind, read, formula = self.random.choice(
            [
                ("bigint", n, Formula("coalesce(n, 0)", n_or_zero)),
                ("string", op, Formula("coalesce(op, 'none')", op_or_none)),
                ("boolean", n, Formula("n > 1", is_large)),
            ]
        )
        column = self.node("made", kind)
        self.generated[column.number] = formula
        self.generating.add(read.number)
        return [column]

    def _deletes(self, columns: Sequence[Node]) -> str | None:
        if self.random.random() < 0.7:
            return "op = 'D'"
        return None

    def _create(self, columns: Sequence[Node]) -> Table[Any]:
        random = self.random
        schema = pa.schema([(node.name, node.arrow()) for node in columns])
        names = {node.number: node.name for node in columns}
        layout = TableLayout(
            keys=[names[number] for number in self.roles.keys],
            delta=COMMIT if self.roles.delta is None else names[self.roles.delta],
            tie_break=[names[number] for number in self.roles.ties],
            deletes=self.deletes,
            partition_by=[] if self.partition is None else [self.partition.name],
            file_format=self.file_format,
            generated=named_generated(columns, self.generated),
            properties={
                "segment_rows": random.randrange(1, 6),
                "group_rows": random.randrange(1, 12),
                "checkpoint_commits": random.randrange(1, 6),
                "key_store_fan_in": random.randrange(2, 5),
                "token_keep": 10_000,
            },
        )
        return self.engine.create(plan_spec(schema, layout), self.clock)

    # State

    @property
    def version(self) -> int:
        return max(self.states)

    @property
    def now(self) -> State:
        return self.states[self.version]

    def node_of(self, number: int) -> Node:
        return next(node for node in self.now.columns if node.number == number)

    def record(self, operation: str, state: State, versions: Iterable[int]) -> None:
        for version in versions:
            self.states[version] = state
            self.operations[version] = operation
            self.times[version] = self.table.log.read_commit(version).timestamp_us

    def new_versions(self) -> range:
        return range(self.version + 1, self.table.log.head().version + 1)

    def token(self) -> str | None:
        """Return a token for the job that runs next, or None."""
        self.jobs += 1
        self.job_token = f"job {self.jobs}" if self.random.random() < 0.6 else None
        return self.job_token

    def remember(self, operation: str, call: Callable[[], JobResult], result: JobResult) -> None:
        if result.token is not None:
            has_commit = self.operations[self.version] == operation
            self.applied.append(
                Applied(
                    operation=operation,
                    call=call,
                    version=result.version,
                    has_commit=has_commit and result.version == self.version,
                )
            )

    def forget_results(self) -> None:
        """Forget jobs without a commit, whose results a retention deletes."""
        self.applied = [job for job in self.applied if job.has_commit]

    def _forget_discarded(self, discarded: Sequence[int]) -> None:
        """Forget ingests whose rows were discarded: a repeat of them is refused."""

        def is_discarded(job: Applied) -> bool:
            if job.operation != "ingest" or not job.has_commit or job.version is None:
                return False
            before = self.states[job.version - 1].rows
            new = self.states[job.version].rows.keys() - before.keys()
            return not new.isdisjoint(discarded)

        self.applied = [job for job in self.applied if not is_discarded(job)]

    def expect_refusal(self, call: Callable[[], Any], reason: object) -> None:
        """Expect that a job fails, and that it leaves the newest version as it is."""
        self.steps.append(f"refused: {reason}")
        try:
            result = call()
        except InvalidInputError as error:
            self.steps.append(f"  {error}")
            return
        raise AssertionError(f"not refused, though {reason}: {result}")

    # Rows

    def value(self, node: Node) -> Any:
        if node.number in self.pools:
            return self.random.choice(self.pools[node.number])
        if self.random.random() < 0.2:
            return None
        if node.type == "struct":
            return {part.number: self.value(part) for part in node.parts}
        if node.type == "list":
            members = [{part.number: self.value(part) for part in node.parts}, None]
            return members[: self.random.randint(0, 2)]
        return self.random.choice(POOLS[node.type])

    def rows(self, nodes: Sequence[Node], *, are_distinct: bool) -> list[dict[int, Any]]:
        """Return rows of some columns.

        With `are_distinct`, no two have the same place in the order of a key.
        """
        rows: list[dict[int, Any]] = []
        seen: set[Any] = set()
        for _ in range(self.random.randint(1, MAX_ROWS)):
            row = {node.number: self.value(node) for node in nodes}
            if are_distinct and self.order_place(row) in seen:
                continue
            seen.add(self.order_place(row))
            rows.append(self.with_computed(row))
        return rows

    def order_place(self, row: Mapping[int, Any]) -> tuple[Any, ...]:
        """Return the place of a row in the order of its key, but for its number."""
        order = [row.get(number) for number in (*self.roles.keys, *self.roles.ties)]
        if self.roles.delta is not None:
            order.append(row[self.roles.delta])
        return tuple(order)

    def with_computed(self, row: dict[int, Any]) -> dict[int, Any]:
        """Return a row whose generated columns are mostly null or right."""
        given = {number: row[number] for number in row if number not in self.generated}
        right = new_row(self.now, given)
        for number in self.generated.keys() & row.keys():
            roll = self.random.random()
            if roll < 0.5:
                row[number] = None
            elif roll < 0.9:
                row[number] = right[number]
        return row

    def frame(self, nodes: Sequence[Node], rows: Sequence[Mapping[int, Any]]) -> Any:
        schema = pa.schema([(node.name, node.arrow()) for node in nodes])
        named = [shown_values(row, nodes) for row in rows]
        return self.engine.frame(pa.Table.from_pylist(named, schema))

    def source_columns(self, may_lack: Callable[[Node], bool], chance: float) -> list[Node]:
        """Return the table's columns in another order, and leave out some that may be absent."""
        nodes = list(self.now.columns)
        self.random.shuffle(nodes)
        return [node for node in nodes if not may_lack(node) or self.random.random() >= chance]

    def is_optional(self, node: Node) -> bool:
        """Return whether a source may lack a column."""
        is_filled = node.write is not None or node.number in self.generated
        return node.role not in ("key", "delta") and (node.is_added or is_filled)

    def is_optional_plain(self, node: Node) -> bool:
        """Return whether a source may lack a column that has no role."""
        return node.role in ("", "part") and self.is_optional(node)

    # Ingests

    def ingest(self) -> None:
        is_inline = self.orders_by_commit or self.random.random() < 0.6
        nodes = self.source_columns(self.is_optional, 0.3)
        rows = self.rows(nodes, are_distinct=True)
        key = self.random.choice(PARTITION_KEYS)
        self._run_ingest(nodes, rows, key, is_inline=is_inline, replaces=False)

    def replace(self) -> None:
        """Ingest all rows of a partition key: some of those that it has, and others."""
        is_inline = self.orders_by_commit or self.random.random() < 0.6
        nodes = self.source_columns(self.is_optional, 0.2)
        visible_keys = {row.partition_key for row in self.now.visible}
        known = [key for key in PARTITION_KEYS[1:] if key in visible_keys]
        key = self.random.choice(known or PARTITION_KEYS[1:])
        rows: list[dict[int, Any]] = []
        for row in self.now.visible:
            if row.partition_key == key and self.random.random() < 0.6:
                values = {node.number: row.values.get(node.number, node.initial) for node in nodes}
                rows.append(self.with_computed(values))
        if self.random.random() < 0.6:
            rows += self.rows(nodes, are_distinct=True)
        distinct = {self.order_place(row): row for row in rows}
        self._run_ingest(nodes, [*distinct.values()], key, is_inline=is_inline, replaces=True)

    def _run_ingest(
        self,
        nodes: Sequence[Node],
        rows: Sequence[Mapping[int, Any]],
        key: str | None,
        *,
        is_inline: bool,
        replaces: bool,
    ) -> None:
        """Ingest rows into the table and into the model.

        With `replaces` they replace the rows of their partition key.
        """
        frame = self.frame(nodes, rows)
        arguments: dict[str, Any] = {
            "metadata": "inline" if is_inline else "batch",
            "on_bad_rows": self.random.choice(["fail", "quarantine"]),
            "partition_key": key,
            "token": self.token(),
        }
        if replaces:
            arguments |= {"mode": "replace", "on_empty": "accept"}

        def call() -> JobResult:
            return self.table.ingest(frame, **arguments)

        names = [node.name for node in nodes]
        self.steps.append(f"  {arguments} of {names}: {rows}")
        before, number = self.now, self.next_number
        own = [self._ingested(new_row(before, row), key) for row in rows]
        bad = [row for row in own if not row.deleted and violation(before, row.values)]
        replaced_key = key if replaces else None
        self._meddle(more=("alter", "alter"))
        result, error = self._attempted(call)
        refusal = None
        if bad and arguments["on_bad_rows"] == "fail":
            refusal = f"{bad} are bad"
        if self._is_outlasted(before, own, replaced_key):
            refusal = "rows would stay invisible"
        if refusal is not None:
            assert error is not None, f"not refused, though {refusal}: {result}"
            self._note_refusal(error)
            return
        if self._is_overtaken("ingest", error, before, own, replaced_key):
            return
        assert result is not None
        discarded: list[int] = []
        ended: list[ModelRow] = []
        if replaced_key is not None:
            # A job that ran again, and found nothing to replace any more, commits nothing
            if self._has_later_number() or not self.new_versions():
                before, number = self.now, self.next_number
            ended = self._ended_by(before, own, replaced_key)
            assert ended == self._ended_by(self.now, own, replaced_key), "it has to run again"
            discarded = [
                pending_number
                for pending_number, row in self.now.rows.items()
                if row.processed is None and row.partition_key == replaced_key
            ]
            self._forget_discarded(discarded)
            self.happened["ended"] += len(ended)
            self.has_deletes = True
        has_commit = bool(own or ended or discarded) or arguments["token"] is not None
        assert len(self.new_versions()) == has_commit, result
        if not has_commit:
            return
        assert result.counts["rejected"] == len(bad), (result, bad)
        assert result.counts.get("ended", 0) == len(ended), (result, ended)
        new = [row for row in own if row not in bad]
        new += [replace(row, deleted=True, partition_key=key) for row in ended]
        self._record_ingest(new, discarded, number, is_inline=is_inline)
        self.remember("ingest", call, result)

    def _record_ingest(
        self, new: Sequence[ModelRow], discarded: Sequence[int], first: int, *, is_inline: bool
    ) -> None:
        """Record the version of an ingest; its rows get numbers from `first` on."""
        version = self.version + 1
        delta = self.job_delta(version) if self.orders_by_commit and new else None
        rows = {number: row for number, row in self.now.rows.items() if number not in discarded}
        for number, row in enumerate(new, start=first):
            rows[number] = replace(
                row,
                row_id=(number, 0),
                processed=version if is_inline else None,
                delta=row.delta if self.roles.delta is not None else delta,
            )
        self.next_number = max(self.next_number, first + len(new))
        self.record("ingest", replace(self.now, rows=rows), [version])

    def _note_refusal(self, error: Exception) -> None:
        assert not self.new_versions(), error
        self.steps.append(f"  refused: {error}")
        self.happened["refused"] += 1

    def _has_later_number(self) -> bool:
        """Return whether a job claimed its number after the job that ran meanwhile."""
        numbers = [self.table.log.read_commit(at).number for at in self.new_versions()]
        return (
            self.ran_meanwhile and bool(numbers) and (numbers[0] or 0) > self.number_meanwhile > 0
        )

    def _is_outlasted(self, state: State, rows: Sequence[ModelRow], key: str | None) -> bool:
        """Return whether new rows of a replaced key are before its visible rows."""
        if self.orders_by_commit or key is None:
            return False
        for row in state.visible:
            places = [other.order[:-1] for other in rows if other.key == row.key]
            if row.partition_key == key and places and max(places) < row.order[:-1]:
                return True
        return False

    def _ended_by(self, state: State, rows: Sequence[ModelRow], key: str | None) -> list[ModelRow]:
        """Return the visible rows of a partition key whose keys the new rows lack."""
        keys = {row.key for row in rows}
        return [row for row in state.visible if row.partition_key == key and row.key not in keys]

    def _ingested(self, row: Mapping[int, Any], key: str | None) -> ModelRow:
        """Return a row of an ingest, without its number."""
        return ModelRow(
            key=self.roles.key(row),
            delta=None if self.roles.delta is None else row[self.roles.delta],
            ties=tuple(row[tie] for tie in self.roles.ties),
            row_id=(0, 0),
            deleted=self.deletes is not None and row[self.op] == "D",
            partition_key=key,
            values=row,
        )

    def job_delta(self, version: int) -> Any:
        """Return the time with which a job filled the delta.

        Check that no row of its keys has a later one, by the runs that the job added.
        """
        runs = self.table.log.read_commit(version).actions.add_runs
        delta = EPOCH + timedelta(microseconds=max(run.greatest_delta for run in runs))
        assert delta not in self.job_deltas
        self.job_deltas.add(delta)
        return delta

    def metagen(self) -> None:
        key = self.random.choice(["all", *PARTITION_KEYS])
        token = self.token()
        arguments = {"all": True} if key == "all" else {"partition_key": key}
        pending = [
            number
            for number, row in self.now.rows.items()
            if row.processed is None and key in ("all", row.partition_key)
        ]

        def call() -> JobResult:
            return self.table.metagen(token=token, **arguments)

        self._meddle()
        result, error = self._attempted(call)
        if self._is_overtaken("metagen", error):
            return
        assert result is not None
        pending = [
            number
            for number in pending
            if number in self.now.rows and self.now.rows[number].processed is None
        ]
        versions = self.new_versions()
        assert len(versions) == bool(pending), f"{result} for {len(pending)} pending rows"
        if pending:
            self.happened["published"] += len(pending)
            rows = processed(self.now.rows, pending, versions[0])
            self.record("metagen", replace(self.now, rows=rows), versions)
        self.remember("metagen", call, result)

    # Statements

    def where(self, sides: Mapping[str, Sequence[Node]], chance: float = 0.8) -> Formula | None:
        """Return a random condition; often one that names keys, for a single side."""
        if self.random.random() > chance:
            return None
        is_single = len(sides) == 1
        columns = columns_of(self.random, sides, may_be_short=is_single)
        if is_single and self.random.random() < 0.4:
            (side,) = sides
            keys = [node for node in sides[side] if node.number in self.roles.keys]
            named = columns_of(self.random, {side: keys}, may_be_short=True)
            made = [condition(self.random, [column], 0) for column in named]
            if self.random.random() < 0.3:
                made.append(condition(self.random, columns, 1))
            return _conjunction(made)
        return condition(self.random, columns)

    def sets(
        self, sides: Mapping[str, Sequence[Node]], *, is_insert: bool = False
    ) -> dict[int, Formula]:
        """Return expressions for some columns; for an insert also for those that need a value."""
        columns = columns_of(self.random, sides, may_be_short=len(sides) == 1)
        settable = [
            node
            for node in self.now.columns
            if (node.role not in ("key", "delta") and node.number not in self.generated)
            or self.random.random() < 0.1
        ]
        chosen = self.random.sample(settable, min(len(settable), self.random.randint(1, 3)))
        needed = (*self.roles.keys, self.roles.delta)
        if is_insert:
            chosen = [node for node in chosen if node.number not in needed]
            chosen += [node for node in self.now.columns if node.number in needed]
        elif self.random.random() < 0.4 and self.roles.delta is not None:
            chosen.append(self.node_of(self.roles.delta))
        values: dict[int, Formula] = {}
        for node in chosen:
            values[node.number] = self._set(node, columns, is_insert=is_insert)
        return values

    def _set(self, node: Node, columns: Sequence[Any], *, is_insert: bool) -> Formula:
        same = [column for column in columns if column.type == node.type]
        is_required = node.number in (*self.roles.keys, self.roles.delta)
        own = [column for column in same if column.text.split(".")[-1].strip("`") == node.name]
        if is_insert and is_required and own and self.random.random() < 0.9:
            return Formula(own[0].text, own[0].value)
        if node.number in self.pools and self.random.random() < 0.5:
            value = self.random.choice(self.pools[node.number])
            return Formula(literal(value) if isinstance(value, str) else value, lambda _: value)
        return expression(self.random, node, columns)

    def named(self, values: Mapping[int, Formula]) -> dict[str, Any]:
        """Return expressions by the names of their columns, as `update` takes them."""
        named: dict[str, Any] = {}
        for number, formula in values.items():
            name = self.node_of(number).name
            named[name.upper() if self.random.random() < 0.1 else name] = formula.text
        return named

    def run_statement(
        self,
        operation: str,
        statement: Statement,
        call: Callable[[], JobResult],
        refusal: str | None = None,
        new_column: Node | None = None,
    ) -> None:
        """Run a statement on the table and on the model, and compare counts.

        A `new_column` is added in the same commit.
        """
        before, first = self.now, self.next_number
        self._meddle(is_allowed=new_column is None)
        result, error = self._attempted(call)
        written, reason = self._rows_or_refusal(before, statement, refusal)
        if written and self._has_run_again(before, written, statement):
            self.happened["conflict"] += 1
            first = self.next_number
            written, reason = self._rows_or_refusal(self.now, statement, refusal)
        if reason is not None:
            assert error is not None, f"not refused, though {reason}: {result}"
            self.steps.append(f"  refused, since {reason}: {error}")
            self.happened["refused"] += 1
            assert not self.new_versions()
            return
        if error is not None or result is None:
            raise AssertionError(f"{operation} is refused: {error}") from error
        counts = {
            "inserted": sum(row.action == "insert" for row in written),
            "updated": sum(row.action == "update" for row in written),
            "deleted": sum(row.action == "delete" for row in written),
        }
        assert {name: result.counts[name] for name in counts} == counts, (counts, result)
        self.happened.update(counts)
        versions = self.new_versions()
        assert len(versions) == bool(written), result
        if written:
            version = versions[0]
            assert result.version == version
            rows = rows_after(
                self.now,
                written,
                self.roles,
                first=first,
                version=version,
                delta=self.job_delta(version) if self.orders_by_commit else None,
                at=statement.at,
            )
            self.next_number = max(self.next_number, first + len(written))
            deletes = [clause for clause in statement.clauses if clause.action == "delete"]
            self.has_deletes |= bool(deletes) or statement.region is not None
            added = [] if new_column is None else [new_column]
            columns = [*self.now.columns, *added]
            self.record(operation, replace(self.now, columns=columns, rows=rows), versions)
        self.remember(operation, call, result)

    def _rows_or_refusal(
        self, state: State, statement: Statement, refusal: str | None
    ) -> tuple[list[Written], str | None]:
        """Return the rows that a statement writes, or why it has to fail."""
        if refusal is not None:
            return [], refusal
        try:
            return self._rows_of(state, statement), None
        except RefusedError as error:
            return [], str(error)

    def _rows_of(self, state: State, statement: Statement) -> list[Written]:
        source = statement.source
        if source is not None and not statement.evolves:
            absent = [node for node in state.columns if node.number not in source.numbers]
            absent = [node for node in absent if node.number not in self.generated]
            for clause in statement.clauses:
                if clause.values is not None or clause.action == "delete":
                    continue
                if statement.on is None:
                    # An insert or an overwrite, whose source is like that of an ingest
                    is_filled = all(map(self.is_optional, absent))
                else:
                    has_defaults = all(node.write is not None for node in absent)
                    is_filled = clause.action == "insert" and has_defaults
                if absent and not is_filled:
                    raise RefusedError("the source lacks a column")
        written = rows_of_statement(state, statement, self.roles)
        if self.roles.delta is not None:
            check_order(state, written, self.roles, statement.at)
        return written

    def _attempted(
        self, call: Callable[[], JobResult]
    ) -> tuple[JobResult | None, Exception | None]:
        """Call a job; return its result, or the error with which it was refused."""
        try:
            if self._may_fail():
                self._fail(call)
            return call(), None
        except (InvalidInputError, ConflictError, *self.engine.errors) as error:
            return None, error
        finally:
            self._calm()

    def _may_fail(self) -> bool:
        """Return whether the store fails during a job, which then runs again under its token."""
        store = self.table.storage
        if not isinstance(store, MeddledStore) or self.is_meddling or self.job_token is None:
            return False
        is_alone = store.after_claim is None and store.before_commit is None
        return is_alone and self.random.random() < 0.25

    def _fail(self, call: Callable[[], JobResult]) -> None:
        """Run a job on a store that fails at a random call, and forget what is cached."""
        store = self.table.storage
        assert isinstance(store, MeddledStore)
        sound, mode = store.inner, self.random.choice(FAILURES)
        failing = FailingStore(sound, self.random.randint(1, MAX_CALLS), mode)
        self.steps.append(f"  fails {mode} call {failing.fail_at}")
        store.inner = failing
        try:
            call()
        except (Crash, StorageError, CommitUnknownError, ConflictError) as error:
            self.steps.append(f"  {type(error).__name__}: {error}")
            self.happened["failed"] += 1
        except InvalidInputError:
            # The next call is refused as well
            pass
        finally:
            store.inner = sound
        self.table = self.engine.reopened(self.table)

    def _is_overtaken(
        self,
        operation: str,
        error: Exception | None,
        before: State | None = None,
        rows: Sequence[ModelRow] = (),
        replaced_key: str | None = None,
    ) -> bool:
        """Return whether a job failed because of the job that ran meanwhile.

        Raise if it failed for nothing, or if it had to fail. `before` is given for an ingest: it
        fails if a column was dropped or a constraint added, and if it runs again as another job
        made its rows stay invisible.
        """
        is_defeated = self.has_restored_meanwhile
        if before is not None:
            is_defeated |= has_dropped(before, self.now) or has_constrained(before, self.now)
        if error is None:
            # A job that has nothing to commit cannot be defeated
            has_committed = bool(self.new_versions())
            assert not (is_defeated and has_committed), f"the {operation} has to be refused"
            return False
        if replaced_key is not None and self.ran_meanwhile and not is_defeated:
            is_defeated = self._is_outlasted(self.now, rows, replaced_key)
            is_expected = is_defeated and isinstance(error, InvalidInputError)
        else:
            is_expected = is_defeated and isinstance(error, ConflictError)
        if is_expected:
            assert not self.new_versions()
            self.happened["overtaken"] += 1
            return True
        raise AssertionError(f"the {operation} is refused: {error}") from error

    def _has_run_again(
        self, before: State, written: Iterable[Written], statement: Statement
    ) -> bool:
        """Return whether a statement ran again because of the job that ran meanwhile.

        It has to if that job changed visible rows of its keys, brought rows into the region that
        it replaces, changed the definition of the table, or restored a version. It may if that job
        brought only earlier rows of its keys.
        """
        if not self.ran_meanwhile:
            return False
        touched = [
            row
            for number, row in self.now.rows.items()
            if row.processed is not None
            and (number not in before.rows or before.rows[number].processed is None)
        ]
        has_to = self.changed_meanwhile
        if statement.region is not None:
            new_rows = {row.row_id for row in touched}
            own_keys = {self.roles.key(row.values) for row in written}
            visible_rows = [row for row in self.now.visible if row.row_id in new_rows]
            in_region = region_of(self.now, statement)
            has_to |= any(in_region(row) for row in visible_rows if row.key not in own_keys)
        # A first delete may add the condition for deletes to the definition
        may = has_to or self.has_deletes_meanwhile or self.may_have_changed_meanwhile
        for own in written:
            key = self.roles.key(own.values)
            orders = [row.order for row in touched if row.key == key]
            may |= bool(orders)
            last = max(
                (row.order for row in before.rows.values() if _is_known(row, key)), default=None
            )
            has_to |= any(last is None or order > last for order in orders)
        # A job that ran again has a greater number than the job that ran meanwhile
        versions = self.new_versions()
        numbers = [self.table.log.read_commit(version).number for version in versions]
        has = not versions or (numbers[0] or 0) > self.number_meanwhile
        assert has or not has_to, "it did not run again, and has to"
        assert may or not has, "it ran again without a reason"
        return has

    # Jobs that run while another one does

    def _meddle(self, *, is_allowed: bool = True, more: Sequence[str] = ()) -> None:
        """Let another job run while the next one does, now and then."""
        self.ran_meanwhile = False
        self.changed_meanwhile = False
        self.may_have_changed_meanwhile = False
        self.has_deletes_meanwhile = False
        self.has_restored_meanwhile = False
        store = self.table.storage
        if not is_allowed or self.is_meddling or not isinstance(store, MeddledStore):
            return
        if self.random.random() > 0.3:
            return
        # Rows of the job that is under way come before those of the other one
        self.next_number += RESERVED
        step = self.random.choice([*MEDDLERS, *more])
        if self.random.random() < 0.5:
            store.after_claim = lambda: self._run_meddler(step)
        else:
            store.before_commit = lambda: self._run_meddler(step)

    def _calm(self) -> None:
        store = self.table.storage
        if isinstance(store, MeddledStore) and not self.is_meddling:
            store.after_claim, store.before_commit = None, None

    def _run_meddler(self, step: str) -> None:
        self.is_meddling = True
        self.steps.append(f"meanwhile {step}")
        before, had_deletes, old = self.version, self.has_deletes, self.now
        getattr(self, step)()
        self.steps.append("then")
        self.is_meddling = False
        versions = range(before + 1, self.version + 1)
        operations = {self.operations[at] for at in versions}
        numbers = [self.table.log.read_commit(at).number for at in versions]
        self.number_meanwhile = max((number or 0 for number in numbers), default=0)
        changes = {"restore", "set_properties", "add_columns"}
        self.has_restored_meanwhile = "restore" in operations
        is_same = same_definition(old, self.now)
        self.changed_meanwhile = bool(operations & changes) or not is_same
        self.may_have_changed_meanwhile = "alter" in operations
        self.has_deletes_meanwhile = self.has_deletes > had_deletes
        self.ran_meanwhile = self.version > before
        self.happened["meanwhile"] += 1

    def update(self) -> None:
        sides = {TARGET: self.now.columns}
        where, values = self.where(sides), self.sets(sides)
        clause = Clause(when="matched", action="update", where=where, values=values)
        text, named, token = _text(where), self.named(values), self.token()
        self.steps.append(f"  set {named} where {text}")
        self.run_statement(
            "update",
            Statement(clauses=[clause]),
            lambda: self.table.update(named, where=text, token=token),
            self._refusal([clause]),
        )

    def delete(self) -> None:
        where = self.where({TARGET: self.now.columns}, 0.97)
        at = self._end()
        clause = Clause(when="matched", action="delete", where=where)
        text, token = _text(where), self.token()
        self.steps.append(f"  where {text} at {at!r}")
        self.run_statement(
            "delete",
            Statement(clauses=[clause], at=at),
            lambda: self.table.delete(where=text, at=at, token=token),
        )

    def insert(self) -> None:
        nodes = self.source_columns(self.is_optional, 0.2)
        rows = self.rows(nodes, are_distinct=False)
        frame, token = self.frame(nodes, rows), self.token()
        clause = Clause(when="not matched", action="insert")
        numbers = frozenset(node.number for node in nodes)
        self.run_statement(
            "insert",
            Statement(clauses=[clause], source=Source(rows=rows, numbers=numbers)),
            lambda: self.table.insert(frame, token=token),
        )

    def merge(self) -> None:
        evolves = self.random.random() < 0.15
        nodes = self.source_columns(self.is_optional_plain, 0.3 if evolves else 0.15)
        # A former name of a column would be refused
        extra = self.node(f"more{self.jobs}", "bigint", is_added=True)
        has_extra = self.random.random() < (0.6 if evolves else 0.1)
        if has_extra:
            nodes.insert(0, extra)
        rows = self.rows(nodes, are_distinct=self.random.random() < 0.7)
        frame, token = self.frame(nodes, rows), self.token()
        own = [node for node in nodes if node is not extra]
        on = self._on(own)
        clauses = self._clauses(own)
        latest = self.random.random() < 0.3
        numbers = {node.number for node in (nodes if evolves else own)}
        statement = Statement(
            clauses=clauses,
            source=Source(rows=rows, numbers=frozenset(numbers)),
            on=on,
            latest=latest,
            evolves=evolves,
        )
        texts = [(_text(clause.where), self._texts(clause)) for clause in clauses]
        self.steps.append(f"  on {on.text}; {latest=}, {evolves=}; {texts}; {rows}")

        def call() -> JobResult:
            duplicates = "latest" if latest else "fail"
            builder = self.table.merge(frame, on=on.text, duplicates=duplicates)
            if evolves:
                builder = builder.with_schema_evolution()
            for clause, (where, values) in zip(clauses, texts, strict=True):
                builder = _with_clause(builder, clause, where, values)
            return builder.execute(token=token)

        refusal = self._refusal(clauses)
        if latest and self.orders_by_commit:
            refusal = "the table fills the delta"
        new_column = extra if evolves and has_extra else None
        self.run_statement("merge", statement, call, refusal, new_column)

    def overwrite(self) -> None:
        """Replace all rows, those of a condition, or the partitions of the new rows."""
        nodes = self.source_columns(self._is_mostly_computed, 0.4)
        rows = self.rows(nodes, are_distinct=self.random.random() < 0.8)
        at = self._end()
        where, partitions, number = None, None, None
        region: Callable[[ModelRow], bool] = _is_any
        if self.partition is not None and self.random.random() < 0.5:
            partitions, number = "dynamic", self.partition.number
        elif self.random.random() < 0.6:
            where = self.where({TARGET: self.now.columns}, 1)
            assert where is not None
            region = partial(_meets, where=where)
        frame, token, text = self.frame(nodes, rows), self.token(), _text(where)
        self.steps.append(f"  {partitions} where {text} at {at!r} {rows}")
        source = Source(rows=rows, numbers=frozenset(node.number for node in nodes))
        statement = Statement(
            clauses=[Clause(when="not matched", action="insert")],
            source=source,
            at=at,
            region=region,
            partition=number,
            must_meet=where,
        )
        self.run_statement(
            "overwrite",
            statement,
            lambda: self.table.overwrite(
                frame, partitions=partitions, where=text, at=at, token=token
            ),
        )

    def _is_mostly_computed(self, node: Node) -> bool:
        """Return whether the new rows of an overwrite may lack a column; others only rarely."""
        is_rare = self.is_optional_plain(node) and self.random.random() < 0.05
        return node.number in self.generated or is_rare

    def drop_partition(self) -> None:
        """Delete the rows of a partition."""
        if self.partition is None:
            return
        node = self.node_of(self.partition.number)
        value, token = self.value(node), self.token()
        self.steps.append(f"  {node.name} = {value!r}")
        statement = Statement(
            clauses=[Clause(when="matched", action="delete")],
            region=partial(_has_value, number=node.number, values=[value]),
        )
        self.run_statement(
            "drop_partition",
            statement,
            lambda: self.table.drop_partition({node.name: value}, token=token),
        )

    def _end(self) -> Any:
        """Return a delta for deletes, or None."""
        if self.orders_by_commit or self.random.random() > 0.4:
            return None
        assert self.roles.delta is not None
        return self.random.choice(self.pools[self.roles.delta])

    def _on(self, nodes: Sequence[Node]) -> Formula:
        """Return a condition that matches rows: on all keys, on some, or on another column."""
        random = self.random
        keys = [node for node in nodes if node.number in self.roles.keys]
        roll = random.random()
        if roll < 0.55:
            joined = keys
        elif roll < 0.7:
            joined = keys[:1]
        else:
            kinds = (*LIMITS, "string", "date", "boolean", "decimal(5,2)")
            joined = [random.choice([node for node in nodes if node.type in kinds])]
        parts = [self._equality(node) for node in joined]
        random.shuffle(parts)
        if roll > 0.4:
            sides = {TARGET: self.now.columns, SOURCE: nodes}
            columns = columns_of(random, sides, may_be_short=False)
            parts.append(condition(random, columns, 1))
        return _conjunction(parts)

    def _equality(self, node: Node) -> Formula:
        sides = [f"{side}.{spelled(self.random, node.name)}" for side in (TARGET, SOURCE)]
        self.random.shuffle(sides)

        def value(values: Any) -> bool | None:
            left, right = (values[side].get(node.number, node.initial) for side in (TARGET, SOURCE))
            return None if left is None or right is None else left == right

        return Formula(" = ".join(sides), value)

    def _clauses(self, nodes: Sequence[Node]) -> list[Clause]:
        clauses: list[Clause] = []
        for _ in range(self.random.randint(1, 4)):
            when, action = self.random.choice(
                [
                    ("matched", "update"),
                    ("matched", "update"),
                    ("matched", "delete"),
                    ("not matched", "insert"),
                    ("not matched", "insert"),
                    ("not matched by source", "update"),
                    ("not matched by source", "delete"),
                ]
            )
            sides: dict[str, Sequence[Node]] = {}
            if when != "not matched":
                sides[TARGET] = self.now.columns
            if when != "not matched by source":
                sides[SOURCE] = nodes
            values = None
            is_all = when != "not matched by source" and self.random.random() < 0.5
            if action != "delete" and not is_all:
                values = self.sets(sides, is_insert=action == "insert")
            where = self.where(sides, 0.6)
            clauses.append(Clause(when=when, action=action, where=where, values=values))
        return clauses

    def _texts(self, clause: Clause) -> dict[str, Any] | None:
        return None if clause.values is None else self.named(clause.values)

    def _refusal(self, clauses: Sequence[Clause]) -> str | None:
        for clause in clauses:
            if clause.action == "update" and {*(clause.values or ())} & {*self.roles.keys}:
                return "an update sets a key"
        return None

    # Other jobs

    def maintain(
        self, operation: str, call: Callable[[], JobResult], token: str | None = None
    ) -> None:
        """Run a job that changes no row; it may commit several versions."""
        self.job_token = token
        result, error = self._attempted(call)
        assert result is not None, error
        self.record(operation, self.now, self.new_versions())

    def compact(self) -> None:
        token = self.token()
        if self.engine.is_spark or self.random.random() < 0.5:
            self.maintain("compact", lambda: self.table.compact(token=token), token)
        else:
            self.maintain("compact", lambda: compact(self.table, target_bytes=12_000))

    def major(self) -> None:
        kind = "timestamp" if self.roles.delta is None else self.node_of(self.roles.delta).type
        look_back: Any = self.random.choice(LOOK_BACKS.get(kind, ["1d", "100d"]))
        if kind.startswith("decimal"):
            look_back = 1
        self.maintain("compact", lambda: self.table.compact(mode="major", look_back=look_back))

    def cluster(self) -> None:
        names = [node.name for node in self.now.columns if not node.parts]
        names = self.random.sample(names, min(len(names), self.random.randint(1, 3)))
        whole = self.random.random() < 0.5
        self.maintain("zorder", lambda: self.table.zorder(names, whole=whole))

    def rebuild(self) -> None:
        self.maintain("rebuild_key_store", self.table.rebuild_key_store)

    def retain(self) -> None:
        self.clock.at_us += self.random.choice([0, DAY_US, 3 * DAY_US])
        window = self.random.choice(["1h", "2d", "30d"])
        self.maintain("retain", lambda: self.table.retain(window=window, grace="1h"))
        self.forget_results()

    def savepoint(self) -> None:
        name = f"s{self.random.randrange(3)}"
        if name in self.savepoints:
            self.maintain("release", lambda: self.table.release(name))
            del self.savepoints[name]
        else:
            self.savepoints[name] = self.version
            self.maintain("savepoint", lambda: self.table.savepoint(name))

    def reopen(self) -> None:
        self.table = self.engine.reopened(self.table)

    def properties(self) -> None:
        properties = {"segment_rows": self.random.randrange(1, 6)}
        self.maintain("set_properties", lambda: self.table.set_properties(properties))

    def restore(self) -> None:
        chosen, version = self._moment_to_restore()
        token, state = self.token(), self.states[version]
        self.steps.append(f"  {chosen} is version {version}")

        def call() -> JobResult:
            return self.table.restore(**chosen, token=token)

        restored = replace(
            state,
            columns=self.now.columns,
            checks=self.now.checks,
            not_null=self.now.not_null,
        )
        reason = violating(restored)
        result, error = self._attempted(call)
        if result is None:
            if reason is None or not isinstance(error, InvalidInputError):
                raise AssertionError(f"the restore is refused: {error}") from error
            self._note_refusal(error)
            return
        versions = self.new_versions()
        if result.version is None:
            assert [row.row_id for row in state.visible] == [row.row_id for row in self.now.visible]
            return
        assert reason is None, f"not refused, though {reason}"
        self.record("restore", restored, versions)
        self.remember("restore", call, result)

    def _moment_to_restore(self) -> tuple[dict[str, Any], int]:
        """Return a version to restore as an argument names it: by number, savepoint or time."""
        version = self.random.choice(self.readable())
        roll = self.random.random()
        if roll < 0.3 and self.savepoints:
            name = self.random.choice([*self.savepoints])
            return {"savepoint": name}, self.savepoints[name]
        is_in_window = version >= self.table.log.head().root.oldest_version
        if roll < 0.6 and is_in_window:
            return {"timestamp": self.moment_of(version)}, version
        return {"version": version}, version

    def moment_of(self, version: int) -> datetime:
        """Return a commit time at which a version was the newest one."""
        last = self.times.get(version + 1, self.times[version] + 2) - 1
        at = self.random.choice([self.times[version], last])
        return EPOCH + timedelta(microseconds=at)

    def readable(self) -> list[int]:
        root = self.table.log.head().root
        return [version for version in self.states if is_readable(root, version)]

    def erase(self) -> None:
        """Erase keys; by a condition on keys, since a compaction may have dropped old rows."""
        keys = [node for node in self.now.columns if node.number in self.roles.keys]
        named = columns_of(self.random, {TARGET: keys}, may_be_short=True)
        named = [replace(column, text=column.text.removeprefix(f"{TARGET}.")) for column in named]
        where = condition(self.random, named, 1)
        token, rows = self.token(), self.now.rows
        erased = {row.key for row in rows.values() if where.value({TARGET: row.values}) is True}
        is_pending = any(row.key in erased and row.processed is None for row in rows.values())
        self.steps.append(f"  erase {where.text}")

        def call() -> JobResult:
            return self.table.erase(where.text, token=token, grace="0s")

        if erased and (self.savepoints or is_pending):
            self.expect_refusal(call, "a savepoint or a pending row holds the keys")
            return
        result, error = self._attempted(call)
        # Rows that were discarded, or that a restore took away, may be in files of older versions
        may_be_older = any(
            where.value({TARGET: row.values}) is True
            for state in self.states.values()
            for row in state.rows.values()
        )
        if error is not None and not erased and may_be_older and self.savepoints:
            self._note_refusal(error)
            return
        assert result is not None, error
        left = {number: row for number, row in rows.items() if row.key not in erased}
        versions = self.new_versions()
        has_commit = result.version in versions
        assert has_commit == bool(erased) or (has_commit and may_be_older), result
        own = versions[:1] if has_commit else versions[:0]
        self.record("erase", replace(self.now, rows=left), own)
        # The second commit makes that of an erasure the oldest one
        self.record("retain", self.now, versions[len(own) :])
        self.forget_results()

    def alter(self) -> None:
        self._alter(ALTERATIONS)

    def evolve(self) -> None:
        self._alter(EVOLUTION)

    def _alter(self, kinds: Sequence[str]) -> None:
        before = self.now
        draft = self.drawn(before, deepcopy(list(before.columns)), kinds, 3)
        if not draft.changes:
            return
        changes = draft.changes
        self.steps.append(f"  {changes}")
        token = self.token()

        def call() -> JobResult:
            return self.table.alter(changes, token=token)

        after = draft.of(before)
        reason = violating(after)
        if reason is not None:
            self.expect_refusal(call, reason)
            self.happened["refused"] += 1
            return
        result, error = self._attempted(call)
        assert result is not None, error
        self.happened.update(next(iter(change)) for change in changes)
        self.record("alter", after, self.new_versions())
        self.remember("alter", call, result)

    def misfit(self) -> None:
        """Ask for changes that do not fit the table."""
        change = self.random.choice([*self.misfits(self.now)])
        self.expect_refusal(lambda: self.table.alter([change]), f"{change} does not fit")

    def add_column(self) -> None:
        """Add a column, so that a source of a job that is under way may lack it."""
        name = f"new{self.jobs}{self.version}"
        self.maintain("add_columns", lambda: self.table.add_columns({name: "bigint"}))
        column = self.node(name, "bigint", is_added=True)
        columns = [*self.now.columns, column]
        self.states[self.version] = replace(self.now, columns=columns)

    def repeat(self) -> None:
        """Run a job again under its token, which changes nothing."""
        if not self.applied:
            return
        job = self.random.choice(self.applied)
        self.steps.append(f"  {job.operation} of version {job.version}")
        try:
            result = job.call()
        except (InvalidInputError, NotFoundError) as error:
            raise AssertionError(f"a repeat of {job} is refused: {error}") from error
        assert result.repeated, (job, result)
        assert result.version == job.version
        assert not self.new_versions()


def _is_any(_: ModelRow) -> bool:
    return True


def _has_value(row: ModelRow, *, number: int, values: Sequence[Any]) -> bool:
    return row.values.get(number) in values


def _meets(row: ModelRow, *, where: Formula) -> bool:
    return where.value({TARGET: row.values}) is True


def _is_known(row: ModelRow, key: tuple[Any, ...]) -> bool:
    return row.processed is not None and row.key == key


def _conjunction(parts: Sequence[Formula]) -> Formula:
    def value(sides: Any) -> bool | None:
        values = [part.value(sides) for part in parts]
        if False in values:
            return False
        return None if None in values else True

    texts = [part.text for part in parts]
    if len(texts) > 1:
        texts = [f"({text})" if " OR " in text or "NOT" in text else text for text in texts]
    return Formula(" AND ".join(texts), value)


def _text(where: Formula | None) -> str | None:
    return None if where is None else where.text


def _with_clause(builder: Any, clause: Clause, where: str | None, values: Any) -> Any:
    match clause.when, clause.action:
        case "matched", "delete":
            return builder.when_matched_delete(where=where)
        case "matched", "update" if values is None:
            return builder.when_matched_update_all(where=where)
        case "matched", "update":
            return builder.when_matched_update(values, where=where)
        case "not matched", "insert" if values is None:
            return builder.when_not_matched_insert_all(where=where)
        case "not matched", "insert":
            return builder.when_not_matched_insert(values, where=where)
        case "not matched by source", "delete":
            return builder.when_not_matched_by_source_delete(where=where)
    return builder.when_not_matched_by_source_update(values, where=where)
