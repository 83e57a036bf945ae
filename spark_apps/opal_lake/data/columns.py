"""Rows as users see them <-> rows as data files hold them (FORMAT: columns).

Logical columns have the table's names and types. Physical columns have physical names, inside structs too, and for ORC hold timestamps as
microseconds and dates as days: Spark's ORC readers shift the one with the JVM's time zone and rebase the other before 1582.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from opal_lake.definition.schema import (
    DELETED,
    HIDDEN_IDS,
    OFFSET,
    RESERVED_PREFIX,
    SEGMENT,
    Array,
    Atomic,
    DataType,
    Field,
    Map,
    Struct,
    arrow_field,
    arrow_type,
    atomic_name,
    atomic_type_name,
    type_name,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, OpalError

# Under which name Arrow's writers and readers have the field id of a column, nested ones included
_ID_KEYS = {"parquet": b"PARQUET:field_id", "orc": b"iceberg.id"}
ORC_STORAGE = {"timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "date": pa.int32()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Direction:
    """One of the two ways through a column."""

    name_of: Callable[[Field], str]
    type_of: Callable[[DataType], pa.DataType]
    convert: Callable[[pa.Array, Atomic, str], pa.Array]
    absent_is_null: bool
    error: type[OpalError]


def physical_type(kind: DataType, file_format: str, *, with_ids: bool = False) -> pa.DataType:
    """The Arrow type as files of that format hold it, with the field ids of its parts if asked."""

    def column(field: Field) -> pa.Field:
        return _physical_field(field, file_format, with_ids=with_ids)

    match kind:
        case Atomic(name=name):
            return (
                ORC_STORAGE[name]
                if file_format == "orc" and name in ORC_STORAGE
                else arrow_type(kind)
            )
        case Struct(fields=fields):
            return pa.struct([column(field) for field in fields])
        case Array(element=element):
            return pa.list_(column(element))
        case Map(key=key, value=value):
            return pa.map_(column(key).with_nullable(False), column(value))


def physical_schema(spec: TableSpec, *, with_row_ids: bool = True) -> pa.Schema:
    """The columns of a data file; every one nullable, so that added columns read as null from old files."""
    fields = [_physical_field(field, spec.file_format) for field in spec.schema.fields]
    if with_row_ids:
        fields += [pa.field(SEGMENT, pa.int64()), pa.field(OFFSET, pa.int32())]
        fields += [pa.field(DELETED, pa.bool_())] if spec.deletes is not None else []
    return pa.schema(fields)


def with_field_ids(columns: pa.Schema, spec: TableSpec) -> pa.Schema:
    """Return physical columns as files are written with them: each with its field id."""
    fields = {field.physical: field for field in spec.schema.fields}
    return pa.schema(
        [
            _with_id(column, HIDDEN_IDS[column.name], spec.file_format)
            if column.name in HIDDEN_IDS
            else _physical_field(fields[column.name], spec.file_format, with_ids=True)
            for column in columns
        ]
    )


def field_ids(column: pa.Field, file_format: str) -> list[str | None]:
    """Return the field ids of a column and of those within it, depth first; None where none is."""
    ids = (column.metadata or {}).get(_ID_KEYS[file_format])
    within = [column.type.field(index) for index in range(column.type.num_fields)]
    parts = [number for part in within for number in field_ids(part, file_format)]
    if pa.types.is_map(column.type):
        del parts[0]  # of the struct of key and value, which has no id of its own
    return [None if ids is None else ids.decode(), *parts]


def _physical_field(field: Field, file_format: str, *, with_ids: bool = False) -> pa.Field:
    column = pa.field(field.physical, physical_type(field.type, file_format, with_ids=with_ids))
    return _with_id(column, field.id, file_format) if with_ids else column


def _with_id(column: pa.Field, number: int, file_format: str) -> pa.Field:
    # A plain dictionary would take four times as long, for each column of each file
    return column.with_metadata(pa.KeyValueMetadata({_ID_KEYS[file_format]: str(number)}))


def with_nulls(rows: pa.Table, missing: Sequence[Field]) -> pa.Table:
    """Append logical columns that are null in every row."""
    if not missing:
        return rows
    # All in one step: each append would copy the columns before it.
    absent = [pa.nulls(rows.num_rows, arrow_type(field.type)) for field in missing]
    schema = pa.schema([*rows.schema, *map(arrow_field, missing)])
    return pa.Table.from_arrays([*rows.columns, *absent], schema=schema)


def to_physical(table: pa.Table, spec: TableSpec) -> pa.Table:
    """Rows of the table's logical columns, in any order, as a data file holds them; `_opal_` columns pass through."""
    orc = spec.file_format == "orc"
    way = _Direction(
        name_of=lambda field: field.name,
        type_of=lambda kind: physical_type(kind, spec.file_format),
        convert=_store_orc if orc else _normalise,
        absent_is_null=False,
        error=InvalidInputError,
    )
    columns = {field.physical: _convert_column(table, field, way) for field in spec.schema.fields}
    extras = {
        name: table.column(name) for name in table.column_names if name.startswith(RESERVED_PREFIX)
    }
    return pa.table(columns | extras)


def to_logical(table: pa.Table, spec: TableSpec, columns: Sequence[str] | None = None) -> pa.Table:
    """The named columns (default: all) of a data file's rows; columns younger than the file are null, `_opal_` ones are left out."""
    return to_fields(
        table,
        spec,
        spec.schema.fields if columns is None else [spec.schema.field(name) for name in columns],
    )


def to_fields(table: pa.Table, spec: TableSpec, fields: Sequence[Field]) -> pa.Table:
    """The same for fields of the table under any name, and for some members of a struct in any order."""
    way = _Direction(
        name_of=lambda field: field.physical,
        type_of=arrow_type,
        convert=_load_orc if spec.file_format == "orc" else _normalise,
        absent_is_null=True,
        error=FormatError,
    )
    return _table(
        [field.name for field in fields],
        [_convert_column(table, field, way) for field in fields],
        table.num_rows,
    )


def _table(names: list[str], columns: list[pa.ChunkedArray], rows: int) -> pa.Table:
    if not columns:  # Arrow has no other way to say "n rows of nothing"
        return pa.table({"": pa.nulls(rows)}).select([])
    return pa.Table.from_arrays(columns, names=names)


def _convert_column(table: pa.Table, field: Field, way: _Direction) -> pa.ChunkedArray:
    name, target_type = way.name_of(field), way.type_of(field.type)
    positions = table.schema.get_all_field_indices(name)
    if len(positions) > 1:
        raise way.error(f"column {name!r} is there {len(positions)} times; rename all but one")
    if not positions and not way.absent_is_null:
        raise way.error(
            f"column {name!r} is missing; there are {', '.join(map(repr, table.column_names))}: add it, null where unknown"
        )
    if not positions:
        return pa.chunked_array([pa.nulls(table.num_rows, target_type)])
    chunks = [_convert(chunk, field.type, name, way) for chunk in table.column(positions[0]).chunks]
    return pa.chunked_array(chunks, type=target_type)


def _convert(array: pa.Array, kind: DataType, path: str, way: _Direction) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), way.type_of(kind))
    match kind:
        case Atomic() if not pa.types.is_nested(array.type):
            return _convert_atomic(array, kind, path, way)
        case Struct() if pa.types.is_struct(array.type):
            return _convert_struct(array, kind, path, way)
        case Array() if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            return _convert_list(array, kind, path, way)
        case Map() if pa.types.is_map(array.type):
            return _convert_map(array, kind, path, way)
    raise way.error(
        f"column {path!r} holds {type_name(array.type)} where the table has {type_name(kind)}; "
        "cast it"
    )


def _convert_atomic(array: pa.Array, kind: Atomic, path: str, way: _Direction) -> pa.Array:
    try:
        return way.convert(array, kind, path)
    except (pa.ArrowInvalid, InvalidInputError) as error:
        if isinstance(error, way.error):
            raise
        raise way.error(
            f"column {path!r} holds {type_name(array.type)} where the table has "
            f"{type_name(kind)}: {error}"
        ) from error


def _convert_struct(array: pa.StructArray, kind: Struct, path: str, way: _Direction) -> pa.Array:
    positions = {member.name: position for position, member in enumerate(array.type)}
    target_type = way.type_of(kind)
    members = []
    for field, target in zip(kind.fields, target_type, strict=True):
        name = way.name_of(field)
        if name not in positions and not way.absent_is_null:
            raise way.error(
                f"column {path!r} lacks its member {name!r}; it has {', '.join(map(repr, positions))}: add it, null where unknown"
            )
        member_array = (
            array.field(positions[name]) if name in positions else pa.nulls(len(array), target.type)
        )
        members.append(_convert(member_array, field.type, f"{path}.{name}", way))
    if not way.absent_is_null:
        _refuse_other_members(array.type, {way.name_of(field) for field in kind.fields}, path, way)
    return pa.StructArray.from_arrays(
        members, fields=list(target_type), mask=array.is_null() if array.null_count else None
    )


def _refuse_other_members(
    kind: pa.StructType, known: Collection[str], path: str, way: _Direction
) -> None:
    """Raise for a member that would be lost: the table lacks it, or it comes twice."""
    met: set[str] = set()
    for member in kind:
        if member.name not in known:
            raise way.error(
                f"column {path!r} has a member {member.name!r}, which the table lacks, and a "
                f"nested column gets no members; it has {', '.join(map(repr, sorted(known)))}: "
                "leave the member out, or add a column for it"
            )
        if member.name in met:
            raise way.error(f"column {path!r} has its member {member.name!r} twice; rename one")
        met.add(member.name)


def _convert_list(array: pa.Array, kind: Array, path: str, way: _Direction) -> pa.Array:
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    element = _convert(array.values, kind.element.type, f"{path}.element", way)
    return _with_children(array, way.type_of(kind), element)


def _convert_map(array: pa.MapArray, kind: Map, path: str, way: _Direction) -> pa.Array:
    target_type = way.type_of(kind)
    parts = [
        _convert(array.keys, kind.key.type, f"{path}.key", way),
        _convert(array.items, kind.value.type, f"{path}.value", way),
    ]
    return _with_children(
        array,
        target_type,
        pa.StructArray.from_arrays(parts, fields=[target_type.key_field, target_type.item_field]),
    )


def _with_children(array: pa.Array, target_type: pa.DataType, child: pa.Array) -> pa.Array:
    """The same lists of other elements; a slice keeps its offset, because `values`, `keys` and `items` know nothing of it."""
    return pa.Array.from_buffers(
        target_type, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )


def _normalise(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    target_type = arrow_type(kind)
    if array.type == target_type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    given_type = atomic_name(path, array.type)
    if given_type != kind.name:
        raise InvalidInputError(
            f"column {path!r} holds {atomic_type_name(given_type)} where the table has "
            f"{type_name(kind)}; cast it"
        )
    return array.cast(target_type)


def _store_orc(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    array = _normalise(array, kind, path)
    return array.cast(ORC_STORAGE[kind.name]) if kind.name in ORC_STORAGE else array


def _load_orc(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    if kind.name in ORC_STORAGE and array.type == ORC_STORAGE[kind.name]:
        return array.cast(arrow_type(kind))
    return _normalise(array, kind, path)
