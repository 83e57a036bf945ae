"""The runs of the key store against what they say of themselves (I19)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from opal_lake.data.segment import RunFile
from opal_lake.inspect.check.finding import Findings
from opal_lake.inspect.check.sample import KeyRange
from opal_lake.key_store.entries import Entries, concat_entries, same_as_next
from opal_lake.key_store.filter import may_hold
from opal_lake.key_store.run import MEND, Reader, RunIndex, open_index, read_blocks, read_filter


@dataclass(slots=True, kw_only=True)
class RunCheck:
    """A run as its blocks pass by; `finish` says what is wrong with it."""

    run: RunFile
    read: Reader
    keys: KeyRange
    index: RunIndex = field(init=False)
    seen: int = 0
    _in_order: bool = True
    _twice: int = 0
    _fences: bool = True
    _not_denied: bool = True
    _bounds: list[int] = field(default_factory=list)
    _deltas: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = open_index(self.read, self.run.path)

    def entries(self) -> Iterator[Entries]:
        """Of the keys that are looked at."""
        held = read_filter(self.index, self.read)
        for low, high in self.keys.spans():
            blocks = (
                range(len(self.index.directory))
                if self.keys.is_all
                else self.index.blocks_between(low, high)
            )
            last: list[Entries] = []
            for block, entries in zip(
                blocks, read_blocks(self.index, self.read, blocks), strict=True
            ):
                self._look_at(block, entries, held, last)
                last = [entries.take(slice(len(entries) - 1, None))]
                inside = (entries.high >= np.uint64(low)) & (entries.high <= np.uint64(high))
                yield entries if inside.all() else entries.take(inside)

    def _look_at(self, block: int, entries: Entries, held: bytes, last: list[Entries]) -> None:
        self.seen += len(entries)
        if not len(entries):
            return
        joined = concat_entries([*last, entries])
        self._in_order &= _is_ascending(joined)
        self._twice += int(same_as_next(joined, 3).sum())
        self._fences &= bool(self.index.fences[block] == entries.high[0])
        self._not_denied &= not held or bool(may_hold(held, entries.high, entries.low).all())
        self._bounds += [int(entries.high[0]), int(entries.high[-1])]
        self._deltas += [int(entries.delta.max())]

    def finish(self, ties: int, findings: Findings) -> bool:
        """Whether its entries may be compared with rows."""
        run = self.run
        self._check_deltas(findings)
        if self.keys.is_all:
            self._check_whole(findings)
        else:
            message = f"it says that it holds {self.index.count} entries, its commit says {run.entries}; {MEND}"
            findings.expect(self.index.count == run.entries, "I19", run.path, message)
            self._check_order(findings)
        findings.expect(
            self._fences,
            "I19",
            run.path,
            f"its directory does not hold the first hash of each block; {MEND}",
        )
        findings.expect(
            self._not_denied, "I19", run.path, f"its filter denies keys that it holds; {MEND}"
        )
        actual_ties = 2 * self.index.ties
        return findings.expect(
            actual_ties == ties,
            "I19",
            run.path,
            f"it has {actual_ties} columns of ties, the table has {ties}",
        )

    def _check_whole(self, findings: Findings) -> None:
        run = self.run
        message = f"it holds {self.seen} entries, its commit says {run.entries}; {MEND}"
        if not findings.expect(
            self.seen == run.entries and run.entries > 0, "I19", run.path, message
        ):
            return
        self._check_order(findings)
        bounds = self._bounds[0], self._bounds[-1]
        message = f"its hashes lie in {bounds}, its commit says {run.hash_low, run.hash_high}; restore the log from a backup"
        findings.expect(bounds == (run.hash_low, run.hash_high), "I19", run.path, message)

    def _check_deltas(self, findings: Findings) -> None:
        claim, seen = self.run.greatest_delta, max(self._deltas, default=None)
        if seen is not None:
            message = f"its greatest delta is {seen}, its commit says {claim}; restore the log from a backup"
            findings.expect(
                seen == claim if self.keys.is_all else seen <= claim, "I19", self.run.path, message
            )

    def _check_order(self, findings: Findings) -> None:
        findings.expect(
            self._in_order, "I19", self.run.path, f"its entries are not in order; {MEND}"
        )
        message = f"{self._twice} entries have the key and delta of another; only the greatest may be there"
        findings.expect(not self._twice, "I19", self.run.path, message)


def _is_ascending(entries: Entries) -> bool:
    follows = np.ones(max(len(entries) - 1, 0), np.bool_)
    for column in reversed(entries.order_columns):
        follows = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & follows)
    return bool(follows.all())
