"""Processes that run jobs on one table at once, and a judge that follows the log.

A job follows from its process and its number, so that the judge knows what a commit did. The log
orders the commits. Each version has to show what its job makes of the version that the job read,
added to the version before. No other job may have changed rows of the same keys in between.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.ids import segment_part
from opal_lake.key_store.cache.near_runs import CacheSettings
from opal_lake.log.commit import Commit
from opal_lake.operations.statements import MergeBuilder
from opal_lake.result import JobResult
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on, table_on
from tests.kit.check import check_table
from tests.kit.model import ModelRow, visible
from tests.opal_lake.write.changed_tables import Node
from tests.programs.formulas import Formula, RefusedError
from tests.programs.model import (
    Clause,
    Roles,
    Source,
    State,
    Statement,
    Written,
    check_order,
    in_order,
    processed,
    rows_after,
    rows_of_statement,
    shown,
    shown_values,
)

ID, AT, N, DAY = 1, 2, 3, 4
COLUMNS = (
    Node(number=ID, name="id", type="bigint", role="key"),
    Node(number=AT, name="at", type="bigint", role="delta"),
    Node(number=N, name="n", type="bigint"),
    Node(number=DAY, name="day", type="string", role="part"),
)
SCHEMA = pa.schema([(node.name, node.arrow()) for node in COLUMNS])
ROLES = Roles(keys=(ID,), delta=AT)
KEYS = range(8)
# Rows that only increments change: each of their values is a number of increments
COUNTERS = range(100, 103)
DAYS = ("a", "b", None)
PROPERTIES = {"checkpoint_commits": 3, "key_store_fan_in": 2, "segment_rows": 3, "group_rows": 20}
FIRST = "first"
JOIN_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The address of a table, and the folder of its processes' caches and journals."""

    uri: str
    options: Mapping[str, str]
    folder: Path

    def table(self, name: str) -> Table[pa.Table]:
        cache = CacheSettings(folder=str(self.folder / f"near-{name}"))
        return table_on(open_storage(self.uri, self.options), cache=cache)

    def create(self) -> Table[pa.Table]:
        layout = TableLayout(
            keys=["id"],
            delta="at",
            deletes="false",
            partition_by=["day"],
            properties=PROPERTIES,
        )
        create_on(open_storage(self.uri, self.options), plan_spec(SCHEMA, layout))
        table = self.table("first")
        table.upsert(frame(first_rows()), token=FIRST)
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: how it runs, and what it does by the model.

    A statement has `statement`, an ingest has `rows`; other jobs change no row.
    """

    run: Callable[[Table[Any], str], JobResult]
    statement: Statement | None = None
    rows: Sequence[Mapping[int, Any]] = ()
    is_inline: bool = False
    counter: int | None = None


def first_rows() -> list[dict[int, Any]]:
    rows = [{ID: key, AT: 0, N: 0, DAY: DAYS[key % 3]} for key in KEYS]
    return rows + [{ID: key, AT: 0, N: 0, DAY: "counter"} for key in COUNTERS]


def frame(rows: Sequence[Mapping[int, Any]]) -> pa.Table:
    return pa.Table.from_pylist([shown_values(row, COLUMNS) for row in rows], SCHEMA)


def token_of(process: int, number: int) -> str:
    return f"{process}-{number}"


def job_of(seed: int, token: str) -> Job:
    """Return the job of a token."""
    random = Random(f"{seed} {token}")
    kinds = [_increment, _increment, _change_day, _merge, _merge, _delete, _insert, _upsert]
    return random.choice([*kinds, _upsert, _ingest, _metagen, _compact, _cluster, _restore])(random)


def _of(side: str, number: int) -> Callable[[Any], Any]:
    return lambda sides: sides[side][number]


def _plus(left: Callable[[Any], Any], right: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda sides: left(sides) + right(sides)


def _is_key(key: int) -> Formula:
    return Formula(f"id = {key}", lambda sides: sides["t"][ID] == key)


def _is_day(random: Random) -> Formula:
    """Return a condition on rows that are not counters."""
    day = random.choice(DAYS[:2])
    return Formula(f"day = '{day}'", lambda sides: sides["t"][DAY] == day)


def _update(where: Formula, values: Mapping[int, Formula], counter: int | None = None) -> Job:
    clause = Clause(when="matched", action="update", where=where, values=values)
    names = {node.number: node.name for node in COLUMNS}
    named = {names[number]: formula.text for number, formula in values.items()}

    def run(table: Table[Any], token: str) -> JobResult:
        return table.update(named, where=where.text, token=token)

    return Job(run=run, statement=Statement(clauses=[clause]), counter=counter)


def _increment(random: Random) -> Job:
    """Add 1 to a row; to a counter half of the time."""
    is_counter = random.random() < 0.5
    key = random.choice(COUNTERS if is_counter else KEYS)
    more = Formula("n + 1", _plus(_of("t", N), lambda _: 1))
    return _update(_is_key(key), {N: more}, key if is_counter else None)


def _change_day(random: Random) -> Job:
    """Change rows that a condition on another column selects."""
    later = Formula("at + 1", _plus(_of("t", AT), lambda _: 1))
    ten = Formula("n + 10", _plus(_of("t", N), lambda _: 10))
    values = {N: ten, AT: later} if random.random() < 0.5 else {N: ten}
    if random.random() < 0.3:
        day = random.choice(DAYS[:2])
        values[DAY] = Formula(f"'{day}'", lambda _: day)
    return _update(_is_day(random), values)


def _rows(random: Random) -> list[dict[int, Any]]:
    keys = random.sample([*KEYS], random.randint(1, 3))
    return [
        {ID: key, AT: random.randrange(20), N: random.randrange(5), DAY: random.choice(DAYS)}
        for key in keys
    ]


def _merge(random: Random) -> Job:
    rows = _rows(random)
    on = Formula("t.id = s.id", lambda sides: sides["t"][ID] == sides["s"][ID])
    is_small = Formula("s.n < 1", lambda sides: sides["s"][N] < 1)
    total = Formula("t.n + s.n", _plus(_of("t", N), _of("s", N)))
    clauses = [
        Clause(when="matched", action="delete", where=is_small),
        Clause(when="matched", action="update", values={N: total}),
        Clause(when="not matched", action="insert"),
    ]
    if random.random() < 0.3:
        zero = Formula("0", lambda _: 0)
        day = _is_day(random)
        clauses.append(
            Clause(when="not matched by source", action="update", where=day, values={N: zero})
        )
    numbers = frozenset(node.number for node in COLUMNS)
    statement = Statement(clauses=clauses, source=Source(rows=rows, numbers=numbers), on=on)

    def run(table: Table[Any], token: str) -> JobResult:
        merge: MergeBuilder = table.merge(frame(rows), on=on.text)
        merge = merge.when_matched_delete(where=is_small.text)
        merge = merge.when_matched_update({"n": total.text}).when_not_matched_insert_all()
        if len(clauses) > 3:
            where = clauses[3].where
            assert where is not None
            merge = merge.when_not_matched_by_source_update({"n": "0"}, where=where.text)
        return merge.execute(token=token)

    return Job(run=run, statement=statement)


def _delete(random: Random) -> Job:
    where = _is_key(random.choice(KEYS)) if random.random() < 0.7 else _is_day(random)
    clause = Clause(when="matched", action="delete", where=where)
    return Job(
        run=lambda table, token: table.delete(where=where.text, token=token),
        statement=Statement(clauses=[clause]),
    )


def _insert(random: Random) -> Job:
    rows = [{**row, AT: 20 + random.randrange(20)} for row in _rows(random)]
    numbers = frozenset(node.number for node in COLUMNS)
    return Job(
        run=lambda table, token: table.insert(frame(rows), token=token),
        statement=Statement(
            clauses=[Clause(when="not matched", action="insert")],
            source=Source(rows=rows, numbers=numbers),
        ),
    )


def _upsert(random: Random) -> Job:
    rows = _rows(random)
    return Job(
        run=lambda table, token: table.upsert(frame(rows), token=token), rows=rows, is_inline=True
    )


def _ingest(random: Random) -> Job:
    rows = _rows(random)
    return Job(run=lambda table, token: table.ingest(frame(rows), token=token), rows=rows)


def _metagen(_: Random) -> Job:
    return Job(run=lambda table, token: table.metagen(all=True, token=token))


def _compact(_: Random) -> Job:
    return Job(run=lambda table, token: table.compact(token=token))


def _cluster(_: Random) -> Job:
    return Job(run=lambda table, token: table.zorder(["id", "n"], token=token))


def _restore(random: Random) -> Job:
    """Rehearse a restore: a restore itself would take increments of counters back."""
    back = random.randrange(1, 4)

    def run(table: Table[Any], token: str) -> JobResult:
        version = max(1, table.snapshot_at().version - back)
        return table.restore(version=version, dry_run=True, token=token)

    return Job(run=run)


# Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a job: the newest version before it, and its result or error."""

    token: str
    began: int
    result: JobResult | None = None
    error: str = ""


def work(site: Site, seed: int, process: int, jobs: int) -> list[Outcome]:
    """Run the jobs of a process."""
    table = site.table(str(process))
    outcomes: list[Outcome] = []
    for number in range(jobs):
        token = token_of(process, number)
        began = table.snapshot_at().version
        try:
            result = job_of(seed, token).run(table, token)
        except (ConflictError, InvalidInputError) as error:
            outcome = Outcome(token=token, began=began, error=f"{type(error).__name__}: {error}")
        else:
            outcome = Outcome(token=token, began=began, result=result)
        outcomes.append(outcome)
    return outcomes


def together(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a function in as many processes at once, and return the results."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.programs.together", "opal_lake.storage.s3"])
    with context.Pool(len(arguments)) as pool:
        calls = [pool.apply_async(call, given) for given in arguments]
        return [each.get(JOIN_S) for each in calls]


# The judge


@dataclass(slots=True, kw_only=True)
class Judge:
    """Follows the log of a table, and holds each version to its job."""

    table: Table[Any]
    seed: int
    outcomes: Mapping[str, Outcome]
    states: dict[int, State] = field(default_factory=lambda: {0: State(columns=COLUMNS)})
    numbers: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    committed: Counter[str] = field(default_factory=Counter)

    def follow(self) -> None:
        """Fold all commits, and compare each version."""
        head = self.table.snapshot_at().version
        for version in range(1, head + 1):
            commit = self.table.log.read_commit(version)
            self.states[version] = self._after(commit)
            if commit.token is not None and commit.number is not None:
                self.committed[commit.token] += 1
        assert max(self.committed.values()) == 1, self.committed.most_common(3)
        for outcome in self.outcomes.values():
            self._check_outcome(outcome)
        assert check_table(self.table, all=True) == []

    def _after(self, commit: Commit) -> State:
        before = self.states[commit.version - 1]
        job = None if commit.token in (None, FIRST) else job_of(self.seed, commit.token)
        rows = first_rows() if commit.token == FIRST else []
        if job is not None and job.statement is not None:
            return self._after_statement(commit, job.statement)
        if job is not None:
            rows = list(job.rows)
        state_rows = dict(before.rows)
        is_inline = commit.token == FIRST or (job is not None and job.is_inline)
        for index, row in enumerate(rows):
            assert commit.number is not None
            row_id = (commit.number, index)
            state_rows[row_id] = ModelRow(
                key=(row[ID],),
                delta=row[AT],
                ties=(),
                row_id=row_id,
                deleted=False,
                processed=commit.version if is_inline else None,
                values=row,
            )
        numbers = {segment_part(segment) for segment in commit.actions.processed_ids}
        published = [
            row_id
            for row_id, row in state_rows.items()
            if row_id[0] in numbers and row.processed is None
        ]
        state = replace(before, rows=processed(state_rows, published, commit.version))
        difference = self._difference(state, commit.version)
        assert not difference, f"version {commit.version}, {commit.operation}: {difference}"
        return state

    def _after_statement(self, commit: Commit, statement: Statement) -> State:
        """Return the state after a statement, whichever version it has read."""
        token = commit.token or ""
        before = self.states[commit.version - 1]
        differences: list[str] = []
        for base in range(commit.version - 1, self.outcomes[token].began - 1, -1):
            try:
                written = rows_of_statement(self.states[base], statement, ROLES)
                check_order(self.states[base], written, ROLES, statement.at)
            except RefusedError:
                continue
            if not written or self._is_touched(written, base, commit.version - 1):
                continue
            state = self._with_rows(before, written, commit)
            difference = self._difference(state, commit.version)
            if not difference and _counts(written) == _counts_of(commit):
                return state
            differences.append(f"read {base}: {difference} {_counts(written)}")
        raise AssertionError(f"version {commit.version}, {token}: {differences}")

    def _is_touched(self, written: Sequence[Written], base: int, end: int) -> bool:
        """Return whether a version after the base showed another row of the same keys.

        A late row, which its key's visible row hides from the beginning, touches nothing: a
        statement gives the same rows with it and without it.
        """
        keys = {ROLES.key(row.values) for row in written}
        shown_rows = [self._shown_rows(version, keys) for version in range(base, end + 1)]
        return any(rows != shown_rows[0] for rows in shown_rows)

    def _shown_rows(self, version: int, keys: Set[Any]) -> set[Any]:
        """Return the ids of the visible rows of some keys."""
        return {row.row_id for row in self.states[version].visible if row.key in keys}

    def _with_rows(self, before: State, written: Sequence[Written], commit: Commit) -> State:
        assert commit.number is not None
        made = rows_after(State(columns=COLUMNS), written, ROLES, first=0, version=commit.version)
        rows = dict(before.rows)
        for index, row in made.items():
            row_id = (commit.number, index)
            rows[row_id] = replace(row, row_id=row_id)
        return replace(before, rows=rows)

    def _difference(self, state: State, version: int) -> str:
        """Return how a version differs from a state, now and at two event times."""
        for moment in (None, 3, 12):
            actual = in_order(self.table.read(version=version, event_time=moment).to_pylist())
            rows = visible(state.rows.values(), event_time=moment)
            expected = in_order(shown(row, COLUMNS) for row in rows)
            if actual != expected:
                surplus = sorted({*actual} - {*expected})
                missing = sorted({*expected} - {*actual})
                return f"event time {moment}: too many {surplus}, missing {missing}"
        return ""

    def _check_outcome(self, outcome: Outcome) -> None:
        """Hold a job to its answer: it committed once, or not at all."""
        if outcome.result is None:
            assert outcome.token not in self.committed, f"{outcome} failed, and is committed"
        elif outcome.result.counts.get("updated"):
            assert outcome.token in self.committed, f"{outcome} is not committed"

    def increments(self) -> tuple[int, int]:
        """Return the sum of the counters, and how many increments were successful."""
        rows = self.table.read(where=f"id >= {COUNTERS.start}").to_pylist()
        successes = [
            outcome
            for outcome in self.outcomes.values()
            if outcome.result is not None and job_of(self.seed, outcome.token).counter is not None
        ]
        return sum(row["n"] for row in rows), len(successes)


def _counts(written: Sequence[Written]) -> tuple[int, ...]:
    actions = Counter(row.action for row in written)
    return actions["insert"], actions["update"], actions["delete"]


def _counts_of(commit: Commit) -> tuple[int, ...]:
    counts = commit.result["counts"]
    return counts["inserted"], counts["updated"], counts["deleted"]


def run_together(site: Site, seed: int, processes: int, jobs: int) -> Counter[str]:
    """Run processes at once, judge the table, and count what happened."""
    table = site.create()
    arguments = [(site, seed, process, jobs) for process in range(processes)]
    outcomes: dict[str, Outcome] = {}
    for of_process in together(work, arguments):
        outcomes.update({outcome.token: outcome for outcome in of_process})
    judge = Judge(table=table, seed=seed, outcomes=outcomes)
    judge.follow()
    total, successes = judge.increments()
    assert total == successes, f"{successes - total} increments are lost"
    happened = Counter(outcome.error.partition(":")[0] for outcome in outcomes.values())
    happened["done"] = happened.pop("", 0)
    committed = [each for each in outcomes.values() if each.token in judge.committed]
    happened["overtaken"] = sum(_is_overtaken(outcome) for outcome in committed)
    happened["increments"] = successes
    return happened


def _is_overtaken(outcome: Outcome) -> bool:
    """Return whether other processes committed between the start and the commit of a job."""
    version = None if outcome.result is None else outcome.result.version
    return version is not None and version > outcome.began + 1


def update_own_rows(site: Site, process: int, processes: int, times: int) -> int:
    """Update the rows of a process, in files that have rows of all; return the conflicts."""
    table = site.table(str(process))
    conflicts = 0
    for _ in range(times):
        try:
            where = f"id % {processes} = {process}"
            table.update(set={"n": "n + 1"}, where=where, tries=1)
        except ConflictError:
            conflicts += 1
    return conflicts
