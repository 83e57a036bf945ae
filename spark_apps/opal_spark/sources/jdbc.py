"""Databases over JDBC. A column narrower than the database's is filled as far as values fit exactly, by way of their text.

PostgreSQL itself writes the text of decimals and times: the driver's way rounds, stops at NaN, shifts with the JVM's zone, and takes an
infinite time for the last one of the year 9999.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.schema import Array, Atomic, DataType, Field, decimal_parts, schema_of_arrow
from opal_lake.source import Jdbc
from opal_lake.table_spec import TableSpec
from opal_spark.assign import assigned_columns, fits
from opal_spark.columns import arrow_of_spark, quoted
from opal_spark.sources.cells import parse_text, wrong_type
from opal_spark.sources.connection import connection_options, database, partition_column, relation
from opal_spark.sources.marks import fault_of, mark

_CELLS, _AS_TEXT = "_opal_cells", "_opal_as_text"
_WHOLE = ("byte", "short", "integer", "long")
_TIMES = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A column of the database, and the table's column if values go by way of text, which the database may write itself."""

    given: Field
    wanted: Field | None = None
    in_database: bool = False

    @property
    def value(self) -> Column:
        return F.col(_CELLS).getField(self.given.name)

    @property
    def text(self) -> Column:
        return self.value if self.in_database else self.value.cast("string")


def read_jdbc(spark: SparkSession, source: Jdbc, spec: TableSpec) -> DataFrame:
    """Rows of the table's columns, with what is wrong with them."""
    given = schema_of_arrow(arrow_of_spark(_load(spark, source, relation(source)).schema)).fields
    cells = [_plan_cell(one, spec, source) for one in given]
    partition = partition_column(source)
    rows = _load(spark, source, _with_texts(relation(source), cells, partition))
    rows = rows.select(F.struct(*[_loaded(cell, partition) for cell in cells]).alias(_CELLS))
    valued = rows.select("*", *[_value(cell).alias(cell.given.name) for cell in cells])
    fitted = valued.select(_CELLS, *assigned_columns(valued, spec))
    faults = [_fault(cell, cell.wanted) for cell in cells if cell.wanted is not None]
    return mark(fitted, spec, faults, F.lit(f"jdbc:{source.table or 'query'}"), F.to_json(_CELLS, {"ignoreNullFields": "false"}))


def _load(spark: SparkSession, source: Jdbc, table: str) -> DataFrame:
    return spark.read.format("jdbc").options(**connection_options(source)).option("dbtable", table).load()


def _plan_cell(given: Field, spec: TableSpec, source: Jdbc) -> Cell:
    wanted = next((column for column in spec.schema.fields if column.name.casefold() == given.name.casefold()), None)
    inner = _atomic_types(given.type, wanted.type) if wanted is not None else None
    if inner is None or not _is_reachable(*inner):
        return Cell(given=given)
    one, other = inner
    if database(source) == "postgresql" and one not in _WHOLE:
        return Cell(given=given, wanted=wanted, in_database=True)
    return Cell(given=given) if fits(one, other) or isinstance(given.type, Array) else Cell(given=given, wanted=wanted)


def _atomic_types(given: DataType, wanted: DataType) -> tuple[str, str] | None:
    """Their names, or those of the elements of lists."""
    match given, wanted:
        case Atomic(name=one), Atomic(name=other):
            return one, other
        case Array(element=Field(type=Atomic(name=one))), Array(element=Field(type=Atomic(name=other))):
            return one, other
    return None


def _is_reachable(given: str, wanted: str) -> bool:
    """Whether values of one type may be exact ones of the other. A time without a zone is taken to be in the session's."""
    if given in _TIMES:
        return given == wanted or (given, wanted) == ("timestamp_ntz", "timestamp")
    return _is_exact_number(given) and _is_exact_number(wanted)


def _is_exact_number(name: str) -> bool:
    return name in _WHOLE or decimal_parts(name) is not None


def _with_texts(whole: str, cells: Sequence[Cell], partition: str | None) -> str:
    """A relation in which PostgreSQL writes texts itself; the column by which a read is split stays what it is, beside its text."""
    if not any(cell.in_database for cell in cells):
        return whole
    items = [_postgres_item(cell, partition) for cell in cells]
    return f"(SELECT {', '.join(items)} FROM {whole}) opal_texts"


def _postgres_item(cell: Cell, partition: str | None) -> str:
    name = '"' + cell.given.name.replace('"', '""') + '"'
    if not cell.in_database:
        return name
    text = f"{name}::text[]" if isinstance(cell.given.type, Array) else f"{name}::text"
    return f'{name}, {text} AS "{_AS_TEXT}"' if cell.given.name == partition else f"{text} AS {name}"


def _loaded(cell: Cell, partition: str | None) -> Column:
    name = cell.given.name
    return F.col(_AS_TEXT).alias(name) if cell.in_database and name == partition else F.col(quoted(name))


def _value(cell: Cell) -> Column:
    match cell.wanted:
        case None:
            return cell.value
        case Field(type=Array(element=Field(type=Atomic() as kind))):
            return F.transform(cell.value, lambda text: parse_text(text, kind, {}))
        case Field(type=Atomic() as kind):
            return parse_text(cell.text, kind, {})
    raise AssertionError(cell)


def _fault(cell: Cell, wanted: Field) -> Column:
    if isinstance(wanted.type, Atomic):
        return fault_of(cell.text, wanted.name, wanted.type)
    assert isinstance(wanted.type, Array)
    assert isinstance(wanted.type.element.type, Atomic)
    nulls = [F.size(F.filter(values, lambda one: one.isNull())) for values in (cell.value, F.col(quoted(wanted.name)))]
    return F.when(nulls[0] != nulls[1], F.lit(wrong_type(f"{wanted.name}.element", wanted.type.element.type)))
