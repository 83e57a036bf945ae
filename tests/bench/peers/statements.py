"""The measures of statements: updates, deletes and merges, alone and by many writers.

Keys lie evenly over the whole table, and so do the values of the column `v1`: no file can be left
out. 1,000 keys are a list in the condition; more keys are a file that is merged.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.bench.peers.figures import Case
from tests.bench.peers.fleet import Answers
from tests.bench.peers.rows import Batch, key_texts
from tests.bench.peers.tables import BenchTable, Run, bench_table, medians, say

_MAX_LISTED = 1_000  # keys in a condition
_MERGED = 1_000  # rows of a merge into growing tables
_CONTENDED_ROWS = 1_000_000
_STATEMENTS, _KEYS = 3, 10  # of each writer, and of each statement
_KINDS = ("update", "delete")

Statement = Callable[[int], Answers]


def measure_statements(run: Run) -> None:
    """Measure updates and deletes by key and by another column, and a merge by key."""
    rows = run.options.rows
    with bench_table(run, "statements", rows) as table:
        scattered = _Scattered(run, table)
        for count in run.options.statement_rows:
            for kind in _KINDS:
                _rounds(run, Case(measure=kind, rows=rows, batch=count, view="by key"), scattered)
                by_column = Case(measure=kind, rows=rows, batch=count, view="by another column")
                _rounds(run, by_column, scattered)
        count = max(run.options.statement_rows)
        _rounds(run, Case(measure="merge", rows=rows, batch=count, view="by key"), scattered)


def measure_merge_growth(run: Run) -> None:
    """Measure a merge of 1,000 rows into growing tables; in one process, also its requests."""
    for rows in run.options.merge_rows:
        with bench_table(run, "merge-growth", rows) as table:
            case = Case(measure="merge-growth", rows=rows, batch=_MERGED)
            _rounds(run, case, _Scattered(run, table))


def measure_conflicts(run: Run) -> None:
    """Measure writers whose updates change different rows of the same files.

    A statement that fails because of another writer runs again until it commits.
    """
    rows = min(run.options.rows, _CONTENDED_ROWS)
    writers = [_conditions(rows, number) for number in range(run.options.writers)]
    with bench_table(run, "conflicts", rows) as table:
        answers = table.run.fleet.ask_all(do="contend", writers=writers)
        say(f"{len(writers)} writers, {_STATEMENTS} statements each", answers)
        for name, answer in answers.items():
            case = Case(measure="conflicts", rows=rows, columns=f"{len(writers)} writers")
            run.add(case, name, "s", [answer["seconds"]], {"repeats": answer["repeats"]})


def _conditions(rows: int, writer: int) -> list[str]:
    """Return the conditions of a writer's updates; no other writer has its keys."""
    first = writer * _STATEMENTS * _KEYS
    return [_listed(rows, first + turn * _KEYS, _KEYS) for turn in range(_STATEMENTS)]


def _listed(rows: int, first: int, count: int) -> str:
    keys = ", ".join(f"'{key}'" for key in key_texts(rows, first, count))
    return f"key IN ({keys})"


class _Scattered:
    """Statements on scattered rows of a table; no two change the same rows."""

    def __init__(self, run: Run, table: BenchTable) -> None:
        self.fleet = run.fleet
        self.table = table
        self.next_key = 0
        self.next_share = 0.0
        self.merges = 0

    def run(self, case: Case) -> Answers:
        """Run the statement of a case in all systems."""
        if case.measure in ("merge", "merge-growth"):
            return self._merge(case.batch)
        if case.view == "by another column":
            return self._by_column(case.measure, case.batch)
        return self._by_key(case.measure, case.batch)

    def _by_key(self, kind: str, count: int) -> Answers:
        first = self.next_key
        self.next_key += count
        if count > _MAX_LISTED:
            with self.table.staged_keys(first, count) as path:
                return self._changed(kind, path=str(path))
        return self._changed(kind, where=_listed(self.table.rows, first, count))

    def _by_column(self, kind: str, count: int) -> Answers:
        low = self.next_share
        self.next_share += count / self.table.rows
        return self._changed(kind, where=f"v1 >= {low!r} AND v1 < {self.next_share!r}")

    def _changed(self, kind: str, **rows: Any) -> Answers:
        answers = self.fleet.ask_all(do="change", kind=kind, **rows)
        if kind == "delete":
            # Rows by column overlap with those by key: the systems' counts are compared
            self.table.is_counted = False
        return answers

    def _merge(self, count: int) -> Answers:
        self.merges += 1
        table = self.table
        batch = Batch(
            base=table.rows,
            count=count,
            seed=self.merges,
            keys=table.keys,
            inserted=table.inserted,
        )
        with table.staged_batch(batch) as path:
            answers = self.fleet.ask_all(do="merge", path=str(path))
        table.inserted += batch.new_keys
        return answers


def _rounds(run: Run, case: Case, scattered: _Scattered) -> None:
    """Run the statement of a case round by round; the first round warms up."""
    seconds: dict[str, list[float]] = defaultdict(list)
    parts: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(run.options.rounds + 1):
        answers = scattered.run(case)
        turn = f"round {number}" if number else "warm-up"
        say(f"{case.label}, {turn}", answers)
        for name, answer in answers.items() if number else ():
            seconds[name].append(answer["seconds"])
            parts[name].append(answer["parts"])
    run.fleet.rest()
    for name, values in seconds.items():
        run.add(case, name, "s", values, medians(parts[name]))
