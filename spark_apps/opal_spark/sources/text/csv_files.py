"""CSV: cells are read as texts and converted to the table's types.

All files of a source must have the same header.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from opal_lake.definition.schema import Atomic, DataType
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.engine.columns import columns_named, write_default
from opal_spark.sources.cells import parse_text, patterns_of
from opal_spark.sources.marks import fault_of, file_column, file_name, mark
from opal_spark.sources.paths import open_files, refuse_options
from opal_spark.sources.text.csv_header import Header, csv_options, read_header
from opal_spark.sources.text.csv_lines import MULTI_LINE
from opal_spark.sources.text.csv_quotes import refuse_open_quotes

_CORRUPT, _CELLS = "_opal_corrupt", "_opal_cells"
_REFUSED = {
    "mode": "give on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": (
        "bad rows are shown in the result, or written to the table's _opal/rejected folder; "
        "leave it out"
    ),
    "enforceschema": "columns are matched by the header; leave it out",
}
_FORCED = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "enforceSchema": "false",
    "inferSchema": "false",
}
_RAGGED = (
    f"the row has more or fewer cells than columns (where cells hold line breaks: {MULTI_LINE})"
)


def read_csv(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Return rows of the table's columns, with the reasons for bad ones."""
    refuse_options(source, _REFUSED)
    rows, header = _open(spark, source, spec, ignore=ignore)
    given = {name.casefold(): name for name in header.names}
    patterns = patterns_of(source.options)
    values = []
    faults = [F.when(F.col(_CORRUPT).isNotNull(), F.lit(_RAGGED))]
    for column, kind in _atomic_columns(spec).items():
        if column.casefold() not in given:
            # A column with a default, or one that was added to the table
            values.append(write_default(spec, column).alias(column))
            continue
        text = _text(given[column.casefold()], kind)
        values.append(parse_text(text, kind, patterns).alias(column))
        faults.append(fault_of(text, column, kind))
    row_text = F.coalesce(_CORRUPT, F.to_json(_CELLS, {"ignoreNullFields": "false"}))
    return mark(rows.select("*", *values), spec, faults, file_name(), row_text)


def _open(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool
) -> tuple[DataFrame, Header]:
    """Return a struct of texts for each row, and the header of the files.

    The texts are the cells, and the values in names of folders. Spark compares the header of each
    file with the header of the first file.
    """
    header = read_header(spark, source, spec, ignore=ignore)
    options = csv_options(source)
    refuse_open_quotes(spark, source, options)
    schema = StructType([StructField(name, StringType()) for name in (*header.cells, _CORRUPT)])
    rows = open_files(spark, source, "csv", {**options, **_FORCED}, schema)
    cells = F.struct(*columns_named(header.names))
    return rows.select(cells.alias(_CELLS), _CORRUPT, file_column(rows)), header


def _atomic_columns(spec: TableSpec) -> dict[str, Atomic]:
    """Return the types of the table's columns, which must not be nested."""
    types: dict[str, Atomic] = {}
    nested = []
    for column in spec.schema.fields:
        if isinstance(column.type, Atomic):
            types[column.name] = column.type
        # A nested column that was added to the table later is null
        elif not spec.schema.is_optional(column):
            nested.append(column.name)
    if nested:
        raise InvalidInputError(
            f"the table's columns {nested} are nested, which CSV cannot hold; "
            "deliver JSON or Parquet"
        )
    return types


def _text(name: str, kind: DataType) -> Column:
    # An empty cell, quoted or not, is null for every type but text
    cell = F.col(_CELLS).getField(name)
    if kind == Atomic(name="string"):
        return cell
    return F.nullif(cell, F.lit(""))
