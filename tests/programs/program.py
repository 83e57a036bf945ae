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
from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError
from opal_lake.log.version_window import is_readable
from opal_lake.result import JobResult
from opal_lake.table import Table
from tests.kit.model import ModelRow
from tests.opal_lake.compacting import compact
from tests.opal_lake.write.changed_tables import WIDER, ColumnChanges, Node
from tests.programs.engines import Arrow, Engine, MeddledStore
from tests.programs.formulas import (
    LIMITS,
    POOLS,
    Formula,
    RefusedError,
    columns_of,
    condition,
    expression,
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
    processed,
    rows_after,
    rows_of_statement,
    shown_values,
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
PARTITION_KEYS = (None, None, "2026-11-01", "2026-11-02")
# So that a row of an earlier job and a statement meet at the same delta
MAX_ROWS = 4
# Numbers that rows of a job get although another job runs meanwhile
RESERVED = 100
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
    "compact",
    "cluster",
    "restore",
    "properties",
    "add_column",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A job that was applied with a token, and can be repeated."""

    operation: str
    call: Callable[[], JobResult]
    version: int | None
    has_commit: bool


class Program(ColumnChanges):
    """One table and its model. Each step is done on both, and compared."""

    def __init__(self, seed: int, engine: Engine | None = None) -> None:
        random = Random(seed)
        ColumnChanges.__init__(self, random, random.choice(["parquet", "parquet", "orc"]))
        self.engine = engine or Arrow(
            tasks=random.choice([1, 1, 2, 3]), fold_at_logs=random.choice([1, 32])
        )
        self.steps: list[str] = []
        self.orders_by_commit = random.random() < 0.25
        self.pools: dict[int, list[Any]] = {}
        columns = self._first_columns()
        self.clock = ManualClock()
        self.deletes = self._deletes(columns)
        self.table = self._create(columns)
        self.states = {0: State(columns=columns)}
        self.operations = {0: "create"}
        self.next_number = 1
        self.jobs = 0
        self.job_deltas: set[Any] = set()
        self.happened: Counter[str] = Counter()
        self.is_meddling = False
        self.changed_meanwhile = False
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
        self.partition = random.choice([None, part, keys[0]])
        if self.partition is part:
            part.role = "part"
        op = self.node("op", "string", "op")
        self.pools[op.number] = ["D", "U", "U", "U", None]
        n = self.node("n", "bigint")
        self.pools[n.number] = [*range(4), None]
        columns += [part, op, n]
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

    def new_versions(self) -> range:
        return range(self.version + 1, self.table.log.head().version + 1)

    def token(self) -> str | None:
        self.jobs += 1
        return f"job {self.jobs}" if self.random.random() < 0.6 else None

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
            order = [row[number] for number in (*self.roles.keys, *self.roles.ties)]
            if self.roles.delta is not None:
                order.append(row[self.roles.delta])
            if are_distinct and tuple(order) in seen:
                continue
            seen.add(tuple(order))
            rows.append(row)
        return rows

    def frame(self, nodes: Sequence[Node], rows: Sequence[Mapping[int, Any]]) -> Any:
        schema = pa.schema([(node.name, node.arrow()) for node in nodes])
        named = [shown_values(row, nodes) for row in rows]
        return self.engine.frame(pa.Table.from_pylist(named, schema))

    def source_columns(self, *, lacks_added: bool) -> list[Node]:
        """Return the table's columns in another order; `lacks_added` leaves some out."""
        nodes = list(self.now.columns)
        self.random.shuffle(nodes)
        if not lacks_added:
            return nodes
        return [node for node in nodes if not node.is_added or self.random.random() < 0.7]

    # Ingests

    def ingest(self) -> None:
        is_inline = self.orders_by_commit or self.random.random() < 0.6
        nodes = self.source_columns(lacks_added=True)
        rows = self.rows(nodes, are_distinct=True)
        frame, token = self.frame(nodes, rows), self.token()
        key = self.random.choice(PARTITION_KEYS)
        metadata = "inline" if is_inline else "batch"

        def call() -> JobResult:
            return self.table.ingest(frame, metadata=metadata, token=token, partition_key=key)

        number = self.next_number
        self._meddle()
        result, error = self._attempted(call)
        if self._is_overtaken("ingest", error):
            return
        assert result is not None
        version = self.version + 1
        assert self.new_versions() == range(version, version + 1), result
        delta = self.job_delta(version) if self.orders_by_commit else None
        state_rows = dict(self.now.rows)
        for row in rows:
            model = self._ingested(row, delta, key, number)
            number += 1
            if is_inline:
                model = replace(model, processed=version)
            state_rows[model.row_id[0]] = model
        self.next_number = max(self.next_number, number)
        self.record("ingest", replace(self.now, rows=state_rows), [version])
        self.remember("ingest", call, result)

    def _ingested(
        self, row: Mapping[int, Any], delta: Any, key: str | None, number: int
    ) -> ModelRow:
        return ModelRow(
            key=self.roles.key(row),
            delta=delta if self.roles.delta is None else row[self.roles.delta],
            ties=tuple(row[tie] for tie in self.roles.ties),
            row_id=(number, 0),
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
            if node.role not in ("key", "delta") or self.random.random() < 0.1
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
            return Formula(value if not isinstance(value, str) else f"'{value}'", lambda _: value)
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
        numbers = {node.number for node in state.columns}
        source = statement.source
        if source is not None and not statement.evolves and not numbers <= source.numbers:
            for clause in statement.clauses:
                if clause.values is None and clause.action != "delete":
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
            return call(), None
        except (InvalidInputError, ConflictError, *self.engine.errors) as error:
            return None, error
        finally:
            self._calm()

    def _is_overtaken(self, operation: str, error: Exception | None) -> bool:
        """Return whether a job failed because of a restore; raise if it failed for nothing."""
        if error is None:
            return False
        if isinstance(error, ConflictError) and self.has_restored_meanwhile:
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
            has_to |= any(statement.region(row) for row in visible_rows if row.key not in own_keys)
        # A first delete may add the condition for deletes to the definition
        may = has_to or self.has_deletes_meanwhile
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

    def _meddle(self, *, is_allowed: bool = True) -> None:
        """Let another job run while the next one does, now and then."""
        self.ran_meanwhile = False
        self.changed_meanwhile = False
        self.has_deletes_meanwhile = False
        self.has_restored_meanwhile = False
        store = self.table.storage
        if not is_allowed or self.is_meddling or not isinstance(store, MeddledStore):
            return
        if self.random.random() > 0.3:
            return
        # Rows of the job that is under way come before those of the other one
        self.next_number += RESERVED
        step = self.random.choice(MEDDLERS)
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
        before, had_deletes = self.version, self.has_deletes
        getattr(self, step)()
        self.steps.append("then")
        self.is_meddling = False
        versions = range(before + 1, self.version + 1)
        operations = {self.operations[at] for at in versions}
        numbers = [self.table.log.read_commit(at).number for at in versions]
        self.number_meanwhile = max((number or 0 for number in numbers), default=0)
        changes = {"alter", "restore", "set_properties", "add_columns"}
        self.has_restored_meanwhile = "restore" in operations
        self.changed_meanwhile = bool(operations & changes)
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
        nodes = self.source_columns(lacks_added=False)
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
        nodes = self.source_columns(lacks_added=evolves)
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
        nodes = self.source_columns(lacks_added=False)
        rows = self.rows(nodes, are_distinct=self.random.random() < 0.8)
        at = self._end()
        where, partitions = None, None
        region: Callable[[ModelRow], bool] = _is_any
        refusal = None
        if self.partition is not None and self.random.random() < 0.5:
            partitions, number = "dynamic", self.partition.number
            values = [row[number] for row in rows]
            region = partial(_has_value, number=number, values=values)
        elif self.random.random() < 0.6:
            where = self.where({TARGET: self.now.columns}, 1)
            assert where is not None
            region = partial(_meets, where=where)
            if not all(where.value({TARGET: row}) is True for row in rows):
                refusal = "a new row does not meet the condition"
        frame, token, text = self.frame(nodes, rows), self.token(), _text(where)
        self.steps.append(f"  {partitions} where {text} at {at!r} {rows}")
        source = Source(rows=rows, numbers=frozenset(node.number for node in nodes))
        statement = Statement(
            clauses=[Clause(when="not matched", action="insert")],
            source=source,
            at=at,
            region=region,
        )
        self.run_statement(
            "overwrite",
            statement,
            lambda: self.table.overwrite(
                frame, partitions=partitions, where=text, at=at, token=token
            ),
            refusal,
        )

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
            left, right = (values[side].get(node.number) for side in (TARGET, SOURCE))
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

    def maintain(self, operation: str, call: Callable[[], JobResult]) -> None:
        """Run a job that changes no row; it may commit several versions."""
        call()
        self.record(operation, self.now, self.new_versions())

    def compact(self) -> None:
        token = self.token()
        if self.engine.is_spark or self.random.random() < 0.5:
            self.maintain("compact", lambda: self.table.compact(token=token))
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
        version = self.random.choice(self.readable())
        token, state = self.token(), self.states[version]

        def call() -> JobResult:
            return self.table.restore(version=version, token=token)

        result = call()
        versions = self.new_versions()
        if result.version is None:
            assert [row.row_id for row in state.visible] == [row.row_id for row in self.now.visible]
            return
        restored = replace(state, columns=self.now.columns)
        self.record("restore", restored, versions)
        self.remember("restore", call, result)

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
        result = call()
        left = {number: row for number, row in rows.items() if row.key not in erased}
        versions = self.new_versions()
        own = versions[:1] if erased else versions[:0]
        self.record("erase", replace(self.now, rows=left), own)
        # The second commit makes that of an erasure the oldest one
        self.record("retain", self.now, versions[len(own) :])
        assert bool(erased) == (result.version is not None), result
        self.forget_results()

    def alter(self) -> None:
        columns, changes = deepcopy(list(self.now.columns)), []
        for _ in range(self.random.randint(1, 3)):
            step = self.random.choice([self.add, self.rename, self.drop, self.move, self.widen])
            change = step(columns)
            if change is not None:
                changes.append(change)
        if not changes:
            return
        self.steps.append(f"  {changes}")
        token = self.token()

        def call() -> JobResult:
            return self.table.alter(changes, token=token)

        result = call()
        self.record("alter", replace(self.now, columns=columns), self.new_versions())
        self.remember("alter", call, result)

    def add_column(self) -> None:
        """Add a column, so that a source of a job that is under way may lack it."""
        name = f"new{self.jobs}{self.version}"
        self.maintain("add_columns", lambda: self.table.add_columns({name: "bigint"}))
        column = self.node(name, "bigint", is_added=True)
        columns = [*self.now.columns, column]
        self.states[self.version] = replace(self.now, columns=columns)

    def widen(self, columns: list[Node]) -> dict[str, Any] | None:
        """Widen a column, but for the types that a role or the file format forbids."""
        path, siblings = self.siblings(columns)
        nodes = [node for node in siblings if node.type in WIDER and self._may_widen(node)]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        wider = WIDER[node.type]
        node.type = wider[0] if node.role else self.random.choice(wider)
        return {"widen": f"{path}{node.name}", "type": node.type}

    def _may_widen(self, node: Node) -> bool:
        if node.role in ("delta", "tie") and node.type.startswith("decimal(9"):
            return False
        if node.type == "date":
            return not node.role and node is not self.partition and self.file_format == "parquet"
        return True

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
