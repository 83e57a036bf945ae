"""JSON: a text is parsed once into a variant, whose values are converted to the table's types.

The variant has numbers as they were written. Spark's parser with a schema would round decimals,
read only the last of equal keys, and ignore unknown keys and all text after the first value of a
line. A text is parsed in brackets, as an array, so that a second value is found.
"""

from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from opal_lake.definition.added_columns import former_name, refuse_former
from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column, source_has_commit
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.engine.columns import columns_named, default_column
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
    "mode": "give on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": (
        "bad rows are shown in the result, or written to the table's _opal/rejected folder; "
        "leave it out"
    ),
    "encoding": "JSON is read as UTF-8; convert the files",
    "charset": "JSON is read as UTF-8; convert the files",
}
_TEXT, _OBJECT, _MORE, _FOLDERS = "_opal_text", "_opal_object", "_opal_more", "_opal_folders"
_FIELDS, _KEYS, _PARSED = "_opal_fields", "_opal_keys", "_opal_read"
_NOT_AN_OBJECT = (
    "the text is not one JSON object, or has a key twice "
    f"(where a document spans lines: {MULTI_LINE})"
)
_TAKE_NEW = " (on_new_columns='add' or 'ignore' takes such rows)"
MORE_VALUES = "more than one JSON value on a line"


def read_json(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> DataFrame:
    """Return rows of the table's columns, with the reasons for bad ones.

    A row without a key has the column's default, or null.
    """
    refuse_options(source, _REFUSED)
    patterns = patterns_of(source.options)
    rows = _objects(spark, source)
    folders = _folders(rows, spec, ignore=ignore)
    refuse_commit_column(spec, folders)
    fields = [column for column in spec.schema.fields if column.name not in folders]
    # Each select computes what the next one uses several times
    renamed = spec.schema.renamed
    of_former_names = [replace(column, name=name) for name, column in renamed.items()]
    members_type = fields_type([*fields, *of_former_names])
    members = F.try_variant_get(_OBJECT, F.lit("$"), members_type)
    rows = rows.select("*", members.alias(_FIELDS), keys_of(F.col(_OBJECT)).alias(_KEYS))
    parsed_members = [_parsed(column, patterns).alias(_parsed_name(column)) for column in fields]
    rows = rows.select("*", *parsed_members)
    values = [_value(column, patterns).alias(column.name) for column in fields]
    rows = rows.select("*", *values, *_from_folders(folders, spec, patterns))
    faults = [
        F.when(F.col(_FIELDS).isNull(), F.lit(_NOT_AN_OBJECT)),
        F.when(F.col(_MORE), F.lit(MORE_VALUES)),
    ]
    faults += [_fault_of_former(name, column) for name, column in renamed.items()]
    if not ignore:
        faults.append(unknown_key(F.col(_KEYS), F.col(_FIELDS), fields, _TAKE_NEW))
    if spec.orders_by_commit:
        has_value = F.col(_parsed_name(spec.delta)).isNotNull()
        faults.append(F.when(has_value, F.lit(str(source_has_commit()))))
        # Also in bad rows, so that the job can fill the column
        rows = rows.withColumn(spec.delta.name, F.lit(None).cast("timestamp"))
    faults += [_fault(column) for column in fields]
    for name, given in folders.items():
        faults.append(fault_of(_folder(given), name, _atomic(spec, name)))
    row_text = F.coalesce(_TEXT, F.to_json(_OBJECT))
    return mark(rows, spec, faults, file_name(), row_text)


def _objects(spark: SparkSession, source: Files) -> DataFrame:
    """Return a row for each JSON value, with null for a text that is not valid.

    A row has its text, unless the value is an element of a document that is a list.
    """
    is_multi_line = is_set(source, "multiLine")
    options = {**source.options, "wholetext": str(is_multi_line)}
    schema = StructType().add("value", StringType())
    texts = open_files(spark, source, "text", options, schema)
    folders = F.struct(*columns_named(name for name in texts.columns if name != "value"))
    text = F.col("value")
    if is_multi_line:
        # Without whole texts Spark removes the byte order mark itself
        text = F.regexp_replace("value", "^\ufeff", "")
    parsed = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]")))
    rows = texts.where(F.col("value").rlike(r"\S")).select(
        F.col("value").alias(_TEXT),
        parsed.alias(_OBJECT),
        _closes_array(text).alias(_MORE),
        folders.alias(_FOLDERS),
        file_column(texts),
    )
    first = F.try_variant_get(_OBJECT, "$[0]", "variant")
    second = F.try_variant_get(_OBJECT, "$[1]", "variant")
    has_more = second.isNotNull() | F.col(_MORE)
    rows = rows.select(_TEXT, first.alias(_OBJECT), has_more.alias(_MORE), _FOLDERS, FILE)
    return _elements(rows) if is_multi_line else rows


def _closes_array(text: Column) -> Column:
    """Return whether a `]` of a text closes the array around the text.

    Spark ignores the text after such a `]`.
    """
    array_with_zero = F.concat(F.lit("["), text, F.lit(",0]"))
    # The array has one element if the zero is after the `]` that closes it
    is_closed = F.coalesce(F.json_array_length(array_with_zero) == 1, F.lit(False))
    # Only a text with a `]` is parsed a second time
    has_bracket = F.contains(text, F.lit("]"))
    return F.when(has_bracket, is_closed).otherwise(F.lit(False))


def _elements(documents: DataFrame) -> DataFrame:
    """Return a row for each element of a list, and other documents as they are."""
    listed = F.try_variant_get(_OBJECT, "$", "array<variant>")
    # A list that is followed by another value stays one bad row: an empty list would have no row
    elements = F.when(~F.col(_MORE), listed)
    text = F.when(elements.isNull(), F.col(_TEXT)).alias(_TEXT)
    each = F.explode(F.coalesce(elements, F.array(_OBJECT))).alias(_OBJECT)
    return documents.select(text, each, _MORE, _FOLDERS, FILE)


def _folders(rows: DataFrame, spec: TableSpec, *, ignore: bool) -> dict[str, str]:
    """Return the table's columns that folders name, with the folders' names."""
    declared = {name.casefold(): name for name in spec.schema.names}
    folders, unknown = {}, []
    for name in rows.select(f"{_FOLDERS}.*").columns:
        if name.casefold() in declared:
            folders[declared[name.casefold()]] = name
        else:
            unknown.append(name)
    if ignore:
        refuse_former(spec.schema, unknown, dropped=False)
    if unknown and not ignore:
        raise InvalidInputError(
            f"folders name the columns {unknown}, which the table lacks; "
            "name the files by a pattern, such as 'folder/*/*.json'"
        )
    return folders


def _fault_of_former(name: str, column: Field) -> Column:
    """Return the reason for an object that calls a column by a name that it had."""
    value = text_of(F.col(_FIELDS).getField(name))
    return F.when(value.isNotNull(), F.lit(f"the row has a key {former_name(name, column.name)}"))


def _folder(given: str) -> Column:
    return F.col(_FOLDERS).getField(given)


def _from_folders(folders: dict[str, str], spec: TableSpec, patterns: Patterns) -> list[Column]:
    values = []
    for name, given in folders.items():
        value = parse_text(_folder(given), _atomic(spec, name), patterns)
        values.append(value.alias(name))
    return values


def _atomic(spec: TableSpec, name: str) -> Atomic:
    kind = spec.schema.field(name).type
    if not isinstance(kind, Atomic):
        raise InvalidInputError(
            f"column {name!r} is nested, and a folder's name cannot hold it; rename the folders"
        )
    return kind


def _parsed_name(column: Field) -> str:
    return f"{_PARSED}{column.id}"


def _parsed(column: Field, patterns: Patterns) -> Column:
    """Return the text of an atomic value, or a nested value with its fault."""
    cell = F.col(_FIELDS).getField(column.name)
    if isinstance(column.type, Atomic):
        return text_of(cell)
    return decode(cell, Target(kind=column.type, path=column.name, patterns=patterns))


def _value(column: Field, patterns: Patterns) -> Column:
    parsed = F.col(_parsed_name(column))
    if isinstance(column.type, Atomic):
        cell = F.col(_FIELDS).getField(column.name)
        value = parse_value(cell, parsed, column.type, patterns)
        if column.write is None:
            return value
        # JSON's null is a variant, an absent key is not
        return F.when(cell.isNull(), default_column(column, column.write)).otherwise(value)
    return parsed.getField("value")


def _fault(column: Field) -> Column:
    parsed = F.col(_parsed_name(column))
    if isinstance(column.type, Atomic):
        return fault_of(parsed, column.name, column.type)
    return parsed.getField("fault")
