"""JSON: a line is parsed once into a variant, which keeps numbers as they were written, and from there into the table's types.

A parser that is told the types would round decimals, take the last of equal keys, and leave out unknown keys and whatever follows the
first value of a line. Texts are parsed in brackets, so that a second value is seen.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from opal_lake.errors import InvalidInputError
from opal_lake.schema import Array, Atomic, DataType, Field, Map, Struct
from opal_lake.source import Files
from opal_lake.table_spec import TableSpec
from opal_spark.columns import quoted
from opal_spark.sources.cells import Patterns, parse_text, patterns_of
from opal_spark.sources.marks import FILE, fault_of, file_column, file_name, mark
from opal_spark.sources.paths import is_set, open_files, refuse_options
from opal_spark.sources.variants import Place, decode, fields_type, keys_of, parse_value, text_of, unknown_key

_REFUSED = {
    "mode": "say on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": "bad rows are shown in the result, or kept in the table's _opal/rejected folder",
    "encoding": "JSON is read as UTF-8; convert the files",
    "charset": "JSON is read as UTF-8; convert the files",
}
_TEXT, _OBJECT, _MORE, _FIELDS, _KEYS, _READ = (f"_opal_{name}" for name in ("text", "object", "more", "fields", "keys", "read"))
_NO_OBJECT = "no JSON object, or a key twice in it (where one document spans lines, set options={'multiLine': 'true'})"
_SECOND_VALUE = "more than one JSON value on a line"


def read_json(spark: SparkSession, source: Files, spec: TableSpec) -> DataFrame:
    """Rows of the table's columns, with what is wrong with them. An absent key is null."""
    refuse_options(source, _REFUSED)
    _check_map_keys(spec)
    rows = _objects(spark, source)
    inside = [column for column in spec.schema.fields if column.name not in rows.columns]
    patterns = patterns_of(source.options)
    first = F.coalesce(
        F.when(F.col(_FIELDS).isNull(), F.lit(_NO_OBJECT)),
        F.when(F.col(_MORE), F.lit(_SECOND_VALUE)),
        unknown_key(F.col(_KEYS), F.col(_FIELDS), inside),
    )
    taken = rows.select("*", F.try_variant_get(_OBJECT, "$", fields_type(inside)).alias(_FIELDS), keys_of(F.col(_OBJECT)).alias(_KEYS))
    read = taken.select("*", *[_read(column, place, patterns) for place, column in enumerate(inside)])
    ...


def _objects(spark: SparkSession, source: Files) -> DataFrame:
    """One JSON value a row, unparsable ones as null."""
    whole = is_set(source, "multiLine")
    options = {**source.options, "wholetext": str(whole).lower()}
    rows = open_files(spark, source, "text", options, StructType().add("value", StringType()))
