"""The conversion of JSON values to a column's type.

A number is not a valid string, and an object is valid only for a struct or a map. A fault names the
path of its value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.definition.schema import Array, Atomic, DataType, Field, Map, Struct, decimal_parts
from opal_lake.errors import InvalidInputError
from opal_spark.engine.columns import quoted
from opal_spark.sources.cells import Patterns, bind, parse_text, wrong_type

# A variant whose text has this form may be a number or another value that is not a string
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
    """Return a variant as text; null for JSON's null."""
    return F.try_variant_get(value, "$", "string")


def fields_type(fields: Sequence[Field]) -> str:
    """Return the type of an object with a variant for each of its members."""
    members = [f"{quoted(field.name)}: variant" for field in fields]
    return f"struct<{', '.join(members)}>"


def parse_value(value: Column, text: Column, kind: Atomic, patterns: Patterns) -> Column:
    """Return an atomic value, null if it is not valid; `text` is `text_of(value)`."""
    if kind.name == "string":
        return F.when(_is_text(value, text), text)
    if kind.name == "binary":
        return F.when(_is_text(value, text), F.try_to_binary(text, F.lit("base64")))
    parsed = parse_text(text, kind, patterns)
    if kind.name == "boolean":
        return F.when(text.isin("true", "false"), parsed)
    if decimal_parts(kind.name):
        # The variant has a number with an exponent or over 38 digits as a double, maybe rounded
        is_short = F.length(text) <= _EXACT_DOUBLE_CHARACTERS
        is_exact = is_short | (F.schema_of_variant(value) != "DOUBLE")
        return F.when(is_exact, parsed)
    return parsed


def _is_text(value: Column, text: Column) -> Column:
    return ~text.rlike(_MAY_BE_NO_TEXT) | (F.schema_of_variant(value) == "STRING")


def unknown_key(keys: Column, typed: Column, fields: Sequence[Field], where: str = "") -> Column:
    """Return the reason if an object has a key that is not a field.

    `typed` is the object as a struct of variants, which are null for absent fields. `where` is
    appended to the reason.
    """
    present = F.lit(0)
    for field in fields:
        present = present + typed.getField(field.name).isNotNull().cast("int")
    known = F.array(*[F.lit(field.name) for field in fields])
    first_unknown = F.get(F.array_except(keys, known), F.lit(0))
    name = F.substring(first_unknown, 1, _SHOWN_KEY)
    reason = F.concat(F.lit("unknown key '"), name, F.lit(f"'{where}"))
    # Counting is cheaper than comparing keys, which is done only for objects with an unknown key
    return F.when(F.size(keys) > present, reason)


def keys_of(value: Column, path: str = "$") -> Column:
    return F.map_keys(F.try_variant_get(value, path, "map<string, variant>"))


def decode(value: Column, target: Target) -> Column:
    """Return `struct<value, fault>`: the typed value, and the first fault inside it."""
    match target.kind:
        case Struct(fields=fields):
            members = F.try_variant_get(value, "$", fields_type(fields))
            return bind(members, lambda typed: _decode_struct(value, typed, fields, target))
        case Array():
            elements = F.try_variant_get(value, "$", "array<variant>")
            return bind(elements, lambda typed: _decode_array(value, typed, target))
        case Map():
            entries = F.try_variant_get(value, "$", "map<string, variant>")
            return bind(entries, lambda typed: _decode_map(value, typed, target))
        case Atomic() as kind:
            return bind(text_of(value), lambda text: _decode_atomic(value, text, kind, target))


def _result(value: Column, *faults: Column) -> Column:
    return F.struct(value.alias("value"), F.coalesce(*faults).alias("fault"))


def _decode_atomic(value: Column, text: Column, kind: Atomic, target: Target) -> Column:
    reason = F.lit(wrong_type(target.path, kind))

    def with_fault(parsed: Column) -> Column:
        return _result(parsed, F.when(text.isNotNull() & parsed.isNull(), reason))

    return bind(parse_value(value, text, kind, target.patterns), with_fault)


def _decode_struct(value: Column, typed: Column, fields: Sequence[Field], target: Target) -> Column:
    # Members by number: names may hold any character
    members = []
    for n, field in enumerate(fields):
        member = decode(typed.getField(field.name), target.inside(field.type, field.name))
        members.append(member.alias(f"m{n}"))
    unknown = unknown_key(keys_of(value), typed, fields, f" in column '{target.path}'")

    def joined(decoded: Column) -> Column:
        values, faults = [], []
        for n, field in enumerate(fields):
            member = decoded.getField(f"m{n}")
            values.append(member.getField("value").alias(field.name))
            faults.append(member.getField("fault"))
        struct = F.when(typed.isNotNull(), F.struct(*values))
        shape_fault = _shape_fault(value, typed, target, "an object")
        return _result(struct, shape_fault, unknown, *faults)

    return bind(F.struct(*members), joined)


def _decode_array(value: Column, typed: Column, target: Target) -> Column:
    assert isinstance(target.kind, Array)
    inside = target.inside(target.kind.element.type, "element")

    def joined(decoded: Column) -> Column:
        values = F.transform(decoded, lambda element: element.getField("value"))
        shape_fault = _shape_fault(value, typed, target, "a list")
        return _result(values, shape_fault, _first_fault(decoded))

    return bind(F.transform(typed, lambda element: decode(element, inside)), joined)


def _decode_map(value: Column, typed: Column, target: Target) -> Column:
    assert isinstance(target.kind, Map)
    key_type = target.kind.key.type
    inside = target.inside(target.kind.value.type, "value")
    if not isinstance(key_type, Atomic):
        raise InvalidInputError(
            f"column {target.path!r} has nested keys, which JSON cannot hold; "
            "deliver Parquet or ORC"
        )
    reason = F.lit(wrong_type(f"{target.path}.key", key_type))

    def decoded_entry(entry: Column) -> Column:
        key = parse_text(entry.getField("key"), key_type, target.patterns)
        item = decode(entry.getField("value"), inside)
        return F.struct(key.alias("key"), item.alias("item"))

    def joined(decoded: Column) -> Column:
        keys = F.transform(decoded, lambda entry: entry.getField("key"))
        # Keys are strings in JSON: two of them may be equal after the cast
        are_unique = F.size(F.array_distinct(keys)) == F.size(keys)
        are_valid = F.forall(keys, lambda key: key.isNotNull()) & are_unique
        items = F.transform(decoded, lambda entry: entry.getField("item"))
        values = F.transform(items, lambda item: item.getField("value"))
        shape_fault = _shape_fault(value, typed, target, "an object")
        return _result(
            F.when(are_valid, F.map_from_arrays(keys, values)),
            shape_fault,
            F.when(~are_valid, reason),
            _first_fault(items),
        )

    return bind(F.transform(F.map_entries(typed), decoded_entry), joined)


def _first_fault(decoded: Column) -> Column:
    faults = F.transform(decoded, lambda item: item.getField("fault"))
    return F.get(F.filter(faults, lambda fault: fault.isNotNull()), F.lit(0))


def _shape_fault(value: Column, typed: Column, target: Target, expected: str) -> Column:
    is_other = value.isNotNull() & ~F.is_variant_null(value) & typed.isNull()
    return F.when(is_other, F.lit(f"column '{target.path}' is not {expected}"))
