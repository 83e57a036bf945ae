"""The rows of an ingest that replaces a partition key, with deletes of the rows that end.

`mode="replace"` says that a source has all rows of a partition key. A visible row of the key ends
if the source has no row with its primary key.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.data.rejects import EXAMPLES, json_texts
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import (
    DELETED,
    ENDED_OFFSET,
    ENDED_SEGMENT,
    OFFSET,
    SEGMENT,
    Field,
    arrow_type,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    has_key_of,
    same_as_next,
    sort_order,
)
from opal_lake.log.visibility import invalid_rows
from opal_lake.read.read import plan_read, read_rows
from opal_lake.read.view import View
from opal_lake.rule.metagen import order_words, tie_words

_LAST = np.iinfo(np.int64).max


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
    fields = spec.ordering
    stored = read_rows(plan, [field.name for field in fields], with_ids=True)
    has_key = np.ones(rows.num_rows, np.bool_)
    for field in spec.keys:
        has_key &= pc.is_valid(rows[field.name]).to_numpy()
    known = rows.select([field.name for field in fields]).filter(pa.array(has_key))
    own, new = _entries(stored, spec), _entries(known, spec)
    has_new = has_key_of(own, new)
    if not spec.orders_by_commit:
        new = new.take(pc.is_valid(known[spec.delta.name]).to_numpy())
    mixed = concat_entries([own, new])
    order = sort_order(mixed)
    is_last = ~same_as_next(mixed.take(order), 2)
    is_newest = np.zeros(len(mixed), np.bool_)
    is_newest[order] = is_last
    outlasting = is_newest[: len(own)] & has_key_of(own, new)
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
    hashes = hash_keys([rows[key.name] for key in spec.keys], spec.key_types)
    is_stored = SEGMENT in rows.column_names
    delta = np.full(count, _LAST)
    if is_stored or not spec.orders_by_commit:
        delta, _ = order_words(_typed(rows, spec.delta), spec.delta)
    segment = rows[SEGMENT].to_numpy() if is_stored else np.full(count, _LAST)
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=delta,
        ties=tie_words(spec, [_typed(rows, field) for field in spec.tie_break]),
        segment=segment.astype(np.int64),
        offset=rows[OFFSET].to_numpy() if is_stored else np.zeros(count, np.int32),
        deleted=np.zeros(count, np.bool_),
    )


def _typed(rows: pa.Table, field: Field) -> pa.ChunkedArray:
    return rows[field.name].cast(arrow_type(field.type))


def _with_deletes(rows: pa.Table, ended: pa.Table, spec: TableSpec) -> pa.Table:
    """Return the rows, and deletes of the ended ones."""
    if DELETED not in rows.column_names:
        rows = rows.append_column(DELETED, pa.repeat(False, rows.num_rows))
    ordering = [field.name for field in spec.ordering]
    columns = {name: ended[name] for name in ordering}
    if spec.orders_by_commit:
        # The job fills the column in all its rows
        columns.pop(spec.delta.name)
    columns[DELETED] = pa.repeat(True, ended.num_rows)
    columns[ENDED_SEGMENT] = ended[SEGMENT].cast(pa.int64())
    columns[ENDED_OFFSET] = ended[OFFSET].cast(pa.int32())
    return pa.concat_tables([rows, pa.table(columns)], promote_options="default")
