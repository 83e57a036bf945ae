"""The runs of the key store against their own order, and against the rows (I19 to I21)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from opal_lake import layout
from opal_lake.check.chain import Sizes
from opal_lake.check.files import read_found
from opal_lake.check.finding import Findings
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    down_to,
    greatest_of_equal,
    same_as_next,
    sort_order,
    sorted_entries,
)
from opal_lake.key_store.filter import may_hold
from opal_lake.key_store.run import MEND, decode_run, open_index, read_filter, reader_of
from opal_lake.segment import RunFile
from opal_lake.snapshot import Snapshot


def check_runs(snapshot: Snapshot, sizes: Sizes, findings: Findings) -> dict[str, Entries]:
    """The entries of every run that can be read, by path."""
    found: dict[str, Entries] = {}
    for run in snapshot.runs.values():
        data = read_found(snapshot.storage, run, sizes, findings)
        if data is None:
            continue
        with findings.going_on("I19", run.path):
            entries = decode_run(data, run.path)
            _check_run(run, entries, findings)
            _check_index(data, run, entries, findings)
            ties = 2 * len(snapshot.spec.tie_break)
            if findings.expect(
                len(entries.ties) == ties, "I19", run.path, f"it has {len(entries.ties)} columns of ties, the table has {ties}"
            ):
                found[run.path] = entries
    return found


def _check_run(run: RunFile, entries: Entries, findings: Findings) -> None:
    message = f"it holds {len(entries)} entries, its commit says {run.entries}; {MEND}"
    if not findings.expect(len(entries) == run.entries and run.entries > 0, "I19", run.path, message):
        return
    in_order = np.array_equal(sort_order(entries), np.arange(len(entries)))
    findings.expect(in_order, "I19", run.path, f"its entries are not in order; {MEND}")
    twice = int(same_as_next(entries, 3).sum())
    findings.expect(not twice, "I19", run.path, f"{twice} entries have the key and delta of another; only the greatest may be there")
    bounds = int(entries.high[0]), int(entries.high[-1])
    message = f"its hashes lie in {bounds}, its commit says {run.hash_low, run.hash_high}; restore the log from a backup"
    findings.expect(bounds == (run.hash_low, run.hash_high), "I19", run.path, message)


def _check_index(data: bytes, run: RunFile, entries: Entries, findings: Findings) -> None:
    """What a reader of few entries relies on."""
    read = reader_of(data)
    index = open_index(read, run.path)
    fences = np.array_equal(index.fences, entries.high[:: index.block])
    findings.expect(fences, "I19", run.path, f"its directory does not hold the first hash of each block; {MEND}")
    held = read_filter(index, read)
    found = not held or bool(may_hold(held, entries.high, entries.low).all())
    findings.expect(found, "I19", run.path, f"its filter denies keys that it holds; {MEND}")


def check_entries_exist(rows: Entries, runs: dict[str, Entries], floor: int | None, findings: Findings) -> None:
    """Every entry is a processed row, with all that the row holds; of one up to the floor the row may be gone."""
    by_row = np.lexsort((rows.offset, rows.segment))
    ordered = rows.take(by_row)
    numbers = np.unique(ordered.segment)
    codes = _codes(ordered, numbers)
    for path, entries in runs.items():
        known = np.isin(entries.segment, numbers)
        codes_here = _codes(entries, numbers)
        place = np.searchsorted(codes, codes_here) if len(numbers) else np.zeros(len(entries), np.intp)
        place = np.minimum(place, max(len(codes) - 1, 0))
        agrees = known & _equal(entries, ordered.take(place)) if len(ordered) else known
        if floor is not None:
            gone = ~known | (codes[place] != codes_here if len(codes) else True)
            agrees = agrees | (gone & (entries.delta <= floor))
        wrong = int((~agrees).sum())
        findings.expect(wrong == 0, "I20", path, f"{wrong} of its entries are not what the data files hold; {MEND}")


def _codes(entries: Entries, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.searchsorted(numbers, entries.segment).astype(np.int64) << 32 | entries.offset.astype(np.int64)


def _equal(left: Entries, right: Entries) -> npt.NDArray[np.bool_]:
    same = left.deleted == right.deleted
    for here, there in zip(left.order_columns, right.order_columns, strict=True):
        same = same & (here == there)
    return np.asarray(same, np.bool_)


def check_store_complete(rows: Entries, runs: Sequence[Entries], snapshot: Snapshot, findings: Findings) -> None:
    """Of each (key, delta) after the floor, and of the latest up to it, the greatest row is in a run."""
    wanted = down_to(snapshot.root.floor, greatest_of_equal(sorted_entries(rows)))
    stored = greatest_of_equal(sorted_entries(concat_entries([wanted.take(slice(0, 0)), *runs])))
    both = concat_entries([wanted, stored])
    order = sort_order(both)
    pair = same_as_next(both.take(order), len(both.order_columns))
    present = np.zeros(len(both), np.bool_)
    present[order[pair]] = True
    present[order[1:][pair[:-1]]] = True
    missing = wanted.take(~present[: len(wanted)])
    places = {segment: file.path for file in snapshot.files.values() for segment in file.segments}
    for segment in np.unique(missing.segment):
        count = int((missing.segment == segment).sum())
        findings.add(
            "I21",
            places.get(int(segment), layout.KEY_STORE),
            f"{count} of its rows are the newest of their key and delta, but no run has them; {MEND}",
        )
