"""Pending rows near others.

No run knows pending rows, so their files are read: once a process, and only the files that may hold
such a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.column_read import read_columns
from opal_lake.data.prune import Comparable, Compare, may_hold_any, may_match
from opal_lake.data.recent import Recent
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.key_store.entries import Entries, sorted_entries
from opal_lake.key_store.probe import neighbours
from opal_lake.log.snapshot import Snapshot
from opal_lake.rule.metagen import entries_of_rows, rule_columns

MAX_BYTES = 64 << 20  # of entries in memory: about 1.7 million rows without tie-break columns

# The store, the table and the file with its checksum: none of them ever names other rows
_File = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """Rows whose stored neighbours are looked up.

    To compare them with the bounds of files, `keys` has the values of each key column in ascending
    order, and `greatest_delta` the last delta, in the form of bounds. None excludes no file: the
    form of the value is unknown.
    """

    rows: Entries
    keys: tuple[tuple[Comparable, ...] | None, ...]
    greatest_delta: Comparable | None

    @classmethod
    def of(cls, rows: Entries, physical: pa.Table, spec: TableSpec) -> Self:
        """Take the values of these rows from their physical columns."""
        keys = tuple(_ascending(physical[key.physical]) for key in spec.keys)
        deltas = _ascending(physical[spec.delta.physical])
        return cls(rows=rows, keys=keys, greatest_delta=deltas[-1] if deltas else None)

    def may_be_near(self, file: DataFile, snapshot: Snapshot) -> bool:
        """Return whether a file may hold a predecessor of one of the rows.

        A successor matters where the row may not be the last one of its key up to the floor.
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


def _ascending(column: pa.ChunkedArray) -> tuple[Comparable, ...] | None:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    try:
        values = pc.unique(column).to_pylist()
    except UnicodeDecodeError:
        return None  # Spark's strings need not be UTF-8
    comparable = [value.hex() if isinstance(value, bytes) else value for value in values]
    return tuple(sorted(comparable))


def _bytes_of(entries: Entries) -> int:
    return sum(column.nbytes for column in entries.order_columns) + entries.deleted.nbytes


_remembered: Recent[_File, Entries] = Recent(max_size=MAX_BYTES, size_of=_bytes_of)


def pending_neighbours(snapshot: Snapshot, sought: Sought) -> Iterator[Entries]:
    """Yield the nearest pending rows around each sought row, perhaps more of its key."""
    probes = sought.rows.take(np.argsort(sought.rows.high, kind="stable"))
    for file in snapshot.files.values():
        is_pending = not snapshot.pending.isdisjoint(file.segments)
        if is_pending and sought.may_be_near(file, snapshot):
            yield neighbours(_entries(snapshot, file), probes).entries


def _entries(snapshot: Snapshot, file: DataFile) -> Entries:
    known = (snapshot.storage.uri, snapshot.root.table_id, file.path, file.crc32)
    return _remembered.get(known, lambda: _read(snapshot, file))


def _read(snapshot: Snapshot, file: DataFile) -> Entries:
    """Read only the columns that the rule looks at."""
    spec = snapshot.spec
    try:
        stored = read_columns(snapshot.storage, file, spec, rule_columns(spec))
    except (FormatError, NotFoundError) as error:
        raise FormatError(
            f"{file.path} cannot be read. Rows with unchanged values take them from the pending "
            f"rows of this file: {error}"
        ) from error
    return sorted_entries(entries_of_rows(stored, spec))
