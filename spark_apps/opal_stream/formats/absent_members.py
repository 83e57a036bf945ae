"""Defaults of columns for JSON values that lack the column's member.

For Arrow's parser a missing member is a null. So the few values whose column is null
are parsed again, and only for columns with a default.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Defaults = Mapping[str, pa.Scalar]
NO_DEFAULTS: Defaults = {}


def with_defaults_of_absent(
    rows: pa.Table,
    values: Sequence[bytes],
    defaults: Defaults,
    row_of: Callable[[Any], Any] = lambda value: value,
) -> pa.Table:
    """Return rows in which columns without a member have their default.

    `row_of` returns the object of the row in a value; None if it has none.
    """

    @cache
    def members(position: int) -> Any:
        return row_of(json.loads(values[position])) or {}

    for name, default in defaults.items():
        if name not in rows.column_names or not rows[name].null_count:
            continue
        is_absent = np.zeros(rows.num_rows, np.bool_)
        for position in np.flatnonzero(rows[name].is_null().to_numpy()).tolist():
            is_absent[position] = name not in members(position)
        column = pc.if_else(pa.array(is_absent), default, rows[name])
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def row_of_event(event: Any) -> Any:
    """Return the row of a change event: before a delete, or after another change."""
    payload = event.get("payload") or event
    return payload.get("before") if payload.get("op") == "d" else payload.get("after")
