"""A DataFrame parted by the business snapshot that a column tells."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from opal_lake.data.rejects import BAD
from opal_lake.definition.table_spec import TableSpec
from opal_spark.engine.columns import quoted, spark_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSplit:
    """Rows of a source. They are read once and kept by Spark: what is read twice may differ."""

    rows: DataFrame
    column: str

    @property
    def _text(self) -> Column:
        return F.col(quoted(self.column)).cast("string")

    def values(self, most: int) -> Mapping[str | None, int]:
        counted = (
            self.rows.groupBy(self._text.alias("text"))
            .agg(F.count(F.lit(1)).alias("rows"))
            .limit(most + 1)
        )
        return {row["text"]: row["rows"] for row in counted.collect()}

    def part(
        self, chosen: Collection[str | None], bad: Mapping[str | None, str], spec: TableSpec
    ) -> DataFrame:
        texts = [text for text in chosen if text is not None]
        is_chosen = self._text.isin(texts) | F.lit(None in chosen) & self._text.isNull()
        kept = _with_added(self.rows.where(is_chosen), spec)
        if not bad:
            return kept
        reasons = F.create_map(
            *[F.lit(part) for pair in bad.items() for part in pair if pair[0] is not None]
        )
        reason = F.when(self._text.isNull(), F.lit(bad.get(None))).otherwise(
            F.try_element_at(reasons, self._text)
        )
        noted = F.coalesce(F.col(BAD), reason) if BAD in kept.columns else reason
        return kept.withColumn(BAD, noted.cast("string"))


def _with_added(rows: DataFrame, spec: TableSpec) -> DataFrame:
    """Give rows the columns that the table got since they were made to fit it: null."""
    missing = {
        member.name: F.lit(None).cast(member.dataType)
        for member in spark_schema(spec, physical=False)
        if member.name not in rows.columns
    }
    return rows.withColumns(missing) if missing else rows
