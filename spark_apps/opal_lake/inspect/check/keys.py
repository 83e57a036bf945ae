"""The runs of the key store against their own metadata (I19)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from opal_lake.arrays import IndexArray
from opal_lake.data.segment import RunFile
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.key_store.entries import (
    VERSION_COLUMNS,
    Entries,
    concat_entries,
    same_as_next,
)
from opal_lake.key_store.filter import may_hold
from opal_lake.key_store.run import MEND, Reader, RunIndex, open_index, read_blocks, read_filter


@dataclass(slots=True, kw_only=True)
class RunCheck:
    """The check of a run, block by block; `finish` reports its faults."""

    run: RunFile
    read: Reader
    keys: KeyRange
    index: RunIndex = field(init=False)
    seen: int = 0
    _in_order: bool = True
    _repeated: int = 0
    _has_right_fences: bool = True
    _is_in_filter: bool = True
    _bounds: list[int] = field(default_factory=list)
    _deltas: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = open_index(self.read, self.run.path)

    def entries(self) -> Iterator[Entries]:
        """Yield the entries of the keys that are checked."""
        key_filter = read_filter(self.index, self.read)
        for low, high in self.keys.spans():
            blocks: IndexArray | range = range(len(self.index.directory))
            if not self.keys.is_all:
                blocks = self.index.blocks_between(low, high)
            last: list[Entries] = []
            read = read_blocks(self.index, self.read, blocks)
            for block, entries in zip(blocks, read, strict=True):
                self._check_block(block, entries, key_filter, last)
                last = [entries.take(slice(len(entries) - 1, None))]
                inside = (entries.high >= np.uint64(low)) & (entries.high <= np.uint64(high))
                yield entries if inside.all() else entries.take(inside)

    def _check_block(
        self, block: int, entries: Entries, key_filter: bytes, last: list[Entries]
    ) -> None:
        """Check a block and its order after `last`, the last entry before it."""
        self.seen += len(entries)
        if not len(entries):
            return
        joined = concat_entries([*last, entries])
        self._in_order &= _is_ascending(joined)
        self._repeated += int(same_as_next(joined, VERSION_COLUMNS).sum())
        self._has_right_fences &= bool(self.index.fences[block] == entries.high[0])
        if key_filter:
            self._is_in_filter &= bool(may_hold(key_filter, entries.high, entries.low).all())
        self._bounds += [int(entries.high[0]), int(entries.high[-1])]
        self._deltas += [int(entries.delta.max())]

    def finish(self, ties: int, findings: Findings) -> bool:
        """Report all faults; return whether the entries may be compared with rows."""
        run = self.run
        self._check_deltas(findings)
        if self.keys.is_all:
            self._check_whole(findings)
        else:
            message = (
                f"it says that it holds {self.index.count} entries, its commit says {run.entries}; "
                f"{MEND}"
            )
            findings.expect(self.index.count == run.entries, "I19", run.path, message)
            self._check_order(findings)
        message = f"its directory does not hold the first hash of each block; {MEND}"
        findings.expect(self._has_right_fences, "I19", run.path, message)
        message = f"its filter denies keys that it holds; {MEND}"
        findings.expect(self._is_in_filter, "I19", run.path, message)
        actual_ties = 2 * self.index.ties
        message = f"it has {actual_ties} columns of ties, the table has {ties}"
        return findings.expect(actual_ties == ties, "I19", run.path, message)

    def _check_whole(self, findings: Findings) -> None:
        run = self.run
        message = f"it holds {self.seen} entries, its commit says {run.entries}; {MEND}"
        is_whole = self.seen == run.entries and run.entries > 0
        if not findings.expect(is_whole, "I19", run.path, message):
            return
        self._check_order(findings)
        bounds = self._bounds[0], self._bounds[-1]
        recorded = run.hash_low, run.hash_high
        message = (
            f"its hashes lie in {bounds}, its commit says {recorded}; restore the log from a backup"
        )
        findings.expect(bounds == recorded, "I19", run.path, message)

    def _check_deltas(self, findings: Findings) -> None:
        recorded, seen = self.run.greatest_delta, max(self._deltas, default=None)
        if seen is None:
            return
        # A sample may lack the greatest one
        is_right = seen == recorded if self.keys.is_all else seen <= recorded
        message = (
            f"its greatest delta is {seen}, its commit says {recorded}; restore the log from a "
            "backup"
        )
        findings.expect(is_right, "I19", self.run.path, message)

    def _check_order(self, findings: Findings) -> None:
        message = f"its entries are not in order; {MEND}"
        findings.expect(self._in_order, "I19", self.run.path, message)
        message = (
            f"{self._repeated} entries have the key and delta of another; only the greatest may be "
            "there"
        )
        findings.expect(not self._repeated, "I19", self.run.path, message)


def _is_ascending(entries: Entries) -> bool:
    """Return whether each entry is after the one before it, by all order columns."""
    follows = np.ones(max(len(entries) - 1, 0), np.bool_)
    for column in reversed(entries.order_columns):
        follows = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & follows)
    return bool(follows.all())
