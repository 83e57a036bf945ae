"""The rows of an ingest that replaces a partition key, with deletes of the rows that end.

`mode="replace"` says that a source has all rows of a partition key. A visible row of the key ends
if the source has no row with its primary key.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.arrays import BoolArray
from opal_lake.data.rejects import EXAMPLES, json_texts
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.ordering import to_order
from opal_lake.definition.schema import (
    DELETED,
    ENDED_OFFSET,
    ENDED_SEGMENT,
    OFFSET,
    SEGMENT,
    Atomic,
    Field,
    arrow_type,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.key_store.entries import Entries, concat_entries, same_as_next, sort_order
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import plan_read, read_rows
from opal_lake.read.view import View

_LAST = np.iinfo(np.int64).max


def ordering_fields(spec: TableSpec) -> list[Field]:
    """Return the columns that a row needs for its place in the order of its key."""
    return [*dict.fromkeys([*spec.keys, spec.delta, *spec.tie_break])]


def with_ended(rows: pa.Table, view: View) -> pa.Table:
    """Return a source's rows, and a delete for each other row of the view.

    A row of the view is deleted if the source lacks its key. A bad row of the source, which is put
    aside, has its key as well. Deletes have the row that they end, as rows of a statement do.
    Raises InvalidInputError if the rows of a key are all earlier than the row of the view, which
    would stay visible.
    """
    spec = view.snapshot.spec
    invalid = view.narrowed(invalid_rows(view.snapshot, None))
    plan = plan_read(view.snapshot, None, None, invalid)
    fields = ordering_fields(spec)
    stored = read_rows(plan, [field.name for field in fields], with_ids=True)
    has_key = np.ones(rows.num_rows, np.bool_)
    for field in spec.keys:
        has_key &= pc.is_valid(rows[field.name]).to_numpy()
    known = rows.select([field.name for field in fields]).filter(pa.array(has_key))
    own, new = _entries(stored, spec), _entries(known, spec)
    has_new = _has_key_of(own, new)
    if not spec.orders_by_commit:
        new = new.take(pc.is_valid(known[spec.delta.name]).to_numpy())
    mixed = concat_entries([own, new])
    order = sort_order(mixed)
    is_last = ~same_as_next(mixed.take(order), 2)
    is_newest = np.zeros(len(mixed), np.bool_)
    is_newest[order] = is_last
    outlasting = is_newest[: len(own)] & _has_key_of(own, new)
    if outlasting.any():
        first = np.flatnonzero(outlasting)[:EXAMPLES]
        keys = stored.select([key.name for key in spec.keys]).take(pa.array(first))
        raise outlasted(json_texts(keys))
    return _with_deletes(rows, stored.filter(pa.array(~has_new)), spec)


def outlasted(keys: Sequence[str]) -> InvalidInputError:
    """Return the error for keys whose new rows would stay invisible."""
    return InvalidInputError(
        "mode='replace': the source has rows with a lower delta or tie-break than rows of the "
        "partition key that they should replace, so that they would stay invisible; give them a "
        f"delta that is not lower. Keys, for example: {', '.join(keys)}"
    )


def _entries(rows: pa.Table, spec: TableSpec) -> Entries:
    """Return rows as entries; those of a source come after all stored ones."""
    count = rows.num_rows
    types = [key.type for key in spec.keys if isinstance(key.type, Atomic)]
    hashes = hash_keys([rows[key.name] for key in spec.keys], types)
    ties = []
    for field in spec.tie_break:
        values, is_valid = _order_words(rows, field)
        # A null is the least value of a tie-break
        ties += [is_valid.astype(np.int64), np.where(is_valid, values, 0)]
    is_stored = SEGMENT in rows.column_names
    delta = np.full(count, _LAST)
    if is_stored or not spec.orders_by_commit:
        delta, _ = _order_words(rows, spec.delta)
    segment = rows[SEGMENT].to_numpy() if is_stored else np.full(count, _LAST)
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=delta,
        ties=tuple(ties),
        segment=segment.astype(np.int64),
        offset=rows[OFFSET].to_numpy() if is_stored else np.zeros(count, np.int32),
        deleted=np.zeros(count, np.bool_),
    )


def _order_words(rows: pa.Table, field: Field) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(field.type, Atomic)
    return to_order(rows[field.name].cast(arrow_type(field.type)), field.type)


def _has_key_of(rows: Entries, others: Entries) -> BoolArray:
    """Return which rows have the key of one of the others."""
    keys = pa.table([pa.array(others.high), pa.array(others.low)], names=["high", "low"])
    places = pa.array(np.arange(len(rows)))
    own = pa.table([pa.array(rows.high), pa.array(rows.low), places], names=["high", "low", "at"])
    shared = own.join(keys, keys=["high", "low"], join_type="left semi")
    has_key = np.zeros(len(rows), np.bool_)
    has_key[shared["at"].to_numpy()] = True
    return has_key


def _with_deletes(rows: pa.Table, ended: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the rows, and deletes of the ended ones."""
    if DELETED not in rows.column_names:
        rows = rows.append_column(DELETED, pa.repeat(False, rows.num_rows))
    ordering = [field.name for field in ordering_fields(spec)]
    columns = {name: ended[name] for name in ordering}
    if spec.orders_by_commit:
        # The job fills the column in all its rows
        columns.pop(spec.delta.name)
    columns[DELETED] = pa.repeat(True, ended.num_rows)
    columns[ENDED_SEGMENT] = ended[SEGMENT].cast(pa.int64())
    columns[ENDED_OFFSET] = ended[OFFSET].cast(pa.int32())
    return pa.concat_tables([rows, pa.table(columns)], promote_options="default")
