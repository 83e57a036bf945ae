"""Pending rows that are neighbours of given rows in the order of the rule.

No run of the key store has entries of pending rows, so their files are read. Only files that may
hold a neighbour are read, and each is read once in a process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from opal_lake.data.column_read import read_columns
from opal_lake.data.prune import (
    Comparable,
    Compare,
    ascending_values,
    may_hold_any,
    may_match,
)
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.key_store.entries import Entries, sorted_entries
from opal_lake.key_store.probe import neighbours
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns

MAX_BYTES = 64 << 20  # of entries in memory: about 1.7 million rows without tie-break columns

# The store's URI, the id of the table, and the path and checksum of the file: together they never
# stand for other rows
_File = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """Rows whose stored neighbours are looked up.

    Bounds of files are compared with `keys`, the ascending values of each key column, and with
    `greatest_delta`, the last delta, all in the form of bounds. If one is None, because it has no
    such form, it rules out no file.
    """

    rows: Entries
    keys: tuple[tuple[Comparable, ...] | None, ...]
    greatest_delta: Comparable | None

    @classmethod
    def of(cls, rows: Entries, physical: pa.Table, spec: TableSpec) -> Self:
        """Return rows to look up, with the values of their physical columns."""
        keys = tuple(ascending_values(physical[key.physical]) for key in spec.keys)
        deltas = ascending_values(physical[spec.delta.physical])
        return cls(rows=rows, keys=keys, greatest_delta=deltas[-1] if deltas else None)

    def may_be_near(self, file: DataFile, snapshot: Snapshot) -> bool:
        """Return whether a file may hold a neighbour of one of the rows that matters.

        Predecessors always matter. Successors matter if the floor is later than all rows: they show
        whether a row is the last one of its key up to the floor.
        """
        for key, values in zip(snapshot.spec.keys, self.keys, strict=True):
            bounds = file.bounds.get(key.id)
            if values is not None and bounds is not None and not may_hold_any(values, bounds):
                return False
        floor = snapshot.root.floor
        if self.greatest_delta is None or (floor is not None and self.rows.delta.max() < floor):
            return True
        earlier = Compare(field_id=snapshot.spec.delta.id, op="<=", value=self.greatest_delta)
        return may_match(earlier, file.bounds, file.rows)


def _bytes_of(entries: Entries) -> int:
    return sum(column.nbytes for column in entries.order_columns) + entries.deleted.nbytes


_remembered: Recent[_File, Entries] = Recent(max_size=MAX_BYTES, size_of=_bytes_of)


def pending_neighbours(snapshot: Snapshot, sought: Sought) -> Iterator[Entries]:
    """Yield the nearest pending rows before and after each sought row, or more."""
    probes = sought.rows.take(np.argsort(sought.rows.high, kind="stable"))
    for file in snapshot.files.values():
        is_pending = not snapshot.pending.isdisjoint(file.segments)
        if is_pending and sought.may_be_near(file, snapshot):
            yield neighbours(_entries(snapshot, file), probes).entries


def _entries(snapshot: Snapshot, file: DataFile) -> Entries:
    """Return the entries of a file's rows, from the cache of this process."""
    known = (snapshot.storage.uri, snapshot.root.table_id, file.path, file.crc32)
    return _remembered.get(known, lambda: _read(snapshot, file))


def _read(snapshot: Snapshot, file: DataFile) -> Entries:
    """Read the entries of a file's rows."""
    spec = snapshot.spec
    try:
        stored = read_columns(snapshot.storage, file, spec, rule_columns(spec))
    except (FormatError, NotFoundError) as error:
        raise FormatError(
            "this ingest fills values that did not change from the pending rows of "
            f"{file.path}, which cannot be read: {error}"
        ) from error
    return sorted_entries(entries_of_rows(stored, spec))
