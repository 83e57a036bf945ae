"""A DataFrame split by the business snapshot that a column names."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD
from opal_lake.definition.table_spec import TableSpec
from opal_spark.engine.columns import quoted, spark_schema, write_default


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSplit:
    """The rows of a source, to be split by the texts in a column.

    Spark reads and caches the rows once: a second read of the source might give other rows.
    """

    rows: DataFrame
    column: str

    @property
    def _text(self) -> Column:
        return F.col(quoted(self.column)).cast("string")

    def values(self, most: int) -> Mapping[str | None, int]:
        """Return the number of rows of each text, for at most `most` texts and one more.

        The one more shows that there are too many texts.
        """
        by_text = self.rows.groupBy(self._text.alias("text"))
        counts = by_text.agg(F.count(F.lit(1)).alias("rows")).limit(most + 1)
        return {row["text"]: row["rows"] for row in counts.collect()}

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> DataFrame:
        """Return the rows of the chosen texts, with the columns of the spec.

        `bad` has the reason for each text whose rows are bad.
        """
        texts = [text for text in chosen if text is not None]
        is_chosen = self._text.isin(texts)
        if None in chosen:
            is_chosen |= self._text.isNull()
        chosen_rows = _with_added(self.rows.where(is_chosen), spec)
        if not bad:
            return chosen_rows
        texts_and_reasons = []
        for text, why in bad.items():
            # Null cannot be a key of a map
            if text is not None:
                texts_and_reasons += [F.lit(text), F.lit(why)]
        reason_of_text = F.try_element_at(F.create_map(*texts_and_reasons), self._text)
        reason = F.when(self._text.isNull(), F.lit(bad.get(None))).otherwise(reason_of_text)
        if BAD in chosen_rows.columns:
            reason = F.coalesce(F.col(BAD), reason)
        return chosen_rows.withColumn(BAD, reason.cast("string"))


def _with_added(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Add columns, with their default, that the table got after the rows were read."""
    names = set(rows.columns)
    missing = {}
    for field in spark_schema(spec, physical=False):
        if field.name not in names:
            missing[field.name] = write_default(spec, field.name)
    return rows.withColumns(missing) if missing else rows
