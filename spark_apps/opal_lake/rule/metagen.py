"""THE rule: what new rows mean for the rows that are there. Pure: arrays in, arrays out (FORMAT, the rule).

Order the rows of a key by (delta, tie-break, row id). A row's UNTIL is the delta of its successor; a delete's UNTIL is its own delta.
So it is decided here which of two rows of one delta counts, and what a late row hides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.ordering import to_order
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.events.segment_log import NO_ROW, Events, RowIds, concat_events, least_events
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    greatest_of_equal,
    same_as_next,
    sort_order,
    sorted_entries,
)

Hashes = npt.NDArray[np.uint64]
PIECE_ROWS = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the rule says of a set of new rows."""

    events: Events
    entries: Entries
    rows: int
    updates: int
    deletes: int
    late: int
    ambiguous: int


def rule_columns(spec: TableSpec) -> list[str]:
    """The physical columns of a data file that the rule looks at, the keys first."""
    roles = (*spec.keys, spec.delta, *spec.tie_break) if spec.has_keys else ()
    names = [field.physical for field in roles]
    return list(dict.fromkeys([*names, SEGMENT, OFFSET, *([DELETED] if spec.deletes else [])]))


def entries_of_rows(table: pa.Table, spec: TableSpec, hashes: Hashes | None = None) -> Entries:
    """Rows of data files as unsorted entries; `hashes` if they were computed already."""
    if hashes is None:
        hashes = hash_keys(
            [table[field.physical] for field in spec.keys], [_atomic(field) for field in spec.keys]
        )
    delta, valid = to_order(table[spec.delta.physical], _atomic(spec.delta))
    if not valid.all():
        raise InvalidInputError(
            f"{int((~valid).sum())} rows have no {spec.delta.name!r}; a data file was not written by an ingest"
        )
    ties: list[npt.NDArray[np.int64]] = []
    for field in spec.tie_break:
        values, there = to_order(table[field.physical], _atomic(field))
        ties += [there.astype(np.int64), np.where(there, values, 0)]
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=delta,
        ties=tuple(ties),
        segment=table[SEGMENT].to_numpy().astype(np.int64, copy=False),
        offset=table[OFFSET].to_numpy().astype(np.int32, copy=False),
        deleted=_deleted(table),
    )


def _deleted(table: pa.Table) -> npt.NDArray[np.bool_]:
    if DELETED not in table.column_names:
        return np.zeros(table.num_rows, np.bool_)
    return np.asarray(
        table[DELETED].combine_chunks().fill_null(False).to_numpy(zero_copy_only=False), np.bool_
    )


def _atomic(field: Field) -> Atomic:
    assert isinstance(field.type, Atomic)
    return field.type


def apply_rule(new: Entries, stored: Sequence[Entries]) -> Ruling:
    """New rows against the neighbours that the key store has for them.

    `stored` must hold, of every new row, the nearest entry before and after it; more does no harm, nor do rows that are among the new ones.
    """
    pieces = [
        _rule_of(*piece)
        for piece in _pieces(sorted_entries(new), [_by_hash(part) for part in stored])
    ]
    return Ruling(
        events=least_events(concat_events(piece.events for piece in pieces)),
        entries=concat_entries(piece.entries for piece in pieces),
        **{
            count: sum(getattr(piece, count) for piece in pieces)
            for count in ("rows", "updates", "deletes", "late", "ambiguous")
        },
    )


def _by_hash(entries: Entries) -> Entries:
    return sorted_entries(entries) if (entries.high[1:] < entries.high[:-1]).any() else entries


def _pieces(new: Entries, stored: Sequence[Entries]) -> Iterator[tuple[Entries, list[Entries]]]:
    """Sorted entries by ranges of the hash, each with what is stored of it: small enough that the columns stay in the processor's cache."""
    words = np.unique(new.high[PIECE_ROWS::PIECE_ROWS])
    bounds = [
        [0, *np.searchsorted(part.high, words, "left").tolist(), len(part)]
        for part in (new, *stored)
    ]
    for index in range(len(words) + 1):
        mine, *theirs = [
            part.take(slice(*cut[index : index + 2]))
            for part, cut in zip((new, *stored), bounds, strict=True)
        ]
        yield mine, theirs


def _rule_of(new: Entries, stored: Sequence[Entries]) -> Ruling:
    row, fresh = _merged(new, stored)
    pair = same_as_next(row, 2)
    follower_fresh = np.append(fresh[1:], False)[: len(row)]
    # A delete ends at its own delta, which no successor can bring nearer.
    ended, killed = (
        np.flatnonzero(pair & (fresh | follower_fresh) & ~row.deleted),
        np.flatnonzero(row.deleted & fresh),
    )
    ambiguous = (
        same_as_next(new, 3 + len(new.ties))
        & np.append(np.diff(new.segment >> 32) == 0, False)[: len(new)]
    )
    return Ruling(
        events=concat_events([_until_follower(row, ended), _until_own_delta(row, killed, pair)]),
        entries=greatest_of_equal(new),
        rows=len(new),
        updates=int(follower_fresh[ended].sum()),
        deletes=int(new.deleted.sum()),
        late=int((pair & fresh & ~follower_fresh).sum()),
        ambiguous=int(ambiguous.sum()),
    )


def rule_between(theirs: Entries, ours: Sequence[Entries]) -> Events:
    """Only the events between rows of two jobs, each of which has applied the rule to its own: what a redo has to add."""
    row, fresh = _merged(sorted_entries(theirs), ours)
    across = same_as_next(row, 2) & (fresh != np.append(fresh[1:], False)[: len(row)])
    return least_events(_until_follower(row, np.flatnonzero(across & ~row.deleted)))


def followed_by(floor: int, rows: Entries, stored: Sequence[Entries]) -> npt.NDArray[np.bool_]:
    """Of different rows: whether each has a successor up to the floor, among them or the stored ones.

    `stored` must hold the nearest entry after each row.
    """
    mixed = concat_entries([rows, *stored])
    order = _merged_order(mixed)
    row, ours = mixed.take(order), order < len(rows)
    followed = same_as_next(row, 2) & np.append(row.delta[1:] <= floor, False)[: len(row)]
    in_row_order = np.zeros(len(rows), np.bool_)
    in_row_order[order[ours]] = followed[ours]
    return in_row_order


def _merged(new: Entries, stored: Sequence[Entries]) -> tuple[Entries, npt.NDArray[np.bool_]]:
    """All rows in order, each once, and whether each is a new one."""
    mixed = concat_entries([new, *stored])
    order = _merged_order(mixed)
    return mixed.take(order), order < len(new)


def _until_follower(row: Entries, ended: npt.NDArray[np.intp]) -> Events:
    next_rows = RowIds(segment=row.segment[ended + 1], offset=row.offset[ended + 1])
    return Events(
        segment=row.segment[ended],
        offset=row.offset[ended],
        until=row.delta[ended + 1],
        next_rows=next_rows,
    )


def _until_own_delta(
    row: Entries, killed: npt.NDArray[np.intp], pair: npt.NDArray[np.bool_]
) -> Events:
    follower, is_followed = np.minimum(killed + 1, len(row) - 1), pair[killed]
    segment, offset = (
        np.where(is_followed, column[follower], column.dtype.type(NO_ROW))
        for column in (row.segment, row.offset)
    )
    next_rows = RowIds(segment=segment, offset=offset)
    return Events(
        segment=row.segment[killed],
        offset=row.offset[killed],
        until=row.delta[killed],
        next_rows=next_rows,
    )


def _merged_order(mixed: Entries) -> npt.NDArray[np.intp]:
    """Sorted positions without repeated rows. The sort is stable and the new ones came first: of a row that is both, the new one stays."""
    order = sort_order(mixed)
    row = mixed.take(order)
    repeats = np.zeros(len(row), np.bool_)
    repeats[1:] = same_as_next(row, len(row.order_columns))[:-1]
    return order[~repeats]
