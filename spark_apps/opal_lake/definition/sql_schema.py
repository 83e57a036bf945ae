"""Lists of columns in SQL, as CREATE TABLE has them, parsed without Spark.

An example: `id BIGINT, total DECIMAL(10,2), at TIMESTAMP`.
"""

import re

import pyarrow as pa

from opal_lake.definition.added_columns import arrow_of_columns
from opal_lake.definition.sql_types import refuse_lengths
from opal_lake.errors import InvalidInputError

_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*:?\s+(?P<type>\S.*)", re.DOTALL
)
_QUOTED_OR_SIGN = re.compile(r"`[^`]*`|[<>(),]")


def arrow_of_sql(text: str) -> pa.Schema:
    """Return the Arrow schema of a list of columns.

    Raises InvalidInputError for columns with constraints or comments.
    """
    refuse_lengths("schema", text)
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
