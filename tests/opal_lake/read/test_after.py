"""Reads after a version: each new row once, across rewrites and restores."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.errors import NotFoundError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, rows

Step = tuple[str, int]
KEYS = ("ax", "bow", "cup")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ingest", "inline", "metagen", "major", "minor", "restore"]),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=14,
)


@dataclass(slots=True, kw_only=True)
class Came:
    """A table, with the visible and the pending ingests of each version."""

    table: Table = field(default_factory=lambda: create(MemoryStorage(), checkpoint_commits=3))
    seen: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    pending: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    at: int = 0

    def run(self, step: Step) -> None:
        verb, number = step
        before = self.table.snapshot_at().version
        seen, pending = self.seen[-1], self.pending[-1]
        if verb in ("ingest", "inline"):
            self.at += 1
            batch: list[Row] = [(KEYS[number % 3], self.at, self.at), ("all", self.at, self.at)]
            self.table.ingest(*rows(batch), metadata="inline" if verb == "inline" else "batch")
            seen, pending = (
                (seen | {self.at}, pending) if verb == "inline" else (seen, pending | {self.at})
            )
        elif verb == "metagen":
            self.table.metagen()
            seen, pending = seen | pending, frozenset()
        elif verb == "major":
            self.table.compact(mode="major", look_back=0)
        elif verb == "minor":
            self.table.compact()
        else:
            version = number % (before + 1)
            self.table.restore(version=version)
            seen, pending = self.seen[version], self.pending[version]
        for _ in range(before, self.table.snapshot_at().version):
            self.seen.append(seen)
            self.pending.append(pending)

    def check(self) -> None:
        """Return the ingests of the rows: a row's price is the number of its ingest."""
        for version in range(len(self.seen)):
            shown = content(self.table, version=version)
            for after in range(version + 1):
                came = self.seen[version] - self.seen[after]
                expected = [row for row in shown if row[2] in came]
                assert content(self.table, version=version, after=after) == expected


def test_rows_that_a_restore_brings_back_are_not_new_after_a_major_compaction() -> None:
    came = Came()
    for verb, number in [("inline", 0), ("inline", 0), ("major", 0), ("restore", 1)]:
        came.run((verb, number))
    assert content(came.table) == [("all", 1, 1), ("ax", 1, 1)]
    assert content(came.table, after=3) == []
    came.check()


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_reads_after_each_version_give_every_row_once(steps: list[Step]) -> None:
    came = Came()
    for step in steps:
        came.run(step)
    came.check()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_reads_after_each_version_give_every_row_once_in_many_histories(steps: list[Step]) -> None:
    came = Came()
    for step in steps:
        came.run(step)
    came.check()
    assert check_table(came.table) == []


def test_error_names_an_expired_commit_that_a_read_after_a_version_needs() -> None:
    came = Came()
    for verb, number in [("inline", 0), ("inline", 0), ("major", 0), ("restore", 1)]:
        came.run((verb, number))
    came.table.storage.delete([layout.commit_path(2)])
    with pytest.raises(
        NotFoundError, match=r"after=3 needs the commit of version 2, .* read without"
    ):
        came.table.read(after=3)
