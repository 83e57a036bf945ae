"""JSON: a text is parsed once into a variant, which keeps numbers as they were written, and from there into the table's types.

A parser that is told the types would round decimals, take the last of equal keys, and leave out unknown keys and whatever follows the
first value of a line. Texts are parsed in brackets, so that a second value is seen.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.engine.columns import quoted
from opal_spark.sources.cells import Patterns, parse_text, patterns_of
from opal_spark.sources.marks import FILE, fault_of, file_column, file_name, mark
from opal_spark.sources.paths import is_set, open_files, refuse_options
from opal_spark.sources.text.csv_lines import MULTI_LINE
from opal_spark.sources.text.variants import (
    Target,
    decode,
    fields_type,
    keys_of,
    parse_value,
    text_of,
    unknown_key,
)

_REFUSED = {
    "mode": "say on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": "bad rows are shown in the result, or kept in the table's _opal/rejected folder",
    "encoding": "JSON is read as UTF-8; convert the files",
    "charset": "JSON is read as UTF-8; convert the files",
}
_TEXT, _OBJECT, _MORE, _FOLDERS = "_opal_text", "_opal_object", "_opal_more", "_opal_folders"
_FIELDS, _KEYS, _READ = "_opal_fields", "_opal_keys", "_opal_read"
_NO_OBJECT = (
    "the text is not one JSON object, or has a key twice "
    f"(where a document spans lines: {MULTI_LINE})"
)
_TAKE_NEW = " (on_new_columns='add' or 'ignore' takes such rows)"
MORE_VALUES = "more than one JSON value on a line"


def read_json(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Rows of the table's columns, with what is wrong with them. An absent key is null."""
    refuse_options(source, _REFUSED)
    patterns = patterns_of(source.options)
    rows = _objects(spark, source)
    folders = _folders(rows, spec, ignore=ignore)
    fields = [column for column in spec.schema.fields if column.name not in folders]
    rows = rows.select(
        "*",
        F.try_variant_get(_OBJECT, F.lit("$"), fields_type(fields)).alias(_FIELDS),
        keys_of(F.col(_OBJECT)).alias(_KEYS),
    )
    rows = rows.select(
        "*", *[_read(column, patterns).alias(f"{_READ}{column.id}") for column in fields]
    )
    rows = rows.select(
        "*",
        *[_value(column, patterns).alias(column.name) for column in fields],
        *_from_folders(folders, spec, patterns),
    )
    whole = [
        F.when(F.col(_FIELDS).isNull(), F.lit(_NO_OBJECT)),
        F.when(F.col(_MORE), F.lit(MORE_VALUES)),
        *([] if ignore else [unknown_key(F.col(_KEYS), F.col(_FIELDS), fields, _TAKE_NEW)]),
    ]
    faults = [_fault(column) for column in fields] + [
        fault_of(_folder(given), name, _atomic(spec, name)) for name, given in folders.items()
    ]
    return mark(rows, spec, [*whole, *faults], file_name(), F.coalesce(_TEXT, F.to_json(_OBJECT)))


def _objects(spark: SparkSession, source: Files) -> DataFrame:
    """One JSON value a row, null where there is none; the text is kept while a row is a whole text."""
    whole = is_set(source, "multiLine")
    texts = open_files(
        spark,
        source,
        "text",
        {**source.options, "wholetext": str(whole)},
        StructType().add("value", StringType()),
    )
    folders = F.struct(*[F.col(quoted(name)) for name in texts.columns if name != "value"]).alias(
        _FOLDERS
    )
    text = F.regexp_replace("value", "^\ufeff", "") if whole else F.col("value")
    parsed = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]"))).alias(_OBJECT)
    rows = texts.where(F.col("value").rlike(r"\S")).select(
        F.col("value").alias(_TEXT),
        parsed,
        _closes_array(text).alias(_MORE),
        folders,
        file_column(texts),
    )
    first, second = (F.try_variant_get(_OBJECT, f"$[{index}]", "variant") for index in (0, 1))
    has_more = second.isNotNull() | F.col(_MORE)
    rows = rows.select(_TEXT, first.alias(_OBJECT), has_more.alias(_MORE), _FOLDERS, FILE)
    return _elements(rows) if whole else rows


def _closes_array(text: Column) -> Column:
    """Return whether a `]` of a text closes the array around it; Spark ignores what follows."""
    before_zero = F.json_array_length(F.concat(F.lit("["), text, F.lit(",0]")))
    is_closed = F.coalesce(before_zero == 1, F.lit(False))
    # Most lines have no `]`, and are not parsed again
    return F.when(F.contains(text, F.lit("]")), is_closed).otherwise(F.lit(False))


def _elements(documents: DataFrame) -> DataFrame:
    """The elements of documents that are lists; a document that is none stays what it is."""
    listed = F.try_variant_get(_OBJECT, "$", "array<variant>")
    # A list that more follows stays one bad row: an empty one would be no row at all
    elements = F.when(~F.col(_MORE), listed)
    text = F.when(elements.isNull(), F.col(_TEXT)).alias(_TEXT)
    each = F.explode(F.coalesce(elements, F.array(_OBJECT))).alias(_OBJECT)
    return documents.select(text, each, _MORE, _FOLDERS, FILE)


def _folders(rows: DataFrame, spec: TableSpec, *, ignore: bool) -> dict[str, str]:
    """The table's columns that come from folders: their names there."""
    given = rows.select(f"{_FOLDERS}.*").columns
    declared = {name.casefold(): name for name in spec.schema.names}
    unknown = [name for name in given if name.casefold() not in declared]
    if unknown and not ignore:
        raise InvalidInputError(
            f"folders name the columns {unknown}, which the table has not; name the files by a glob, as 'folder/*/*.json'"
        )
    return {declared[name.casefold()]: name for name in given if name not in unknown}


def _folder(given: str) -> Column:
    return F.col(_FOLDERS).getField(given)


def _from_folders(folders: dict[str, str], spec: TableSpec, patterns: Patterns) -> list[Column]:
    return [
        parse_text(_folder(given), _atomic(spec, name), patterns).alias(name)
        for name, given in folders.items()
    ]


def _atomic(spec: TableSpec, name: str) -> Atomic:
    kind = spec.schema.field(name).type
    if not isinstance(kind, Atomic):
        raise InvalidInputError(
            f"column {name!r} is nested, and a folder's name cannot hold it; rename the folders"
        )
    return kind


def _read(column: Field, patterns: Patterns) -> Column:
    """What is computed once for each value: its text, or all of a nested one."""
    cell = F.col(_FIELDS).getField(column.name)
    if isinstance(column.type, Atomic):
        return text_of(cell)
    return decode(cell, Target(kind=column.type, path=column.name, patterns=patterns))


def _value(column: Field, patterns: Patterns) -> Column:
    read = F.col(f"{_READ}{column.id}")
    if isinstance(column.type, Atomic):
        return parse_value(F.col(_FIELDS).getField(column.name), read, column.type, patterns)
    return read.getField("value")


def _fault(column: Field) -> Column:
    read = F.col(f"{_READ}{column.id}")
    return (
        fault_of(read, column.name, column.type)
        if isinstance(column.type, Atomic)
        else read.getField("fault")
    )
