"""JSON values to a column's type. Numbers do not become strings, objects become structs and maps only; faults name their path."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.definition.schema import Array, Atomic, DataType, Field, Map, Struct, decimal_parts
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import quoted
from opal_spark.sources.cells import Patterns, bind, parse_text, wrong_type

# What a variant that is no text may look like as text: only then is it worth asking for its type.
_MAY_BE_NO_TEXT = r"^(\{|\[|-?[0-9]|true$|false$|NaN$|-?Infinity$)"
_EXACT_DOUBLE_CHARACTERS = 16
_SHOWN_KEY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a value: its type, and its path in the column."""

    kind: DataType
    path: str
    patterns: Patterns

    def inside(self, kind: DataType, name: str) -> "Target":
        return Target(kind=kind, path=f"{self.path}.{name}", patterns=self.patterns)


def text_of(value: Column) -> Column:
    """A variant as text; null for JSON's null."""
    return F.try_variant_get(value, "$", "string")


def fields_type(fields: Sequence[Field]) -> str:
    """The type that takes an object apart by its first level."""
    return f"struct<{', '.join(f'{quoted(field.name)}: variant' for field in fields)}>"


def parse_value(value: Column, text: Column, kind: Atomic, patterns: Patterns) -> Column:
    """An atomic value, null if it is not valid; `text` is `text_of(value)`."""
    if kind.name == "string":
        return F.when(_is_text(value, text), text)
    if kind.name == "binary":
        return F.when(_is_text(value, text), F.try_to_binary(text, F.lit("base64")))
    parsed = parse_text(text, kind, patterns)
    if kind.name == "boolean":
        return F.when(text.isin("true", "false"), parsed)
    if decimal_parts(kind.name):  # numbers with an exponent or over 38 digits went through a double
        return F.when(
            (F.length(text) <= _EXACT_DOUBLE_CHARACTERS) | (F.schema_of_variant(value) != "DOUBLE"),
            parsed,
        )
    return parsed


def _is_text(value: Column, text: Column) -> Column:
    return ~text.rlike(_MAY_BE_NO_TEXT) | (F.schema_of_variant(value) == "STRING")


def unknown_key(keys: Column, typed: Column, fields: Sequence[Field], where: str = "") -> Column:
    """The first key of an object that is not a field; `typed` is the object as a struct of its fields."""
    present = sum(
        (typed.getField(field.name).isNotNull().cast("int") for field in fields), F.lit(0)
    )
    known = F.array(*[F.lit(field.name) for field in fields])
    name = F.substring(F.get(F.array_except(keys, known), F.lit(0)), 1, _SHOWN_KEY)
    return F.when(
        F.size(keys) > present, F.concat(F.lit("unknown key '"), name, F.lit(f"'{where}"))
    )


def keys_of(value: Column, path: str = "$") -> Column:
    return F.map_keys(F.try_variant_get(value, path, "map<string, variant>"))


def decode(value: Column, target: Target) -> Column:
    """`struct<value, fault>`: the typed value, and the first thing wrong inside it."""
    match target.kind:
        case Struct(fields=fields):
            typed = F.try_variant_get(value, "$", fields_type(fields))
            return bind(typed, lambda typed: _decode_struct(value, typed, fields, target))
        case Array():
            return bind(
                F.try_variant_get(value, "$", "array<variant>"),
                lambda typed: _decode_array(value, typed, target),
            )
        case Map():
            return bind(
                F.try_variant_get(value, "$", "map<string, variant>"),
                lambda typed: _decode_map(value, typed, target),
            )
        case Atomic() as kind:
            return bind(text_of(value), lambda text: _decode_atomic(value, text, kind, target))


def _result(value: Column, *faults: Column) -> Column:
    return F.struct(value.alias("value"), F.coalesce(*faults).alias("fault"))


def _decode_atomic(value: Column, text: Column, kind: Atomic, target: Target) -> Column:
    reason = F.lit(wrong_type(target.path, kind))
    return bind(
        parse_value(value, text, kind, target.patterns),
        lambda parsed: _result(parsed, F.when(text.isNotNull() & parsed.isNull(), reason)),
    )


def _decode_struct(value: Column, typed: Column, fields: Sequence[Field], target: Target) -> Column:
    members = [
        decode(typed.getField(field.name), target.inside(field.type, field.name)).alias(f"m{i}")
        for i, field in enumerate(fields)
    ]
    unknown = unknown_key(keys_of(value), typed, fields, f" in column '{target.path}'")

    def joined(read: Column) -> Column:
        values = [
            read.getField(f"m{i}").getField("value").alias(field.name)
            for i, field in enumerate(fields)
        ]
        faults = [read.getField(f"m{i}").getField("fault") for i in range(len(fields))]
        return _result(
            F.when(typed.isNotNull(), F.struct(*values)),
            _shape(value, typed, target, "object"),
            unknown,
            *faults,
        )

    return bind(F.struct(*members), joined)


def _decode_array(value: Column, typed: Column, target: Target) -> Column:
    assert isinstance(target.kind, Array)
    inside = target.inside(target.kind.element.type, "element")
    elements = F.transform(typed, lambda element: decode(element, inside))
    return bind(
        elements,
        lambda read: _result(
            F.transform(read, lambda element: element.getField("value")),
            _shape(value, typed, target, "list"),
            _first_fault(read),
        ),
    )


def _decode_map(value: Column, typed: Column, target: Target) -> Column:
    """Keys are strings in JSON. Two of them may be equal after the cast: that is a fault."""
    assert isinstance(target.kind, Map)
    key, inside = target.kind.key.type, target.inside(target.kind.value.type, "value")
    if not isinstance(key, Atomic):
        raise InvalidInputError(
            f"column {target.path!r} has nested keys, which JSON cannot hold; deliver Parquet or ORC"
        )
    pairs = F.transform(
        F.map_entries(typed),
        lambda entry: F.struct(
            parse_text(entry.getField("key"), key, target.patterns).alias("key"),
            decode(entry.getField("value"), inside).alias("item"),
        ),
    )
    reason = F.lit(wrong_type(f"{target.path}.key", key))

    def joined(read: Column) -> Column:
        keys = F.transform(read, lambda entry: entry.getField("key"))
        fit = F.forall(keys, lambda entry: entry.isNotNull()) & (
            F.size(F.array_distinct(keys)) == F.size(keys)
        )
        items = F.transform(read, lambda entry: entry.getField("item"))
        values = F.map_from_arrays(keys, F.transform(items, lambda entry: entry.getField("value")))
        return _result(
            F.when(fit, values),
            _shape(value, typed, target, "object"),
            F.when(~fit, reason),
            _first_fault(items),
        )

    return bind(pairs, joined)


def _first_fault(read: Column) -> Column:
    return F.get(
        F.filter(
            F.transform(read, lambda decoded: decoded.getField("fault")),
            lambda fault: fault.isNotNull(),
        ),
        F.lit(0),
    )


def _shape(value: Column, typed: Column, target: Target, expected: str) -> Column:
    is_other = value.isNotNull() & ~F.is_variant_null(value) & typed.isNull()
    return F.when(is_other, F.lit(f"column '{target.path}' is no {expected}"))
