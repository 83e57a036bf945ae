"""Columns as CREATE TABLE has them, for tables that are made without Spark: `id BIGINT, total DECIMAL(10,2), at TIMESTAMP`."""

import re

import pyarrow as pa

from opal_lake.definition.added_columns import arrow_of_columns
from opal_lake.errors import InvalidInputError

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))\s*:?\s+(?P<type>[A-Za-z_]+\s*(?:\([\d\s,]*\))?)\s*\Z"
)
_COMMA = re.compile(r",(?![^(]*\))")
# As Spark's SQL has them beside the names that a table has
_ALSO = {
    "int": "integer",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
    "varchar": "string",
}
_QUOTED = re.compile(r"`[^`]*`|'(?:[^'\\]|\\.)*'")  # names, and comments of columns
_WITH_LENGTH = re.compile(r"\b(?:VARCHAR|CHAR|CHARACTER)\b\s*\([\s\d]*\)", re.IGNORECASE)


def arrow_of_sql(text: str) -> pa.Schema:
    """InvalidInputError where a column is written otherwise: nested types and constraints take Spark's own parser."""
    refuse_lengths(text)
    columns: dict[str, str] = {}
    for part in _COMMA.split(text):
        match = _COLUMN.match(part)
        if match is None:
            raise InvalidInputError(
                f"schema: {part.strip()!r} is no column that can be read here: write name and type, as `id BIGINT` or "
                "`total DECIMAL(10,2)`; make a table with nested columns by `opal create --spark` or OpalTable.create"
            )
        name = match["quoted"] or match["plain"]
        if name in columns:
            raise InvalidInputError(f"schema: column {name!r} is there twice; rename one")
        columns[name] = _type(match["type"])
    return arrow_of_columns(columns)


def refuse_lengths(text: str) -> None:
    """Raise InvalidInputError for a text type with a length, which a table would not keep."""
    found = _WITH_LENGTH.search(_QUOTED.sub("", text))
    if found is not None:
        raise InvalidInputError(
            f"schema: {found[0].upper()} is not a type of a table, whose texts have no length; "
            "write STRING, and check lengths before the ingest"
        )


def _type(text: str) -> str:
    word, _, arguments = re.sub(r"\s+", "", text).lower().partition("(")
    kind = _ALSO.get(word, word)
    if kind == "decimal":
        return f"decimal({(arguments.removesuffix(')') or '10,0') + ('' if ',' in arguments or not arguments else ',0')})"
    return f"{kind}({arguments}" if arguments else kind
