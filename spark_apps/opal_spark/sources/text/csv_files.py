"""CSV: cells are read as text and cast to the table's types; every file must have the same header."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from opal_lake.definition.schema import Atomic, DataType
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.engine.columns import quoted
from opal_spark.sources.cells import parse_text, patterns_of
from opal_spark.sources.marks import fault_of, file_column, file_name, mark
from opal_spark.sources.paths import open_files, refuse_options
from opal_spark.sources.text.csv_header import Header, csv_options, read_header
from opal_spark.sources.text.csv_lines import MULTI_LINE
from opal_spark.sources.text.csv_quotes import refuse_open_quotes

_CORRUPT, _CELLS = "_opal_corrupt", "_opal_cells"
_REFUSED = {
    "mode": "say on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": "bad rows are shown in the result, or kept in the table's _opal/rejected folder",
    "enforceschema": "columns are matched by the header",
}
_FORCED = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "enforceSchema": "false",
    "inferSchema": "false",
}
_RAGGED = (
    "the row has more or fewer cells than there are columns "
    f"(where cells hold line breaks: {MULTI_LINE})"
)


def read_csv(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Rows of the table's columns, with what is wrong with them."""
    refuse_options(source, _REFUSED)
    rows, header = _open(spark, source, spec, ignore=ignore)
    given = {name.casefold(): name for name in header.names}
    patterns = patterns_of(source.options)
    values, faults = [], [F.when(F.col(_CORRUPT).isNotNull(), F.lit(_RAGGED))]
    for column, kind in _atomic_columns(spec).items():
        name = given.get(column.casefold())
        text = (
            F.lit(None).cast("string") if name is None else _text(name, kind)
        )  # None: added to the table, and not in these files
        values.append(parse_text(text, kind, patterns).alias(column))
        faults.append(fault_of(text, column, kind))
    held = F.coalesce(_CORRUPT, F.to_json(_CELLS, {"ignoreNullFields": "false"}))
    return mark(rows.select("*", *values), spec, faults, file_name(), held)


def _open(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool
) -> tuple[DataFrame, Header]:
    """One struct of texts a row: cells, and values of folders. Spark compares each file's header with the first one's."""
    header = read_header(spark, source, spec, ignore=ignore)
    refuse_open_quotes(spark, source, csv_options(source))
    schema = StructType([StructField(name, StringType()) for name in (*header.cells, _CORRUPT)])
    rows = open_files(spark, source, "csv", {**csv_options(source), **_FORCED}, schema)
    return rows.select(
        F.struct(*[F.col(quoted(name)) for name in header.names]).alias(_CELLS),
        _CORRUPT,
        file_column(rows),
    ), header


def _atomic_columns(spec: TableSpec) -> dict[str, Atomic]:
    types = {
        column.name: column.type for column in spec.schema.fields if isinstance(column.type, Atomic)
    }
    nested = [
        column.name
        for column in spec.schema.fields
        if column.name not in types and not spec.schema.is_added(column)
    ]
    if nested:
        raise InvalidInputError(
            f"the table's columns {nested} are nested, which CSV cannot hold; deliver JSON or Parquet"
        )
    return types


def _text(name: str, kind: DataType) -> Column:
    """The cell; an empty one is null for every type but text, also when it is quoted."""
    cell = F.col(_CELLS).getField(name)
    return cell if kind == Atomic(name="string") else F.nullif(cell, F.lit(""))
