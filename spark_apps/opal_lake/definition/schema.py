"""The columns of a table: types, stable field ids, physical names.

Atomic types have the names that Spark has for them in JSON (`long`, `decimal(10,2)`). A field's id
and physical name never change, but its name may. Physical names are plain ASCII, so that no reader,
file format or path has to quote them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from opal_lake.checked import MAX_NESTED, count, listed, mapped, shallow, text
from opal_lake.definition.default_values import DefaultValue, default_scalar
from opal_lake.errors import FormatError, InvalidInputError

RESERVED_PREFIX = "_opal_"
SEGMENT, OFFSET, DELETED = "_opal_segment", "_opal_offset", "_opal_deleted"
# Of rows on their way into the table: the row that a statement's row ends, or null for an insert
ENDED_SEGMENT, ENDED_OFFSET = "_opal_ended_segment", "_opal_ended_offset"
# The built-in delta column of a table that orders rows by their commits
COMMIT = "_commit"
# Columns of rewritten Parquet files, under the names that Iceberg reserves for them. No physical
# name of a column begins so (I23).
OUTSIDE_ID, UPDATED_AT = "_row_id", "_last_updated_sequence_number"
# Field ids of hidden columns. Iceberg reserves ids from 2147483447 on: columns never get so far
HIDDEN_IDS = {
    SEGMENT: 2147483001,
    OFFSET: 2147483002,
    DELETED: 2147483003,
    OUTSIDE_ID: 2147483540,
    UPDATED_AT: 2147483539,
}
MAX_FIELD_ID = 2147483000  # the greatest id of a column

_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
_PHYSICAL = re.compile(r"(?:[A-Za-z]|_f)[A-Za-z0-9_]{0,127}\Z")
# Levels of the JSON of a schema: a member of a struct is three levels below the struct
_MAX_VALUES = 3 * MAX_NESTED
# Levels of a new column. Arrow's stream format, which tasks and gathered files use, has at most 64
_MAX_LEVELS = 60
# Parquet reads at most 100 levels, of which a list takes two
_MAX_PARQUET_LEVELS = 90
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
# `table_spec.py` has the types of keys, deltas and tie-breaks. `key_hash.py` hashes keys of each
# type. `data/columns.py` and `data/json_rows.py` convert values in files and in JSON.
_ARROW_OF: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
ATOMIC_TYPES = tuple(_ARROW_OF)
# For each type the wider ones: a column may get one of these, and decimals more digits
_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
MAX_DECIMAL_DIGITS = 38
# Types that have another name in SQL than in the format
SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_PLAIN_SQL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NAME_OF = {arrow: name for name, arrow in _ARROW_OF.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Atomic:
    """A type without parts."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """A fixed set of named fields."""

    fields: "tuple[Field, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A list; the element has a field id of its own."""

    element: "Field"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Key-value pairs; key and value have field ids of their own."""

    key: "Field"
    value: "Field"


DataType = Atomic | Struct | Array | Map


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column, or one part of a nested column.

    `earlier` are the types that a widened column had before, from the first on: older files still
    hold values of these. `initial` is the value in the rows of files that lack an added column,
    `write` the value in new rows whose source lacks the column; None stands for null. `generated`
    is the expression that gives the value of a generated column. `former` are the names that a
    member of a struct had before, and that no member next to it has now.
    """

    id: int
    name: str
    physical: str
    type: DataType
    earlier: tuple[str, ...] = ()
    initial: DefaultValue | None = None
    write: DefaultValue | None = None
    generated: str | None = None
    former: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table in their order, and the greatest field id ever given out.

    `created_id` is the greatest id at the table's creation. It is None until columns are added or
    changed. `commit_id` is the id of the built-in column COMMIT, which writers fill, or None.
    `former_names` are names that columns had before they were renamed or dropped, each with
    the id of the last column of that name.
    """

    fields: tuple[Field, ...]
    last_id: int
    created_id: int | None = None
    commit_id: int | None = None
    former_names: tuple[tuple[str, int], ...] = ()

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def is_added(self, field: Field) -> bool:
        """Return whether the column is younger than the table, so that old files lack it."""
        return self.created_id is not None and field.id > self.created_id

    def is_optional(self, field: Field) -> bool:
        """Return whether rows may lack the column.

        It is added, has a default, is generated or built in.
        """
        is_filled = field.write is not None or field.generated is not None
        return field.id == self.commit_id or self.is_added(field) or is_filled

    @property
    def own_fields(self) -> tuple[Field, ...]:
        """The columns without the built-in one, which are those of sources and of reads."""
        return tuple(field for field in self.fields if field.id != self.commit_id)

    def field(self, name: str) -> Field:
        """Return the column with a name; as in Spark, names are not case-sensitive."""
        field = self.find(name)
        if field is None:
            known = ", ".join(map(repr, self.names))
            past = self.past_of(name)
            raise InvalidInputError(f"no column {name!r}{past}; the table has {known}")
        return field

    def find(self, name: str) -> Field | None:
        """Return the column with a name, without regard to case; None if there is none."""
        return self._by_name.get(name) or self._by_folded_name.get(name.casefold())

    def past_of(self, name: str) -> str:
        """Return what became of a column that no longer has this name, for a message.

        The text is empty if no column had the name.
        """
        number = self._ids_of_former_names.get(name.casefold())
        if number is None:
            return ""
        field = self._by_id.get(number)
        return " (it was dropped)" if field is None else f" (it was renamed to {field.name!r})"

    def former(self, name: str) -> "Field | None":
        """Return the column that had a name before it was renamed, or None."""
        number = self._ids_of_former_names.get(name.casefold())
        return None if number is None else self._by_id.get(number)

    @property
    def renamed(self) -> "dict[str, Field]":
        """The columns that had other names, by each of these names."""
        columns = {name: self._by_id.get(number) for name, number in self.former_names}
        return {name: field for name, field in columns.items() if field is not None}

    @property
    def is_in_order(self) -> bool:
        """True if columns were added at the end only, so that rows may lack names.

        An id without a column was a dropped column's.
        """
        numbers = [field.id for field in self.fields]
        if self.created_id is None and not self.former_names:
            return numbers == sorted(numbers)
        known = sum(1 for _ in all_fields(self.fields))
        return numbers == sorted(numbers) and known == self.last_id

    def had(self, name: str) -> bool:
        """Return whether a column with this name was renamed or dropped."""
        return name.casefold() in self._ids_of_former_names

    def field_of_id(self, number: int) -> Field:
        """Return the column with that field id."""
        return self._by_id[number]

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    @cached_property
    def _by_folded_name(self) -> dict[str, Field]:
        return {field.name.casefold(): field for field in self.fields}

    @cached_property
    def _by_id(self) -> dict[int, Field]:
        return {field.id: field for field in self.fields}

    @cached_property
    def _ids_of_former_names(self) -> dict[str, int]:
        return {name.casefold(): number for name, number in self.former_names}


def schema_of_arrow(arrow: pa.Schema) -> Schema:
    """Return a new table's schema, with field ids from 1 in depth-first order."""
    check_levels(arrow)
    fields = _fields_of_arrow(arrow, _ids_after(0))
    if not fields:
        raise InvalidInputError(
            "the schema has no column; give at least the key and the delta column"
        )
    return Schema(fields=fields, last_id=_greatest_id(fields))


def with_commit_column(schema: Schema) -> Schema:
    """Return a new table's schema with the built-in column, as its last one."""
    if schema.find(COMMIT) is not None:
        raise InvalidInputError(
            f"the schema has a column {COMMIT!r}, and delta={COMMIT!r} is the built-in column, "
            "which the table fills itself; rename the column of the schema, or leave it out"
        )
    number = next(_ids_after(schema.last_id))
    # No plain name begins with `_`
    field = Field(id=number, name=COMMIT, physical=f"_f{number}", type=Atomic(name="timestamp"))
    return replace(schema, fields=(*schema.fields, field), last_id=number, commit_id=number)


def extended(schema: Schema, arrow: pa.Schema) -> Schema:
    """Return the schema with the columns of `arrow` added behind its own."""
    added, last_id = new_fields(schema, arrow, schema.fields)
    fields = (*schema.fields, *added)
    check_names(field.name for field in fields)
    names = {field.name.casefold() for field in added}
    former = tuple(pair for pair in schema.former_names if pair[0].casefold() not in names)
    return replace(altered(schema), fields=tuple(fields), last_id=last_id, former_names=former)


def new_fields(
    schema: Schema, arrow: Iterable[pa.Field], siblings: Iterable[Field]
) -> tuple[list[Field], int]:
    """Return new fields next to `siblings`, and the greatest field id with them.

    `siblings` are the columns of the table, or the members of one struct. No physical name is one
    that a sibling has, or that a dropped one had.
    """
    check_levels(arrow)
    added = _fields_of_arrow(arrow, _ids_after(schema.last_id))
    known = [field.id for field in all_fields(schema.fields)]
    # An id without a column was a removed column's. Its physical name is unknown, and old files may
    # have it
    some_gone = len(known) < schema.last_id
    used = {field.physical.casefold() for field in siblings}
    fields: list[Field] = []
    for field in added:
        physical = _unused_name(field, used, some_gone=some_gone)
        fields.append(replace(field, physical=physical))
        used.add(physical.casefold())
    return fields, _greatest_id(added)


def altered(schema: Schema) -> Schema:
    """Return a schema that is about to change; it records the ids of the creation."""
    if schema.created_id is not None:
        return schema
    return replace(schema, created_id=schema.last_id)


def _ids_after(last_id: int) -> Iterator[int]:
    """Yield the field ids after `last_id`; raise InvalidInputError when all are used."""
    yield from range(last_id + 1, MAX_FIELD_ID + 1)
    raise InvalidInputError(
        "the table has used all field ids; copy its rows into a new table with these columns"
    )


def _greatest_id(fields: Iterable[Field]) -> int:
    return max(field.id for field in all_fields(fields))


def _unused_name(field: Field, used: Collection[str], *, some_gone: bool) -> str:
    """Return a physical name for a new column that no other column has or had.

    `used` are the physical names of all columns, in lower case. `some_gone` is true if other
    columns were removed.
    """
    if field.physical.casefold() not in used and not some_gone:
        return field.physical
    with_id = f"{field.physical}_{field.id}"
    if with_id.casefold() not in used and not field.physical.startswith("_"):
        return with_id
    return f"_f{field.id}"


def check_levels(columns: Iterable[pa.Field]) -> None:
    """Raise InvalidInputError for columns that nest deeper than file formats allow.

    Not recursive: types that are inferred from data may nest thousands of levels deep.
    """
    # The column's name, a type in it, the levels above the type, and how many of them are lists
    pending = [(column.name, column.type, 0, 0) for column in columns]
    while pending:
        name, kind, levels, lists = pending.pop()
        if levels > _MAX_LEVELS or levels + lists > _MAX_PARQUET_LEVELS:
            raise InvalidInputError(
                f"column {name!r} nests too deep. It may have {_MAX_LEVELS} levels, where a map "
                f"counts as two, and {_MAX_PARQUET_LEVELS} if each list counts as two as well. "
                "Flatten it"
            )
        if not pa.types.is_nested(kind):
            continue
        lists += pa.types.is_list(kind) or pa.types.is_large_list(kind)
        # The only field of a map is a struct of key and value, so that a map has two levels
        inner = [kind.field(number).type for number in range(kind.num_fields)]
        pending += [(name, part, levels + 1, lists) for part in inner]


def check_names(names: Iterable[object]) -> None:
    """Raise InvalidInputError for names that no table can hold."""
    seen: dict[str, str] = {}
    for name in names:
        if name is not None and not isinstance(name, str):
            raise InvalidInputError(
                f"a column has the name {name!r} of type {type(name).__name__}; "
                "write the name as a text"
            )
        if not name:
            raise InvalidInputError("a column has an empty name; rename it")
        folded = name.casefold()
        if folded.startswith(RESERVED_PREFIX):
            raise InvalidInputError(
                f"column {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved for the "
                "format; rename it"
            )
        other = seen.get(folded)
        if other == name:
            raise InvalidInputError(f"two columns are called {name!r}; rename one")
        if other is not None:
            raise InvalidInputError(
                f"columns {other!r} and {name!r} differ in case only, which Spark cannot "
                "distinguish; rename one"
            )
        seen[folded] = name


def _fields_of_arrow(arrow: Iterable[pa.Field], ids: Iterator[int]) -> tuple[Field, ...]:
    members = list(arrow)
    check_names(member.name for member in members)
    return tuple(_field_of_arrow(member.name, member.type, ids) for member in members)


def _field_of_arrow(name: str, arrow: pa.DataType, ids: Iterator[int]) -> Field:
    number = next(ids)
    # A plain name begins with a letter, so that it never equals a name of the form _f<id>
    physical = name if _PLAIN_NAME.match(name) else f"_f{number}"
    return Field(id=number, name=name, physical=physical, type=_type_of_arrow(name, arrow, ids))


def _type_of_arrow(name: str, arrow: pa.DataType, ids: Iterator[int]) -> DataType:
    if pa.types.is_struct(arrow):
        if not arrow.num_fields:
            raise InvalidInputError(
                f"column {name!r} is a struct without members, which Parquet cannot hold; "
                "leave it out"
            )
        return Struct(fields=_fields_of_arrow(arrow, ids))
    if pa.types.is_map(arrow):
        return Map(
            key=_field_of_arrow("key", arrow.key_type, ids),
            value=_field_of_arrow("value", arrow.item_type, ids),
        )
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return Array(element=_field_of_arrow("element", arrow.value_type, ids))
    return Atomic(name=atomic_name(name, arrow))


def atomic_name(column: str, arrow: pa.DataType) -> str:
    """Return the type name of an Arrow type without parts."""
    if pa.types.is_decimal(arrow) and arrow.precision <= 38 and arrow.scale >= 0:
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz else "timestamp_ntz"
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return "string"
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return "binary"
    if arrow in _NAME_OF:
        return _NAME_OF[arrow]
    known = ", ".join(map(atomic_type_name, ATOMIC_TYPES))
    raise InvalidInputError(
        f"column {column!r}: type {arrow} is not supported in a table; "
        f"cast it to one of {known}, DECIMAL(p,s)"
    )


def arrow_type(kind: DataType, *, physical: bool = False) -> pa.DataType:
    """Return the Arrow type; members of structs have logical or physical names."""
    match kind:
        case Atomic(name=name):
            return _arrow_of_atomic(name)
        case Struct(fields=fields):
            return pa.struct([arrow_field(field, physical=physical) for field in fields])
        case Array(element=element):
            return pa.list_(arrow_field(element, physical=physical))
        case Map(key=key, value=value):
            key_type = arrow_type(key.type, physical=physical)
            return pa.map_(key_type, arrow_type(value.type, physical=physical))


def arrow_field(field: Field, *, physical: bool = False) -> pa.Field:
    """Return a column as Arrow sees it; it is always nullable."""
    name = field.physical if physical else field.name
    return pa.field(name, arrow_type(field.type, physical=physical))


def default_array(field: Field, value: DefaultValue | None, rows: int) -> pa.Array:
    """Return a default of a column, or null, for a number of rows."""
    kind = arrow_type(field.type)
    return pa.nulls(rows, kind) if value is None else pa.repeat(default_scalar(value, kind), rows)


def arrow_schema(schema: Schema, *, physical: bool = False) -> pa.Schema:
    """Return all columns as Arrow sees them, without the `_opal_` ones."""
    return pa.schema([arrow_field(field, physical=physical) for field in schema.fields])


def atomic_type_name(name: str) -> str:
    """Return an atomic type of the format as a message names it: `BIGINT` for `long`."""
    return type_name(Atomic(name=name))


def type_name(kind: DataType | pa.DataType, with_case: Callable[[str], str] = str.upper) -> str:
    """Return a type as SQL writes it, such as `BIGINT` or `STRUCT<a: INT>`.

    A type of Arrow that no column has in a table keeps the name that Arrow gives it.
    """
    match kind:
        case Atomic(name=name):
            return with_case(SQL_NAMES.get(name, name))
        case Struct(fields=fields):
            members = [(field.name, field.type) for field in fields]
        case Array(element=element):
            return f"{with_case('array')}<{type_name(element.type, with_case)}>"
        case Map(key=key, value=value):
            parts = (type_name(key.type, with_case), type_name(value.type, with_case))
            return f"{with_case('map')}<{', '.join(parts)}>"
        case _ if pa.types.is_struct(kind):
            members = [(field.name, field.type) for field in kind]
        case _ if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return f"{with_case('array')}<{type_name(kind.value_type, with_case)}>"
        case _ if pa.types.is_map(kind):
            parts = (type_name(kind.key_type, with_case), type_name(kind.item_type, with_case))
            return f"{with_case('map')}<{', '.join(parts)}>"
        case _:
            return _name_of_arrow(kind, with_case)
    shown = [f"{_sql_name(name)}: {type_name(member, with_case)}" for name, member in members]
    return f"{with_case('struct')}<{', '.join(shown)}>"


def _name_of_arrow(arrow: pa.DataType, with_case: Callable[[str], str]) -> str:
    """Return the SQL name of a type, or Arrow's name if no column has the type."""
    # atomic_name ignores the unit of a timestamp, but columns hold microseconds only
    if pa.types.is_timestamp(arrow) and arrow.unit != "us":
        return str(arrow)
    try:
        name = atomic_name("", arrow)
    except InvalidInputError:
        return str(arrow)
    return type_name(Atomic(name=name), with_case)


def _sql_name(name: str) -> str:
    """Return a column's name as SQL writes it."""
    if _PLAIN_SQL_NAME.match(name):
        return name
    return "`" + name.replace("`", "``") + "`"


def decimal_parts(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal; None for another type."""
    match = _DECIMAL.match(name)
    if match is None:
        return None
    return int(match[1]), int(match[2])


def _arrow_of_atomic(name: str) -> pa.DataType:
    if parts := decimal_parts(name):
        return pa.decimal128(*parts)
    if name not in _ARROW_OF:
        raise FormatError(
            f"type {name!r} is unknown to this version of opal-lake; "
            "read the table with a newer version"
        )
    return _ARROW_OF[name]


def type_to_json(kind: DataType) -> Any:
    """Return the type as the commit log holds it."""
    match kind:
        case Atomic(name=name):
            return name
        case Struct(fields=fields):
            return {"struct": [field_to_json(field) for field in fields]}
        case Array(element=element):
            return {"array": field_to_json(element)}
        case Map(key=key, value=value):
            return {"map": [field_to_json(key), field_to_json(value)]}


def field_to_json(field: Field) -> dict[str, Any]:
    data = {
        "id": field.id,
        "name": field.name,
        "physical": field.physical,
        "type": type_to_json(field.type),
    }
    if field.earlier:
        data["earlier"] = list(field.earlier)
    if field.initial is not None:
        data["initial"] = field.initial
    if field.write is not None:
        data["write"] = field.write
    if field.generated is not None:
        data["generated"] = field.generated
    if field.former:
        data["former"] = list(field.former)
    return data


def schema_to_json(schema: Schema) -> dict[str, Any]:
    data: dict[str, Any] = {
        "fields": [field_to_json(field) for field in schema.fields],
        "last_id": schema.last_id,
    }
    if schema.created_id is not None:
        data["created_id"] = schema.created_id
    if schema.commit_id is not None:
        data["commit_id"] = schema.commit_id
    if schema.former_names:
        data["former_names"] = dict(schema.former_names)
    return data


def type_from_json(data: Any) -> DataType:
    match data:
        case str(name):
            _arrow_of_atomic(name)
            return Atomic(name=name)
        case {"struct": members}:
            return Struct(fields=_fields_from_json(members))
        case {"array": element}:
            return Array(element=field_from_json(element))
        case {"map": [key, value]}:
            return Map(key=field_from_json(key), value=field_from_json(value))
    raise FormatError(f"{data!r} is not a type of this format")


def field_from_json(data: dict[str, Any]) -> Field:
    name, physical = text(data["name"]), text(data["physical"])
    # I23: files and paths hold physical names unquoted
    if not _PHYSICAL.match(physical):
        raise ValueError(
            f"{physical!r} is not a physical name of a column: it must be a letter or `_f`, then "
            "at most 127 letters, digits and `_`"
        )
    kind = type_from_json(data["type"])
    return Field(
        id=count(data["id"]),
        name=name,
        physical=physical,
        type=kind,
        earlier=_earlier(data, kind),
        initial=_default(data, "initial", kind),
        write=_default(data, "write", kind),
        generated=text(data["generated"]) if "generated" in data else None,
        former=tuple(map(text, listed(data.get("former", [])))),
    )


def _default(data: dict[str, Any], key: str, kind: DataType) -> DefaultValue | None:
    """Return a default of a field, or None; raise ValueError for one of another type."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(kind, Atomic):
        raise ValueError("a column with parts has a default, and only atomic ones may have one")
    default_scalar(value, _arrow_of_atomic(kind.name))
    stored: DefaultValue = value
    return stored


def _earlier(data: dict[str, Any], kind: DataType) -> tuple[str, ...]:
    """Return the earlier types of a field; raise ValueError unless each was widened."""
    earlier = tuple(map(text, listed(data.get("earlier", []))))
    if not earlier:
        return ()
    if not isinstance(kind, Atomic):
        raise ValueError(f"the nested type of a column was {earlier}, and no such type is widened")
    for name, wider in zip(earlier, (*earlier[1:], kind.name), strict=True):
        if not is_widening(name, wider):
            raise ValueError(f"a column was widened from {name} to {wider}, which cannot be")
    return earlier


def is_widening(name: str, wider: str) -> bool:
    """Return whether every value of an atomic type is one of another, wider type."""
    before, after = decimal_parts(name), decimal_parts(wider)
    if before is not None and after is not None:
        return before[0] < after[0] <= MAX_DECIMAL_DIGITS and before[1] == after[1]
    return wider in _WIDER.get(name, ())


def _fields_from_json(data: Any) -> tuple[Field, ...]:
    fields = tuple(map(field_from_json, listed(data)))
    check_names(field.name for field in fields)
    physical_names = [field.physical for field in fields]
    if len({name.casefold() for name in physical_names}) < len(fields):
        raise ValueError(f"two columns have the same physical name: {physical_names}")
    return fields


def schema_from_json(data: dict[str, Any]) -> Schema:
    fields = _fields_from_json(shallow(data, _MAX_VALUES)["fields"])
    ids = [field.id for field in all_fields(fields)]
    if not fields or len(set(ids)) < len(ids):
        raise ValueError("the schema has no column, or two columns with the same id")
    last_id = count(data["last_id"])
    greatest = max(*ids, last_id)
    if greatest > MAX_FIELD_ID:
        raise ValueError(
            f"the schema has the field id {greatest}, and the greatest allowed id is {MAX_FIELD_ID}"
        )
    created_id = count(data["created_id"]) if "created_id" in data else None
    _check_defaults(fields, created_id)
    commit_id = count(data["commit_id"]) if "commit_id" in data else None
    former = mapped(data.get("former_names", {}))
    return Schema(
        fields=fields,
        last_id=last_id,
        created_id=created_id,
        commit_id=commit_id,
        former_names=tuple((text(name), count(number)) for name, number in former.items()),
    )


def _check_defaults(fields: Sequence[Field], created_id: int | None) -> None:
    """Raise ValueError for a default where no column has one.

    Only columns of the table have defaults, and only added ones an initial value.
    """
    top_ids = {field.id for field in fields}
    for field in all_fields(fields):
        given = [field.initial, field.write, field.generated]
        if field.id not in top_ids and given != [None, None, None]:
            raise ValueError(f"the part {field.name!r} of a column has a default or is generated")
        is_old = created_id is None or field.id <= created_id
        if is_old and field.initial is not None:
            raise ValueError(f"column {field.name!r} has an initial value, and was never added")


def member_formerly_called(members: Iterable[Field], name: str) -> Field | None:
    """Return the member of a struct that had a name before it was renamed, or None."""
    folded = name.casefold()
    for member in members:
        if folded in {former.casefold() for former in member.former}:
            return member
    return None


def all_fields(fields: Iterable[Field]) -> Iterator[Field]:
    """Yield the fields and all fields within them."""
    for field in fields:
        yield field
        match field.type:
            case Struct(fields=members):
                yield from all_fields(members)
            case Array(element=element):
                yield from all_fields([element])
            case Map(key=key, value=value):
                yield from all_fields([key, value])
