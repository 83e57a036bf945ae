"""The rule that decides when each row ends (FORMAT, the rule).

It is pure: arrays in, arrays out.

Order the rows of a key by (delta, tie-break, row id). A row's UNTIL is the delta of its successor;
a delete's UNTIL is its own delta. So the order decides which of two rows of one delta is visible,
and which rows a late row ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake.arrays import BoolArray, Int64Array
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.ordering import to_order
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.events.segment_log import NO_ROW, Events, RowIds, concat_events, least_events
from opal_lake.ids import SEQUENCE_BITS, STATEMENT_BIT
from opal_lake.key_store.entries import (
    KEY_COLUMNS,
    VERSION_COLUMNS,
    Entries,
    concat_entries,
    greatest_of_equal,
    same_as_next,
    sort_order,
    sorted_entries,
)

Hashes = npt.NDArray[np.uint64]
PIECE_ROWS = 1 << 15  # so few that the columns of a piece stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The outcome of the rule for new rows: events, key-store entries and counts.

    `statement_rows` are stored rows and deletes of statements that a new row of another job follows
    at the same delta.
    """

    events: Events
    entries: Entries
    rows: int
    updates: int
    deletes: int
    late: int
    ambiguous: int
    statement_rows: int


def rule_columns(spec: TableSpec) -> list[str]:
    """Return the physical columns of a data file that the rule reads, the keys first."""
    roles = (*spec.keys, spec.delta, *spec.tie_break) if spec.has_keys else ()
    names = [field.physical for field in roles]
    names += [SEGMENT, OFFSET]
    if spec.deletes:
        names.append(DELETED)
    return list(dict.fromkeys(names))


def entries_of_rows(table: pa.Table, spec: TableSpec, hashes: Hashes | None = None) -> Entries:
    """Return rows of data files as unsorted entries.

    `hashes` are the key hashes of the rows, two words a row, computed here if not given.
    """
    if hashes is None:
        key_columns = [table[field.physical] for field in spec.keys]
        hashes = hash_keys(key_columns, spec.key_types)
    delta, valid = order_words(table[spec.delta.physical], spec.delta)
    if not valid.all():
        # I14: an ingest rejects rows without a delta
        raise InvalidInputError(
            f"{int((~valid).sum())} rows of a data file have no value in the delta column "
            f"{spec.delta.name!r}, so no ingest wrote the file; run `opal check`"
        )
    ties = tie_words(spec, [table[field.physical] for field in spec.tie_break])
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=delta,
        ties=ties,
        segment=table[SEGMENT].to_numpy().astype(np.int64, copy=False),
        offset=table[OFFSET].to_numpy().astype(np.int32, copy=False),
        deleted=_deleted(table),
    )


def _deleted(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows are deletes; a file without the column has none."""
    if DELETED not in table.column_names:
        return np.zeros(table.num_rows, np.bool_)
    marker = table[DELETED].combine_chunks().fill_null(False)
    return np.asarray(marker.to_numpy(zero_copy_only=False), np.bool_)


def order_words(values: pa.ChunkedArray, field: Field) -> tuple[Int64Array, BoolArray]:
    """Return values of a column that orders rows as numbers, and which are not null."""
    assert isinstance(field.type, Atomic)
    return to_order(values, field.type)


def tie_words(spec: TableSpec, columns: Sequence[pa.ChunkedArray]) -> tuple[Int64Array, ...]:
    """Return two numbers for each tie-break: whether it is not null, and its value."""
    ties: list[Int64Array] = []
    for field, column in zip(spec.tie_break, columns, strict=True):
        values, is_valid = order_words(column, field)
        # A null is the least value of a tie-break
        ties += [is_valid.astype(np.int64), np.where(is_valid, values, 0)]
    return tuple(ties)


def apply_rule(new: Entries, stored: Sequence[Entries], *, piece_rows: int = PIECE_ROWS) -> Ruling:
    """Apply the rule to new rows and the neighbours that the key store has for them.

    `stored` must hold the nearest entry before and after each new row. More entries are harmless,
    and so are entries of the new rows themselves.
    """
    sorted_new = sorted_entries(new)
    sorted_stored = [_by_hash(part) for part in stored]
    pieces: list[Ruling] = []
    for new_piece, stored_pieces in _pieces(sorted_new, sorted_stored, piece_rows):
        pieces.append(_rule_of(new_piece, stored_pieces))
    return Ruling(
        # I18: of several events of a row the least one counts
        events=least_events(concat_events(piece.events for piece in pieces)),
        entries=concat_entries(piece.entries for piece in pieces),
        rows=sum(piece.rows for piece in pieces),
        updates=sum(piece.updates for piece in pieces),
        deletes=sum(piece.deletes for piece in pieces),
        late=sum(piece.late for piece in pieces),
        ambiguous=sum(piece.ambiguous for piece in pieces),
        statement_rows=sum(piece.statement_rows for piece in pieces),
    )


def _by_hash(entries: Entries) -> Entries:
    """Return entries that are sorted by the first hash word at least."""
    is_sorted = not (entries.high[1:] < entries.high[:-1]).any()
    return entries if is_sorted else sorted_entries(entries)


def _pieces(
    new: Entries, stored: Sequence[Entries], piece_rows: int
) -> Iterator[tuple[Entries, list[Entries]]]:
    """Yield new entries with the stored ones, by ranges of the first hash word.

    `new` is sorted, and each range has about `piece_rows` of them.
    """
    # The first words of all ranges but the first one
    words = np.unique(new.high[piece_rows::piece_rows])
    new_ranges = _ranges(new, words)
    stored_ranges = [_ranges(part, words) for part in stored]
    for index, new_range in enumerate(new_ranges):
        stored_pieces: list[Entries] = []
        for part, ranges in zip(stored, stored_ranges, strict=True):
            stored_pieces.append(part.take(ranges[index]))
        yield new.take(new_range), stored_pieces


def _ranges(part: Entries, words: npt.NDArray[np.uint64]) -> list[slice]:
    """Return the ranges of sorted entries that begin at the start and at each word."""
    cuts = [0, *np.searchsorted(part.high, words, "left").tolist(), len(part)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


def _rule_of(new: Entries, stored: Sequence[Entries]) -> Ruling:
    """Apply the rule to sorted entries of one range of the hash."""
    rows, is_new = _merged(new, stored)
    has_follower = same_as_next(rows, KEY_COLUMNS)
    follower_is_new = _next_of(is_new)
    # Positions of rows that a follower ends. A delete ends at its own delta, and no earlier
    is_affected = is_new | follower_is_new
    ended = np.flatnonzero(has_follower & is_affected & ~rows.deleted)
    new_deletes = np.flatnonzero(rows.deleted & is_new)
    followers = _until_follower(rows, ended)
    own_deltas = _until_own_delta(rows, new_deletes, has_follower)
    # Equal in key, delta and tie-breaks: nothing but the row id decides between the two
    is_tied = same_as_next(new, VERSION_COLUMNS + len(new.ties))
    ingests = new.segment >> SEQUENCE_BITS
    is_same_ingest = np.append(ingests[1:] == ingests[:-1], False)[: len(new)]
    return Ruling(
        events=concat_events([followers, own_deltas]),
        # I21: of the rows of a key and a delta the greatest has the entry
        entries=greatest_of_equal(new),
        rows=len(new),
        updates=int(follower_is_new[ended].sum()),
        deletes=int(new.deleted.sum()),
        late=int((has_follower & is_new & ~follower_is_new).sum()),
        ambiguous=int((is_tied & is_same_ingest).sum()),
        statement_rows=_statement_rows(rows, ~is_new & follower_is_new),
    )


def _statement_rows(rows: Entries, is_followed: npt.NDArray[np.bool_]) -> int:
    """Return how many rows of statements another job's row follows at the same delta.

    `is_followed` says which of the sorted rows may count.
    """
    is_statement = (rows.segment & STATEMENT_BIT) != 0
    if not is_statement.any():
        return 0
    has_equal = same_as_next(rows, VERSION_COLUMNS)
    return int((is_followed & has_equal & is_statement & ~_next_of(is_statement)).sum())


def _next_of(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return for each row the flag of the next row; False for the last one."""
    return np.append(flags[1:], False)[: len(flags)]


def rule_between(theirs: Entries, own: Sequence[Entries]) -> Events:
    """Return the events between rows of two jobs, which a redo has to add.

    Each job has applied the rule to its own rows: only neighbours of different jobs count.
    """
    rows, is_theirs = _merged(sorted_entries(theirs), own)
    is_across = same_as_next(rows, KEY_COLUMNS) & (is_theirs != _next_of(is_theirs))
    ended = np.flatnonzero(is_across & ~rows.deleted)
    return least_events(_until_follower(rows, ended))


def statement_rows_between(theirs: Entries, own: Sequence[Entries]) -> int:
    """Return how many statement rows of `theirs` an own row follows at the same delta."""
    rows, is_theirs = _merged(sorted_entries(theirs), own)
    return _statement_rows(rows, is_theirs & ~_next_of(is_theirs))


def followed_by(floor: int, rows: Entries, stored: Sequence[Entries]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that have a successor up to the floor.

    A successor may be another of the rows, which are all different, or a stored row. `stored` must
    hold the nearest entry after each row.
    """
    mixed = concat_entries([rows, *stored])
    order = _merged_order(mixed)
    merged = mixed.take(order)
    is_followed = same_as_next(merged, KEY_COLUMNS) & _next_of(merged.delta <= floor)
    # From the order of `merged` back to the order of `rows`
    is_given = order < len(rows)
    mask = np.zeros(len(rows), np.bool_)
    mask[order[is_given]] = is_followed[is_given]
    return mask


def _merged(new: Entries, stored: Sequence[Entries]) -> tuple[Entries, npt.NDArray[np.bool_]]:
    """Return all rows in order, each once, and a mask of the new ones."""
    mixed = concat_entries([new, *stored])
    order = _merged_order(mixed)
    return mixed.take(order), order < len(new)


def _until_follower(rows: Entries, ended: npt.NDArray[np.intp]) -> Events:
    """Return the events of rows, given by position, that end at the next row's delta."""
    next_rows = RowIds(segment=rows.segment[ended + 1], offset=rows.offset[ended + 1])
    return Events(
        segment=rows.segment[ended],
        offset=rows.offset[ended],
        until=rows.delta[ended + 1],
        next_rows=next_rows,
    )


def _until_own_delta(
    rows: Entries, deletes: npt.NDArray[np.intp], has_follower: npt.NDArray[np.bool_]
) -> Events:
    """Return the events of deletes, given by position, which end at their own delta."""
    # The last row has no follower: its index only has to stay in bounds
    followers = np.minimum(deletes + 1, len(rows) - 1)
    is_followed = has_follower[deletes]
    segment = np.where(is_followed, rows.segment[followers], rows.segment.dtype.type(NO_ROW))
    offset = np.where(is_followed, rows.offset[followers], rows.offset.dtype.type(NO_ROW))
    return Events(
        segment=rows.segment[deletes],
        offset=rows.offset[deletes],
        until=rows.delta[deletes],
        next_rows=RowIds(segment=segment, offset=offset),
    )


def _merged_order(mixed: Entries) -> npt.NDArray[np.intp]:
    """Return the positions of all rows in order, each row once.

    The sort is stable and new rows come first: of a new row that is also stored, the new one stays.
    """
    order = sort_order(mixed)
    rows = mixed.take(order)
    repeats = np.zeros(len(rows), np.bool_)
    repeats[1:] = same_as_next(rows, len(rows.order_columns))[:-1]
    return order[~repeats]
