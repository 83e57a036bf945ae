"""JSON values to a column's type. A number is not taken for a text, nor an object for anything else; faults are named by their path."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError
from opal_lake.schema import Array, Atomic, DataType, Field, Map, Struct, decimal_parts
from opal_spark.columns import quoted
from opal_spark.sources.cells import Patterns, bind, parse_text, wrong_type

# What a variant that is no text may look like as text: only then is it worth asking for its type.
_MAY_BE_NO_TEXT = r"^(\{|\[|-?[0-9]|true$|false$|NaN$|-?Infinity$)"
_EXACT_DOUBLE_CHARACTERS = 16
_SHOWN_KEY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value on its way: the type it should have, and where it stands."""

    kind: DataType
    path: str
    patterns: Patterns

    def inside(self, kind: DataType, name: str) -> "Place":
        return Place(kind=kind, path=f"{self.path}.{name}", patterns=self.patterns)


def text_of(value: Column) -> Column:
    """A variant as text; null for JSON's null."""
    return F.try_variant_get(value, "$", "string")


def fields_type(fields: Sequence[Field]) -> str:
    """The type that takes an object apart by its first level."""
    return f"struct<{', '.join(f'{quoted(field.name)}: variant' for field in fields)}>"


def parse_value(value: Column, text: Column, kind: Atomic, patterns: Patterns) -> Column:
    """An atomic value, null where it is none; `text` is `text_of(value)`."""
    if kind.name == "string":
        return F.when(_is_text(value, text), text)
    if kind.name == "binary":
        return F.when(_is_text(value, text), F.try_to_binary(text, F.lit("base64")))
    parsed = parse_text(text, kind, patterns)
    if kind.name == "boolean":
        return F.when(text.isin("true", "false"), parsed)
    if decimal_parts(kind.name):  # numbers with an exponent or over 38 digits went through a double
        return F.when((F.length(text) <= _EXACT_DOUBLE_CHARACTERS) | (F.schema_of_variant(value) != "DOUBLE"), parsed)
    return parsed


def _is_text(value: Column, text: Column) -> Column:
    return ~text.rlike(_MAY_BE_NO_TEXT) | (F.schema_of_variant(value) == "STRING")


def unknown_key(keys: Column, found: Column, fields: Sequence[Field], where: str = "") -> Column:
    """The first key of an object that is no field; `found` is the object by its fields."""
    present = sum((found.getField(field.name).isNotNull().cast("int") for field in fields), F.lit(0))
    known = F.array(*[F.lit(field.name) for field in fields])
    name = F.substring(F.get(F.array_except(keys, known), F.lit(0)), 1, _SHOWN_KEY)
    return F.when(F.size(keys) > present, F.concat(F.lit("unknown key '"), name, F.lit(f"'{where}")))


def keys_of(value: Column, path: str = "$") -> Column:
    return F.map_keys(F.try_variant_get(value, path, "map<string, variant>"))


def decode(value: Column, place: Place) -> Column:
    """`struct<value, fault>`: the typed value, and the first thing wrong inside it."""
    match place.kind:
        case Struct(fields=fields):
            found = F.try_variant_get(value, "$", fields_type(fields))
            return bind(found, lambda found: _decode_struct(value, found, fields, place))
        case Array():
            return bind(F.try_variant_get(value, "$", "array<variant>"), lambda found: _decode_array(value, found, place))
        case Map():
            return bind(F.try_variant_get(value, "$", "map<string, variant>"), lambda found: _decode_map(value, found, place))
        case Atomic() as kind:
            return bind(text_of(value), lambda text: _decode_atomic(value, text, kind, place))


def _result(value: Column, *faults: Column) -> Column:
    return F.struct(value.alias("value"), F.coalesce(*faults).alias("fault"))


def _decode_atomic(value: Column, text: Column, kind: Atomic, place: Place) -> Column:
    reason = F.lit(wrong_type(place.path, kind))
    return bind(parse_value(value, text, kind, place.patterns), lambda one: _result(one, F.when(text.isNotNull() & one.isNull(), reason)))


def _decode_struct(value: Column, found: Column, fields: Sequence[Field], place: Place) -> Column:
    members = [decode(found.getField(field.name), place.inside(field.type, field.name)).alias(f"m{i}") for i, field in enumerate(fields)]
    unknown = unknown_key(keys_of(value), found, fields, f" in column '{place.path}'")

    def joined(read: Column) -> Column:
        values = [read.getField(f"m{i}").getField("value").alias(field.name) for i, field in enumerate(fields)]
        faults = [read.getField(f"m{i}").getField("fault") for i in range(len(fields))]
        return _result(F.when(found.isNotNull(), F.struct(*values)), _shape(value, found, place, "object"), unknown, *faults)

    return bind(F.struct(*members), joined)


def _decode_array(value: Column, found: Column, place: Place) -> Column:
    assert isinstance(place.kind, Array)
    inside = place.inside(place.kind.element.type, "element")
    elements = F.transform(found, lambda one: decode(one, inside))
    return bind(
        elements,
        lambda read: _result(F.transform(read, lambda one: one.getField("value")), _shape(value, found, place, "list"), _first_fault(read)),
    )


def _decode_map(value: Column, found: Column, place: Place) -> Column:
    """Keys are texts in JSON, and two of them may be the same value of another type."""
    assert isinstance(place.kind, Map)
    key, inside = place.kind.key.type, place.inside(place.kind.value.type, "value")
    if not isinstance(key, Atomic):
        raise InvalidInputError(f"column {place.path!r} has nested keys, which JSON cannot hold; deliver Parquet or ORC")
    pairs = F.transform(
        F.map_entries(found),
        lambda one: F.struct(
            parse_text(one.getField("key"), key, place.patterns).alias("key"), decode(one.getField("value"), inside).alias("item")
        ),
    )
    reason = F.lit(wrong_type(f"{place.path}.key", key))

    def joined(read: Column) -> Column:
        keys = F.transform(read, lambda one: one.getField("key"))
        fit = F.forall(keys, lambda one: one.isNotNull()) & (F.size(F.array_distinct(keys)) == F.size(keys))
        items = F.transform(read, lambda one: one.getField("item"))
        values = F.map_from_arrays(keys, F.transform(items, lambda one: one.getField("value")))
        return _result(F.when(fit, values), _shape(value, found, place, "object"), F.when(~fit, reason), _first_fault(items))

    return bind(pairs, joined)


def _first_fault(read: Column) -> Column:
    return F.get(F.filter(F.transform(read, lambda one: one.getField("fault")), lambda fault: fault.isNotNull()), F.lit(0))


def _shape(value: Column, found: Column, place: Place, wanted: str) -> Column:
    is_other = value.isNotNull() & ~F.is_variant_null(value) & found.isNull()
    return F.when(is_other, F.lit(f"column '{place.path}' is no {wanted}"))
