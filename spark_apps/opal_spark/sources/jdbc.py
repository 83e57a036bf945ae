"""Databases over JDBC.

A table's column may be narrower than the database's column. Then values are converted through
their text, and a value that does not fit exactly is a fault. PostgreSQL itself writes the text of
decimals and times, because its driver rounds decimals, fails on NaN, shifts times by the JVM's
zone, and reads an infinite time as the last one of the year 9999.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.definition.added_columns import refuse_former
from opal_lake.definition.schema import (
    Array,
    Atomic,
    DataType,
    Field,
    decimal_parts,
    schema_of_arrow,
)
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.source import Jdbc
from opal_spark.engine.assign import assigned_columns, unknown_fields
from opal_spark.engine.columns import arrow_of_spark, quoted
from opal_spark.engine.stored_values import fits
from opal_spark.sources.cells import parse_text, wrong_type
from opal_spark.sources.connection import connection_options, database, partition_column, relation
from opal_spark.sources.marks import fault_of, mark

_CELLS, _AS_TEXT = "_opal_cells", "_opal_as_text"
_WHOLE = ("byte", "short", "integer", "long")
_TIMES = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A column of the database.

    `target` is the table's column if values are converted through their text, otherwise None.
    `in_database` is set if the database itself writes the text.
    """

    given: Field
    target: Field | None = None
    in_database: bool = False

    @property
    def value(self) -> Column:
        return F.col(_CELLS).getField(self.given.name)

    @property
    def text(self) -> Column:
        if self.in_database:
            return self.value
        return self.value.cast("string")


def read_jdbc(
    spark: SparkSession, source: Jdbc, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Return rows of the table's columns, with the reasons for bad ones."""
    schema = _load(spark, source, relation(source)).schema
    refuse_commit_column(spec, schema.names)
    left_out = unknown_fields(schema, spec).names if ignore else []
    refuse_former(spec.schema, left_out, dropped=False)
    known = StructType([field for field in schema if field.name not in left_out])
    given = schema_of_arrow(arrow_of_spark(known)).fields
    cells = [_plan_cell(column, spec, source) for column in given]
    partition = partition_column(source)
    loaded = _load(spark, source, _with_texts(relation(source), cells, partition))
    loaded_cells = F.struct(*[_loaded(cell, partition) for cell in cells])
    rows = loaded.select(loaded_cells.alias(_CELLS))
    values = [_value(cell).alias(cell.given.name) for cell in cells]
    rows = rows.select("*", *values)
    rows = rows.select(_CELLS, *assigned_columns(rows, spec))
    parsed_cells = [cell for cell in cells if cell.target is not None]
    faults = [_fault(cell) for cell in parsed_cells]
    position = F.lit(f"jdbc:{source.table or 'query'}")
    text = F.to_json(_CELLS, {"ignoreNullFields": "false"})
    return mark(rows, spec, faults, position, text)


def _load(spark: SparkSession, source: Jdbc, table: str) -> DataFrame:
    return (
        spark.read.format("jdbc")
        .options(**connection_options(source))
        .option("dbtable", table)
        .load()
    )


def _plan_cell(given: Field, spec: TableSpec, source: Jdbc) -> Cell:
    """Decide how a column of the database becomes a column of the table."""
    columns = {column.name.casefold(): column for column in spec.schema.fields}
    target = columns.get(given.name.casefold())
    if target is None:
        return Cell(given=given)
    type_names = _atomic_types(given.type, target.type)
    if type_names is None or not _is_reachable(*type_names):
        return Cell(given=given)
    source_type, target_type = type_names
    if database(source) == "postgresql" and source_type not in _WHOLE:
        return Cell(given=given, target=target, in_database=True)
    # A type that fits is cast. A list that does not fit is refused when columns are assigned.
    if fits(source_type, target_type) or isinstance(given.type, Array):
        return Cell(given=given)
    return Cell(given=given, target=target)


def _atomic_types(given: DataType, target: DataType) -> tuple[str, str] | None:
    """Return the names of two atomic types, or of the element types of two lists.

    None for other types.
    """
    match given, target:
        case Atomic(name=source_type), Atomic(name=other):
            return source_type, other
        case Array(element=Field(type=Atomic(name=source_type))), Array(
            element=Field(type=Atomic(name=other))
        ):
            return source_type, other
    return None


def _is_reachable(given: str, target: str) -> bool:
    """Return whether values of one type may be exact values of the other.

    A time without a zone is read as a time in the session's zone.
    """
    if given in _TIMES:
        return given == target or (given, target) == ("timestamp_ntz", "timestamp")
    return _is_exact_number(given) and _is_exact_number(target)


def _is_exact_number(name: str) -> bool:
    return name in _WHOLE or decimal_parts(name) is not None


def _with_texts(whole: str, cells: Sequence[Cell], partition: str | None) -> str:
    """Return the relation with the texts of cells that are `in_database`.

    The column by which the read is split is there twice: with its own type, and as text.
    """
    if not any(cell.in_database for cell in cells):
        return whole
    items = [_postgres_item(cell, partition) for cell in cells]
    return f"(SELECT {', '.join(items)} FROM {whole}) opal_texts"


def _postgres_item(cell: Cell, partition: str | None) -> str:
    name = '"' + cell.given.name.replace('"', '""') + '"'
    if not cell.in_database:
        return name
    text_type = "text[]" if isinstance(cell.given.type, Array) else "text"
    text = f"{name}::{text_type}"
    if cell.given.name == partition:
        return f'{name}, {text} AS "{_AS_TEXT}"'
    return f"{text} AS {name}"


def _loaded(cell: Cell, partition: str | None) -> Column:
    name = cell.given.name
    if cell.in_database and name == partition:
        return F.col(_AS_TEXT).alias(name)
    return F.col(quoted(name))


def _value(cell: Cell) -> Column:
    match cell.target:
        case None:
            return cell.value
        case Field(type=Array(element=Field(type=Atomic() as kind))):
            return F.transform(cell.value, lambda text: parse_text(text, kind, {}))
        case Field(type=Atomic() as kind):
            return parse_text(cell.text, kind, {})
    raise AssertionError(cell)


def _fault(cell: Cell) -> Column:
    """Return the reason if a cell's value is not a value of its target."""
    target = cell.target
    assert target is not None
    if isinstance(target.type, Atomic):
        return fault_of(cell.text, target.name, target.type)
    assert isinstance(target.type, Array)
    element_type = target.type.element.type
    assert isinstance(element_type, Atomic)
    reason = wrong_type(f"{target.name}.element", element_type)
    # An element that does not fit has become null
    has_new_nulls = _null_count(cell.value) != _null_count(F.col(quoted(target.name)))
    return F.when(has_new_nulls, F.lit(reason))


def _null_count(values: Column) -> Column:
    return F.size(F.filter(values, lambda element: element.isNull()))
