"""Columns as CREATE TABLE has them, for tables that are made without Spark.

An example: `id BIGINT, total DECIMAL(10,2), at TIMESTAMP`.
"""

import re

import pyarrow as pa

from opal_lake.definition.added_columns import arrow_of_columns
from opal_lake.errors import InvalidInputError

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*:?"
    r"\s+(?P<type>[A-Za-z_]+\s*(?:\([\d\s,]*\))?)\s*\Z"
)
_QUOTED_OR_COMMA = re.compile(r"`[^`]*`|\([^()]*\)|,")
# Other names of types in Spark's SQL
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
    """Return the Arrow schema of a list of columns.

    InvalidInputError where a column is written otherwise: nested types and constraints need Spark's
    own parser.
    """
    refuse_lengths(text)
    columns: dict[str, str] = {}
    for part in _columns_of(text):
        match = _COLUMN.match(part)
        if match is None:
            raise InvalidInputError(
                f"schema: {part.strip()!r} is not a column that can be read here: write name and "
                "type, as `id BIGINT` or `total DECIMAL(10,2)`; make a table with nested columns "
                "by `opal create --spark` or OpalTable.create"
            )
        name = match["quoted"] or match["plain"]
        if match["quoted"]:
            name = name.replace("``", "`")
        if name in columns:
            raise InvalidInputError(f"schema: column {name!r} is there twice; rename one")
        columns[name] = _type(match["type"])
    return arrow_of_columns(columns)


def _columns_of(text: str) -> list[str]:
    """Return the columns of the list as they are written, each between two commas."""
    parts: list[str] = []
    start = 0
    for match in _QUOTED_OR_COMMA.finditer(text):
        # A name in back-quotes and DECIMAL(10,2) may hold commas
        if match[0] == ",":
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def refuse_lengths(text: str) -> None:
    """Raise InvalidInputError for a text type with a length, which no table keeps."""
    match = _WITH_LENGTH.search(_QUOTED.sub("", text))
    if match is not None:
        raise InvalidInputError(
            f"schema: {match[0].upper()} is not a type of a table, whose texts have no length; "
            "write STRING, and check lengths before the ingest"
        )


def _type(text: str) -> str:
    """Return a type as `arrow_of_columns` takes it."""
    word, _, arguments = re.sub(r"\s+", "", text).lower().partition("(")
    kind = _ALSO.get(word, word)
    if not arguments:
        # As in SQL: 10 digits, none of them behind the point
        return "decimal(10,0)" if kind == "decimal" else kind
    if kind == "decimal" and "," not in arguments:
        return f"decimal({arguments.removesuffix(')')},0)"
    return f"{kind}({arguments}"
