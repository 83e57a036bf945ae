"""The model of a soak.

The commits say which batch became visible in which version; a few lines of numpy say what is
visible then.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from tests.soak.rows import DELETED, SCHEMA, Columns, batch_of, columns_of


@dataclass(slots=True, kw_only=True)
class Model:
    """All rows that were made visible, by the version that did it."""

    parts: list[Columns] = field(default_factory=list)
    _whole: Columns | None = None

    def add(self, rows: Columns, version: int) -> None:
        self.parts.append(rows | {"version": np.full(len(rows["sku"]), version)})
        self._whole = None

    def visible(self, version: int, event_time: int | None = None) -> Columns:
        """Return the newest row of each key by then, unless it deletes, in key order."""
        rows = self._ordered()
        known = rows["version"] <= version
        if event_time is not None:
            known &= rows["at"] <= event_time
        sku = rows["sku"][known]
        newest = np.append(sku[1:] != sku[:-1], True) if len(sku) else np.zeros(0, bool)
        newest[newest] = rows["price"][known][newest] != DELETED
        return {name: rows[name][known][newest] for name in SCHEMA.names}

    def _ordered(self) -> Columns:
        if self._whole is None:
            names = (*SCHEMA.names, "version")
            whole: Columns = {}
            for name in names:
                values_of_parts = [part[name] for part in self.parts]
                whole[name] = np.concatenate(values_of_parts or [np.zeros(0, np.int64)])
            order = np.lexsort((whole["at"], whole["sku"]))
            self.parts = [{name: values[order] for name, values in whole.items()}]
            self._whole = self.parts[0]
        return self._whole


# Returns the rows that a commit of a statement wrote, given the rows that were visible before it;
# None for a commit of another kind
StatementRows = Callable[[Commit, Columns], Columns | None]


@dataclass(slots=True, kw_only=True)
class Ledger:
    """A model that follows a log, commit by commit."""

    log: CommitLog
    statement_rows: StatementRows | None = None
    model: Model = field(default_factory=Model)
    version: int = -1
    tokens: dict[str, int] = field(default_factory=dict)
    _ingested: dict[int, tuple[str, frozenset[int]]] = field(default_factory=dict)

    def follow(self, version: int) -> list[Commit]:
        """Add the commits up to a version that were not seen before."""
        commits = [self.log.read_commit(number) for number in range(self.version + 1, version + 1)]
        for commit in commits:
            self._take(commit)
        return commits

    def _take(self, commit: Commit) -> None:
        self.version = commit.version
        actions = commit.actions
        if commit.operation == "ingest" and commit.number is not None and actions.ingested:
            assert commit.token is not None
            assert commit.token not in self.tokens, f"{commit.token} was applied twice"
            self.tokens[commit.token] = commit.version
            self._ingested[commit.number] = commit.token, _segments(actions.ingested)
        for number in {segment_part(discarded.segment.id) for discarded in actions.discarded}:
            self._ingested.pop(number)
        if self.statement_rows is not None:
            rows = self.statement_rows(commit, self.model.visible(commit.version))
            if rows is not None:
                self.model.add(rows, commit.version)
                return
        processed = actions.processed_ids
        for number in sorted({segment_part(segment) for segment in processed}):
            token, segments = self._ingested.pop(number)
            assert segments <= processed, f"version {commit.version} made a part of {token} visible"
            self.model.add(columns_of(batch_of(token)), commit.version)


def _segments(files: Iterable[object]) -> frozenset[int]:
    return frozenset(segment for file in files for segment in file.segments)  # type: ignore[attr-defined]  # they are data files


def difference(actual: Columns, expected: Columns) -> str:
    """Describe how two sets of columns differ; an empty text when they agree."""
    if all(np.array_equal(actual[name], expected[name]) for name in SCHEMA.names):
        return ""
    actual_rows, expected_rows = _tuples(actual), _tuples(expected)
    missing = sorted(expected_rows - actual_rows)
    beyond = sorted(actual_rows - expected_rows)
    return (
        f"{len(missing)} rows missing {missing[:3]}, {len(beyond)} too many {beyond[:3]}, "
        f"{len(actual['sku'])} of {len(expected['sku'])}"
    )


def _tuples(columns: Columns) -> set[tuple[int, ...]]:
    return set(zip(*(columns[name].tolist() for name in SCHEMA.names), strict=True))
