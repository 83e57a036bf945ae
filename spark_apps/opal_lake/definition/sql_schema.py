"""Lists of columns in SQL, as CREATE TABLE has them, parsed without Spark.

An example: `id BIGINT, total DECIMAL(10,2), at TIMESTAMP`.
"""

import re

import pyarrow as pa

from opal_lake.definition.added_columns import arrow_of_columns
from opal_lake.errors import InvalidInputError

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*:?\s+(?P<type>\S.*)", re.DOTALL
)
_QUOTED_OR_SIGN = re.compile(r"`[^`]*`|[<>(),]")
_QUOTED = re.compile(r"`[^`]*`|'(?:[^'\\]|\\.)*'")  # names, and comments of columns
_WITH_LENGTH = re.compile(r"\b(?:VARCHAR|CHAR|CHARACTER)\b\s*\([\s\d]*\)", re.IGNORECASE)


def arrow_of_sql(text: str) -> pa.Schema:
    """Return the Arrow schema of a list of columns.

    Raises InvalidInputError for columns with constraints or comments.
    """
    refuse_lengths(text)
    columns: dict[str, str] = {}
    for part in _columns_of(text):
        match = _COLUMN.match(part)
        if match is None:
            raise InvalidInputError(
                f"schema: {part.strip()!r} is not a column: write name and type, for example "
                "`id BIGINT` or `place STRUCT<city: STRING, zip: INT>`"
            )
        name = match["quoted"] or match["plain"]
        if match["quoted"]:
            name = name.replace("``", "`")
        if name in columns:
            raise InvalidInputError(f"schema: two columns are called {name!r}; rename one")
        columns[name] = match["type"]
    return arrow_of_columns(columns)


def _columns_of(text: str) -> list[str]:
    """Return the texts between the commas of the list.

    The commas within names in backquotes, and within types such as DECIMAL(10,2), do not count.
    """
    parts: list[str] = []
    start = depth = 0
    for match in _QUOTED_OR_SIGN.finditer(text):
        sign = match[0]
        if sign in ("(", "<"):
            depth += 1
        elif sign in (")", ">"):
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def refuse_lengths(text: str) -> None:
    """Raise InvalidInputError for a text type with a length, which no table keeps."""
    match = _WITH_LENGTH.search(_QUOTED.sub("", text))
    if match is not None:
        raise InvalidInputError(
            f"schema: {match[0].upper()} is not a type of a table, whose texts have no length "
            "limit; write STRING, and check lengths before the ingest"
        )
