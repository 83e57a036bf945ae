"""Logs and runs that later versions have merged: a merge loses no event or entry (I18, I21).

So the comparison of rows with logs and runs in the newest version holds for older versions, too,
which need not be compared as a whole. Each log and run is read once, and checked with the merge
that removed it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from opal_lake import layout
from opal_lake.data.segment import LogFile, RunFile
from opal_lake.errors import count_text
from opal_lake.events.segment_log import Events, concat_events, least_events
from opal_lake.inspect.check.content.in_process import (
    BASE_BYTES,
    Content,
    KnownContent,
    read_run,
)
from opal_lake.inspect.check.files import is_found
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    down_to,
    greatest_of_equal,
    same_as_next,
    sort_order,
    sorted_entries,
)
from opal_lake.log.commit import ERASE, Commit
from opal_lake.log.snapshot import Snapshot

_REBUILD = "rebuild_key_store"  # an operation that reads no run, as they may be damaged


@dataclass(slots=True, kw_only=True)
class MergeCheck:
    """The check of merges in the commits after a state, one by one.

    `left_out` counts the merges that do not fit in memory.
    """

    content: Content
    known: KnownContent
    logs: dict[str, LogFile] = field(default_factory=dict)
    runs: dict[str, RunFile] = field(default_factory=dict)
    floor: int | None = None
    left_out: int = 0

    def begin(self, state: Snapshot) -> None:
        """Begin with the logs and runs of a state."""
        self.logs, self.runs = dict(state.logs), dict(state.runs)
        self.floor = state.root.floor

    def add(self, commit: Commit) -> None:
        """Compare what a commit removes with what it adds."""
        actions = commit.actions
        floor = self.floor if actions.floor is None else actions.floor
        removed_logs = [self.logs.pop(path) for path in actions.remove_logs if path in self.logs]
        removed_runs = [self.runs.pop(path) for path in actions.remove_runs if path in self.runs]
        if removed_logs:
            events = [log.events for log in (*removed_logs, *actions.add_logs)]
            if self._fits(events):
                self._compare_logs(commit, removed_logs)
        if removed_runs and commit.operation not in (_REBUILD, ERASE):
            entries = [run.entries for run in (*removed_runs, *actions.add_runs)]
            if self._fits(entries):
                self._compare_runs(commit, removed_runs, floor)
        self.floor = floor
        self.logs |= {log.path: log for log in actions.add_logs}
        self.runs |= {run.path: run for run in actions.add_runs}

    def _fits(self, rows: Iterable[int]) -> bool:
        """Return whether numbers of rows fit in memory; if not, count a merge as left out."""
        available = max(0, self.content.memory - BASE_BYTES)
        does_fit = sum(rows) * self.content.tuning.slot_bytes <= available
        if not does_fit:
            self.left_out += 1
        return does_fit

    def _compare_logs(self, commit: Commit, removed: Sequence[LogFile]) -> None:
        before = self._least_events(removed)
        after = self._least_events(commit.actions.add_logs)
        if before is None or after is None:
            return  # reported already
        missing, strange = _only_in(before, after), _only_in(after, before)
        if commit.actions.forgotten:
            missing = 0  # events of dropped rows are forgotten
        paths = ", ".join(log.path for log in removed)
        message = (
            f"it merges {paths}: {missing} of their events are not in its merged logs, and "
            f"{strange} events of the merged logs are in none of them. So versions before "
            f"{commit.version} show other rows; restore the files from a backup"
        )
        is_same = not missing and not strange
        self.content.findings.expect(is_same, "I18", layout.commit_path(commit.version), message)

    def _least_events(self, logs: Iterable[LogFile]) -> Events | None:
        """Return the least event of each row in some logs, None if a log cannot be read."""
        parts: list[Events] = []
        for log in logs:
            if not is_found(log, self.content.sizes):
                return None
            log_parts = self.content.events.of(log)
            if log_parts is None:
                return None
            parts += map(without_next, log_parts)
        return least_events(concat_events(parts))

    def _compare_runs(self, commit: Commit, removed: Sequence[RunFile], floor: int | None) -> None:
        """Report I21 if a merge lost an entry that must stay."""
        before, after = self._entries(removed), self._entries(commit.actions.add_runs)
        if before is None or after is None:
            return  # reported already
        both = greatest_of_equal(sorted_entries(concat_entries([before, after])))
        # I21: up to the floor, only each key's latest entry must stay
        required = down_to(floor, both)
        missing = len(required) - _count_in(required, after)
        paths = ", ".join(run.path for run in removed)
        message = (
            f"it merges {paths}: {missing} of their entries are not in its merged runs. Either "
            "these entries have no row, or the merge lost them; restore the files from a backup"
        )
        self.content.findings.expect(
            not missing, "I21", layout.commit_path(commit.version), message
        )

    def _entries(self, runs: Iterable[RunFile]) -> Entries | None:
        """Return all entries of some runs, None if one cannot be read."""
        content = self.content
        parts: list[Entries] = []
        ties = 2 * len(content.state.spec.tie_break)
        for run in runs:
            if not is_found(run, content.sizes):
                return None
            read = read_run(content.state.storage, run, content.keys, ties, content.findings)
            is_whole = False
            for entries in self.known.entries(run, read):
                if entries is None:
                    is_whole = True
                else:
                    parts.append(entries)
            if not is_whole:
                return None
        return concat_entries(parts) if parts else None

    def notes(self) -> Iterator[str]:
        """Yield a note on the merges that were left out."""
        if self.left_out:
            yield (
                f"{count_text(self.left_out, 'merge')} of logs or runs that need more than the "
                "memory given"
            )


def without_next(events: Events) -> Events:
    """Return the events without their next rows, which merged logs do not name."""
    return Events(segment=events.segment, offset=events.offset, until=events.until)


def _only_in(events: Events, others: Events) -> int:
    """Count the events that `others` lacks.

    Both sides have at most one event for each row. So in sorted order, two equal neighbours are an
    event that both sides have.
    """
    columns = [
        np.concatenate([events.segment, others.segment]),
        np.concatenate([events.offset, others.offset]),
        np.concatenate([events.until, others.until]),
    ]
    order = np.lexsort(columns[::-1])
    is_same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        ordered = column[order]
        is_same &= ordered[1:] == ordered[:-1]
    return len(events) - int(is_same.sum())


def _count_in(required: Entries, entries: Entries) -> int:
    """Count the required entries that are among others."""
    both = concat_entries([required, greatest_of_equal(sorted_entries(entries))])
    ordered = both.take(sort_order(both))
    return int(same_as_next(ordered, len(both.order_columns)).sum())
