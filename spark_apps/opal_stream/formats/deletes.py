"""A table's delete condition, for those that need no SQL engine: one column, compared with literals."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.errors import InvalidInputError

_COLUMN = r"\s*(?P<column>`[^`]+`|[A-Za-z_]\w*)\s*"
_LITERAL = r"'(?:[^'\\]|'')*'|-?\d+|true|false"
_EQUAL = re.compile(rf"{_COLUMN}={{1,2}}\s*(?P<value>{_LITERAL})\s*", re.IGNORECASE)
_IN = re.compile(
    rf"{_COLUMN}in\s*\((?P<values>\s*(?:{_LITERAL})\s*(?:,\s*(?:{_LITERAL})\s*)*)\)\s*",
    re.IGNORECASE,
)
_NULL = re.compile(rf"{_COLUMN}is\s+null\s*", re.IGNORECASE)
_PLAIN = re.compile(_COLUMN)


class DeleteCondition:
    """`op = 'D'`, `op IN ('D', 'X')`, `op IS NULL` or a boolean column."""

    def __init__(self, condition: str, columns: pa.Schema) -> None:
        match = next(
            filter(
                None, (pattern.fullmatch(condition) for pattern in (_EQUAL, _IN, _NULL, _PLAIN))
            ),
            None,
        )
        names = {name.casefold(): name for name in columns.names}
        column = names.get(match["column"].strip("`").casefold()) if match else None
        if match is None or column is None:
            raise InvalidInputError(
                f"a stream cannot evaluate the table's delete condition {condition!r}, only column = literal, column IN (literals), "
                "column IS NULL, or a boolean column; stream into a table with such a condition, on a column that the source computes"
            )
        self.column = column
        self.is_null = match.re is _NULL
        given = match.groupdict()
        texts = (
            [given["value"]]
            if given.get("value")
            else re.findall(_LITERAL, given.get("values") or "true", re.IGNORECASE)
        )
        kind = pa.bool_() if self.is_null else columns.field(column).type
        try:
            self.values = pa.array([_value(text) for text in texts], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidInputError(
                f"the table's delete condition {condition!r} compares column {column!r}, of type {kind}, with a value of another type, and "
                "a stream converts none; stream into a table whose condition has a literal of the column's type"
            ) from error

    def of(self, rows: pa.Table) -> pa.Array:
        """Which rows delete their key."""
        if self.is_null:
            return _flat(pc.is_null(rows[self.column]))
        return _flat(pc.is_in(rows[self.column], value_set=self.values, skip_nulls=True))


def _value(text: str) -> object:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text.lower() == "true" if text.lower() in ("true", "false") else int(text)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    chunks: Sequence[pa.Array] = column.chunks
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)
