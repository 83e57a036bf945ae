"""Texts of a statement that need values of parameters, or other tables.

`spark.sql` evaluates them before the rest of the statement, as columns of the rows: a Column takes
neither parameters nor DataFrames. Each text is evaluated only in rows for which its clause counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.read.statement import Clause
from opal_spark.engine.columns import quoted

# Always true, and no constant: else Spark copies the number's expression to each place that reads
# it, so that 300 clauses are 90,000 conditions
_BARRIER = "monotonically_increasing_id() >= 0"
Given = dict[str, Any] | list[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlText:
    """An expression of Spark with its values and tables.

    - The text has the names of `frames` in braces; its own braces are doubled.
    - `plain` has literals in place of parameters, to find files and keys by it; None if the text
      has no such form.
    """

    text: str
    args: Given = None
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    plain: str | None = None


def plain_text(given: Any) -> Any:
    """Return a text without parameters, or what else was given."""
    return given.plain if isinstance(given, SqlText) else given


def has_sql_texts(clauses: Sequence[Clause]) -> bool:
    """Return whether clauses have texts that only `spark.sql` evaluates."""
    return any(isinstance(given, SqlText) for clause in clauses for given in _texts_of(clause))


def _texts_of(clause: Clause) -> list[Any]:
    return [clause.where, *(clause.values or {}).values()]


def in_format(text: str) -> str:
    """Return a text for `spark.sql` with frames, which reads single braces as names."""
    return text.replace("{", "{{").replace("}", "}}")


class SqlBuilder:
    """A text for `spark.sql`, put together from pieces with values and tables."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._named: dict[str, Any] = {}
        self._positional: list[Any] = []
        self._frames: dict[str, DataFrame] = {}

    def add(self, text: str, **frames: DataFrame) -> None:
        """Add text, with the names of frames in braces."""
        self._parts.append(text)
        self._frames.update(frames)

    def add_expression(self, given: Any) -> None:
        """Add an expression in parentheses: a text, or one with its values and tables."""
        if not isinstance(given, SqlText):
            given = SqlText(text=in_format(str(given)))
        if isinstance(given.args, dict):
            self._named |= given.args
        else:
            self._positional += given.args or []
        # The line break ends a comment at the end of the text
        self.add(f"({given.text}\n)", **given.frames)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the result of the text."""
        args = self._named or self._positional or None
        return spark.sql("".join(self._parts), args, **self._frames)


def evaluated(
    rows: DataFrame, source: str, clauses: Sequence[Clause], name: str, chosen: str = "TRUE"
) -> tuple[DataFrame, list[Clause]]:
    """Return rows with the values of texts as columns, and clauses that read these.

    `source` is the FROM clause, with `{rows}` for the rows. It gives names to their columns, and
    the result has the columns of the rows alone. `chosen` is true for rows to which the clauses
    may apply. The new columns begin with `name`.
    """
    spark = rows.sparkSession
    carried = in_format(", ".join(map(quoted, rows.columns)))
    number = f"{name}_clause"
    builder = SqlBuilder()
    if len(clauses) == 1 and chosen == "TRUE" and clauses[0].where is not None:
        # Spark skips parts of files by a filter, but not by a CASE
        builder.add(f"SELECT {carried}, 0 AS {number} FROM {source} WHERE ", rows=rows)
        builder.add_expression(clauses[0].where)
        return _with_values(builder.rows(spark), carried, source, clauses, name)
    builder.add(f"SELECT {carried}, CASE WHEN NOT ({chosen} AND {_BARRIER}) THEN NULL")
    for index, clause in enumerate(clauses):
        builder.add(" WHEN ")
        builder.add_expression("TRUE" if clause.where is None else clause.where)
        builder.add(f" THEN {index}")
    builder.add(f" END AS {number} FROM {source}", rows=rows)
    return _with_values(builder.rows(spark), carried, source, clauses, name)


def _with_values(
    numbered: DataFrame, carried: str, source: str, clauses: Sequence[Clause], name: str
) -> tuple[DataFrame, list[Clause]]:
    """Return rows with the values of texts, by the number of each row's clause."""
    number = f"{name}_clause"
    builder = SqlBuilder()
    builder.add(f"SELECT {carried}, {number}")
    reading: list[Clause] = []
    for index, clause in enumerate(clauses):
        struct = f"{name}_{index}"
        values: dict[str, Any] = dict(clause.values or {})
        texts = [column for column, value in values.items() if isinstance(value, str | SqlText)]
        if texts:
            builder.add(f", CASE WHEN {number} = {index} THEN named_struct(")
            for position, column in enumerate(texts):
                builder.add(f"'_{position}', ")
                builder.add_expression(values[column])
                builder.add(", ")
                values[column] = F.col(f"{struct}._{position}")
            builder.add(f"'_', 0) END AS {struct}")
        where = F.col(number) == F.lit(index)
        reading.append(replace(clause, where=where, values=clause.values and values))
    builder.add(f" FROM {source}", rows=numbered)
    return builder.rows(numbered.sparkSession), reading
