"""Logical columns, which users see, and physical ones, which data files hold (FORMAT: columns).

Logical columns have the table's names and types. Physical columns have physical names, inside
structs too, and for ORC hold timestamps as microseconds and dates as days: Spark's ORC readers
shift timestamps by the JVM's time zone, and rebase dates before 1582.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from opal_lake.arrays import Int64Array
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
    Schema,
    Struct,
    all_fields,
    arrow_field,
    arrow_type,
    atomic_name,
    atomic_type_name,
    default_array,
    is_widening,
    type_name,
)
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, OpalError

# The metadata key of a column's field id for Arrow's writers and readers, nested columns included.
_ID_KEYS = {"parquet": b"PARQUET:field_id", "orc": b"iceberg.id"}
ORC_STORAGE = {"timestamp": pa.int64(), "timestamp_ntz": pa.int64(), "date": pa.int32()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Direction:
    """A direction of conversion: to physical columns, or to logical ones."""

    name_of: Callable[[Field], str]
    type_of: Callable[[DataType], pa.DataType]
    convert: Callable[[pa.Array, Atomic, str], pa.Array]
    is_optional: Callable[[Field], bool]  # whether a field may be absent: then it is null
    error: type[OpalError]


def physical_type(kind: DataType, file_format: str, *, with_ids: bool = False) -> pa.DataType:
    """Return the Arrow type of a column in files of a format.

    With `with_ids`, the fields within a nested type carry their field ids.
    """

    def column(field: Field) -> pa.Field:
        return _physical_field(field, file_format, with_ids=with_ids)

    match kind:
        case Atomic(name=name):
            if file_format == "orc" and name in ORC_STORAGE:
                return ORC_STORAGE[name]
            return arrow_type(kind)
        case Struct(fields=fields):
            return pa.struct([column(field) for field in fields])
        case Array(element=element):
            return pa.list_(column(element))
        case Map(key=key, value=value):
            return pa.map_(column(key).with_nullable(False), column(value))


def physical_schema(spec: TableSpec, *, with_row_ids: bool = True) -> pa.Schema:
    """Return the columns of a data file.

    All are nullable, so that added columns are null in the rows of older files.
    """
    fields = [_physical_field(field, spec.file_format) for field in spec.schema.fields]
    if with_row_ids:
        fields += [pa.field(SEGMENT, pa.int64()), pa.field(OFFSET, pa.int32())]
        if spec.deletes is not None:
            fields.append(pa.field(DELETED, pa.bool_()))
    return pa.schema(fields)


def with_field_ids(columns: pa.Schema, spec: TableSpec) -> pa.Schema:
    """Return physical columns with their field ids, as files are written with them."""
    fields = {field.physical: field for field in spec.schema.fields}
    numbered: list[pa.Field] = []
    for column in columns:
        hidden_id = HIDDEN_IDS.get(column.name)
        if hidden_id is not None:
            numbered.append(_with_id(column, hidden_id, spec.file_format))
        else:
            field = fields[column.name]
            numbered.append(_physical_field(field, spec.file_format, with_ids=True))
    return pa.schema(numbered)


def field_ids(column: pa.Field, file_format: str) -> list[str | None]:
    """Return the field ids of a column and of its parts, depth first; None if missing."""
    ids = [_stored_id(column, file_format)]
    for index in range(column.type.num_fields):
        ids += field_ids(column.type.field(index), file_format)
    if pa.types.is_map(column.type):
        # The struct of key and value has no id of its own.
        del ids[1]
    return ids


def fault_of_stored(stored: pa.Field, field: Field, file_format: str) -> str | None:
    """Return the fault of a column in a file whose table has changed; None if none.

    The file may have an earlier type of a widened column, and other members of structs.
    """
    number = _stored_id(stored, file_format)
    if number != str(field.id):
        return f"has the field id {number}, should have {field.id}"
    kind = stored.type
    match field.type:
        case Atomic(name=name):
            names = (*field.earlier, name)
            kinds = [physical_type(Atomic(name=known), file_format) for known in names]
            if kind not in kinds:
                return f"is {kind}, should be {' or '.join(names)}"
            return None
        case Struct(fields=fields) if pa.types.is_struct(kind):
            known = {member.physical: member for member in fields}
            parts = [(part, known[part.name]) for part in kind if part.name in known]
        case Array(element=element) if pa.types.is_list(kind):
            parts = [(kind.value_field, element)]
        case Map(key=key, value=value) if pa.types.is_map(kind):
            parts = [(kind.key_field, key), (kind.item_field, value)]
        case _:
            return f"is {kind}, should be {type_name(field.type)}"
    for part, inner in parts:
        fault = fault_of_stored(part, inner, file_format)
        if fault is not None:
            return f"has a part {part.name}, which {fault}"
    return None


def _stored_id(column: pa.Field, file_format: str) -> str | None:
    number = (column.metadata or {}).get(_ID_KEYS[file_format])
    return None if number is None else number.decode()


def _physical_field(field: Field, file_format: str, *, with_ids: bool = False) -> pa.Field:
    column = pa.field(field.physical, physical_type(field.type, file_format, with_ids=with_ids))
    return _with_id(column, field.id, file_format) if with_ids else column


def _with_id(column: pa.Field, number: int, file_format: str) -> pa.Field:
    # A plain dictionary would take four times as long, for each column of each file.
    return column.with_metadata(pa.KeyValueMetadata({_ID_KEYS[file_format]: str(number)}))


def conformed(rows: pa.Table, spec: TableSpec, wanted: Collection[str] = ()) -> pa.Table:
    """Return rows of a data file with the physical types that the columns have now.

    Values of a widened column are converted. Members of structs are those of the table: dropped
    ones are left out, and those that the file lacks are null. Of the `wanted` columns that the file
    lacks, those with an initial value get it; all others stay absent. Segments that are not wanted
    were read to count the rows, and are dropped.
    """
    if spec.schema.created_id is None:
        # No column has been changed, so all files have the table's types
        return rows
    fields = {field.physical: field for field in spec.schema.fields}
    direction = _Direction(
        name_of=lambda field: field.physical,
        type_of=lambda kind: physical_type(kind, spec.file_format),
        convert=_stored_now,
        is_optional=_always,
        error=FormatError,
    )
    converted = rows
    for position, column in enumerate(rows.schema):
        field = fields.get(column.name)
        if field is None or column.type == physical_type(field.type, spec.file_format):
            continue
        values = _convert_column(rows, field, direction)
        converted = converted.set_column(position, column.name, values)
    return _with_initial(converted, spec, wanted)


def _with_initial(rows: pa.Table, spec: TableSpec, wanted: Collection[str]) -> pa.Table:
    """Add those of the wanted columns that rows lack and that have an initial value."""
    existing = frozenset(rows.column_names)
    for field in spec.schema.fields:
        name = field.physical
        if field.initial is None or name not in wanted or name in existing:
            continue
        # All rows of a file lack the column, or none
        values = default_array(field, field.initial, rows.num_rows)
        rows = rows.append_column(name, values.cast(physical_type(field.type, spec.file_format)))
    if wanted and SEGMENT not in wanted and SEGMENT in existing:
        rows = rows.drop_columns([SEGMENT])
    return rows


def _always(_: Field) -> bool:
    return True


def with_defaults(rows: pa.Table, missing: Sequence[Field]) -> pa.Table:
    """Append logical columns that the source lacks: their default, or null."""
    if not missing:
        return rows
    # All in one step: each append would copy the columns before it.
    absent = [default_array(field, field.write, rows.num_rows) for field in missing]
    schema = pa.schema([*rows.schema, *map(arrow_field, missing)])
    return pa.Table.from_arrays([*rows.columns, *absent], schema=schema)


def to_physical(table: pa.Table, spec: TableSpec) -> pa.Table:
    """Convert rows of logical columns, in any order, to the form of data files.

    `_opal_` columns stay as they are.
    """
    direction = _Direction(
        name_of=lambda field: field.name,
        type_of=lambda kind: physical_type(kind, spec.file_format),
        convert=_store_orc if spec.file_format == "orc" else _normalise,
        is_optional=spec.schema.is_added,
        error=InvalidInputError,
    )
    columns: dict[str, pa.ChunkedArray] = {}
    for field in spec.schema.fields:
        columns[field.physical] = _convert_column(table, field, direction)
    for name in table.column_names:
        if name.startswith(RESERVED_PREFIX):
            columns[name] = table.column(name)
    return pa.table(columns)


def source_column(rows: pa.Table, field: Field, spec: TableSpec) -> pa.ChunkedArray:
    """Return a column of a source in the type that the field of the table has.

    Raises InvalidInputError for another type. A column without a type has nulls.
    """
    direction = _Direction(
        name_of=lambda field: field.name,
        type_of=arrow_type,
        convert=_normalise,
        is_optional=spec.schema.is_added,
        error=InvalidInputError,
    )
    return _convert_column(rows, field, direction)


def to_logical(table: pa.Table, spec: TableSpec, columns: Sequence[str] | None = None) -> pa.Table:
    """Convert a data file's rows to the named logical columns, by default all.

    Columns that were added after the file are null; `_opal_` ones are left out.
    """
    if columns is None:
        return to_fields(table, spec, spec.schema.fields)
    return to_fields(table, spec, [spec.schema.field(name) for name in columns])


def to_current(rows: pa.Table, given: Schema, current: Schema) -> pa.Table:
    """Return rows of an earlier schema with the columns of now, found by field ids.

    `given` names the columns and types of the rows. Columns that were dropped since are left out,
    and those that were added since stay absent. Raises FormatError for rows that do not fit.
    """
    _check_ids(given, current)
    to_physical_names = _Direction(
        name_of=lambda field: field.name,
        type_of=lambda kind: arrow_type(kind, physical=True),
        convert=_normalise,
        is_optional=_never,
        error=FormatError,
    )
    to_logical_names = _Direction(
        name_of=lambda field: field.physical,
        type_of=arrow_type,
        convert=_widened,
        is_optional=_always,
        error=FormatError,
    )
    own = {field.id: field for field in given.fields}
    fields = [field for field in current.fields if field.id in own]
    physical: dict[str, pa.ChunkedArray] = {}
    for field in fields:
        values = _convert_column(rows, own[field.id], to_physical_names)
        physical[field.physical] = values
    stored = pa.table(physical)
    columns = [_convert_column(stored, field, to_logical_names) for field in fields]
    return pa.Table.from_arrays(columns, names=[field.name for field in fields])


def _check_ids(given: Schema, current: Schema) -> None:
    """Raise FormatError unless an id means one column in both schemas of a table."""
    physical_names = {field.id: field.physical for field in all_fields(current.fields)}
    for field in all_fields(given.fields):
        is_other = physical_names.get(field.id, field.physical) != field.physical
        if is_other or field.id > current.last_id:
            raise FormatError(
                f"column {field.name!r} has the field id {field.id}, which is not its id in the "
                "table"
            )


def _never(_: Field) -> bool:
    return False


def to_fields(table: pa.Table, spec: TableSpec, fields: Sequence[Field]) -> pa.Table:
    """Convert a data file's rows to fields of the table.

    The fields may have other names than in the table. A struct may have only some of its members,
    in any order.
    """
    direction = _Direction(
        name_of=lambda field: field.physical,
        type_of=arrow_type,
        convert=_load_orc if spec.file_format == "orc" else _normalise,
        is_optional=_always,
        error=FormatError,
    )
    if not fields:
        # Arrow has no other way to express rows without columns.
        return pa.table({"": pa.nulls(table.num_rows)}).select([])
    columns = [_convert_column(table, field, direction) for field in fields]
    return pa.Table.from_arrays(columns, names=[field.name for field in fields])


def _convert_column(table: pa.Table, field: Field, direction: _Direction) -> pa.ChunkedArray:
    """Convert the column of a field; raise the direction's error if it cannot be.

    The error is also raised if the column occurs twice, or is missing where it must not be.
    """
    name, target_type = direction.name_of(field), direction.type_of(field.type)
    positions = table.schema.get_all_field_indices(name)
    if len(positions) > 1:
        raise direction.error(f"column {name!r} occurs {len(positions)} times; rename all but one")
    if not positions and not direction.is_optional(field):
        existing = ", ".join(map(repr, table.column_names))
        raise direction.error(
            f"column {name!r} is missing; the rows have {existing}: add it, null where unknown"
        )
    if not positions:
        return pa.chunked_array([pa.nulls(table.num_rows, target_type)])
    chunks = [
        _convert(chunk, field.type, name, direction) for chunk in table.column(positions[0]).chunks
    ]
    return pa.chunked_array(chunks, type=target_type)


def _convert(array: pa.Array, kind: DataType, path: str, direction: _Direction) -> pa.Array:
    """Convert values to a type of the table; `path` names their column in errors."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), direction.type_of(kind))
    match kind:
        case Atomic() if not pa.types.is_nested(array.type):
            return _convert_atomic(array, kind, path, direction)
        case Struct() if pa.types.is_struct(array.type):
            return _convert_struct(array, kind, path, direction)
        case Array() if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            return _convert_list(array, kind, path, direction)
        case Map() if pa.types.is_map(array.type):
            return _convert_map(array, kind, path, direction)
    raise direction.error(
        f"column {path!r} holds {type_name(array.type)} where the table has {type_name(kind)}; "
        "cast it"
    )


def _convert_atomic(array: pa.Array, kind: Atomic, path: str, direction: _Direction) -> pa.Array:
    try:
        return direction.convert(array, kind, path)
    except (pa.ArrowInvalid, InvalidInputError) as error:
        if isinstance(error, direction.error):
            raise
        raise direction.error(
            f"column {path!r} holds {type_name(array.type)} where the table has "
            f"{type_name(kind)}: {error}"
        ) from error


def _convert_struct(
    array: pa.StructArray, kind: Struct, path: str, direction: _Direction
) -> pa.Array:
    positions = {member.name: position for position, member in enumerate(array.type)}
    target_type = direction.type_of(kind)
    members: list[pa.Array] = []
    for field, target in zip(kind.fields, target_type, strict=True):
        name = direction.name_of(field)
        if name in positions:
            member = array.field(positions[name])
        elif direction.is_optional(field):
            member = pa.nulls(len(array), target.type)
        else:
            existing = ", ".join(map(repr, positions))
            raise direction.error(
                f"column {path!r} lacks its member {name!r}; it has {existing}: "
                "add it, null where unknown"
            )
        members.append(_convert(member, field.type, f"{path}.{name}", direction))
    if direction.error is InvalidInputError:
        # Rows of a source: a member of theirs that the table lacks would be lost
        names = {direction.name_of(field) for field in kind.fields}
        _refuse_other_members(array.type, names, path, direction)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(target_type), mask=mask)


def _refuse_other_members(
    kind: pa.StructType, known: Collection[str], path: str, direction: _Direction
) -> None:
    """Raise for a member that would be lost: the table lacks it, or it occurs twice."""
    seen: set[str] = set()
    for member in kind:
        if member.name not in known:
            members = ", ".join(map(repr, sorted(known)))
            raise direction.error(
                f"column {path!r} has a member {member.name!r}, which the table lacks; it has "
                f"{members}. Leave the member out, or add it to the table before, with `opal alter`"
            )
        if member.name in seen:
            raise direction.error(
                f"column {path!r} has its member {member.name!r} twice; rename one"
            )
        seen.add(member.name)


def _convert_list(array: pa.Array, kind: Array, path: str, direction: _Direction) -> pa.Array:
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    element = _convert(array.values, kind.element.type, f"{path}.element", direction)
    return _with_children(array, direction.type_of(kind), element)


def _convert_map(array: pa.MapArray, kind: Map, path: str, direction: _Direction) -> pa.Array:
    target_type = direction.type_of(kind)
    parts = [
        _convert(array.keys, kind.key.type, f"{path}.key", direction),
        _convert(array.items, kind.value.type, f"{path}.value", direction),
    ]
    fields = [target_type.key_field, target_type.item_field]
    pairs = pa.StructArray.from_arrays(parts, fields=fields)
    return _with_children(array, target_type, pairs)


def _with_children(array: pa.Array, target_type: pa.DataType, child: pa.Array) -> pa.Array:
    """Return lists of the same lengths with other elements.

    `child` has the elements of the whole array, even if `array` is a slice of it.
    """
    return pa.Array.from_buffers(
        target_type, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )


def _normalise(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    """Cast values to the Arrow type of `kind`; raise an error for another kind."""
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


def _stored_now(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    """Return values of a data file in the physical type of `kind`, or of a wider one."""
    if array.type == ORC_STORAGE.get(kind.name):
        return array
    return _widened(array, kind, path)


def _widened(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    """Return values in the Arrow type of `kind`, which is theirs or a wider one."""
    name = atomic_name(path, array.type)
    if name != kind.name and not is_widening(name, kind.name):
        raise FormatError(
            f"column {path!r} holds {atomic_type_name(name)} where the table has "
            f"{type_name(kind)}, which is not a wider type; run `opal check`"
        )
    return array.cast(arrow_type(kind))


def _store_orc(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    array = _normalise(array, kind, path)
    storage_type = ORC_STORAGE.get(kind.name)
    return array if storage_type is None else array.cast(storage_type)


def _load_orc(array: pa.Array, kind: Atomic, path: str) -> pa.Array:
    if kind.name in ORC_STORAGE and array.type == ORC_STORAGE[kind.name]:
        return array.cast(arrow_type(kind))
    return _normalise(array, kind, path)


def value_codes(columns: Sequence[pa.ChunkedArray]) -> Int64Array:
    """Return a number for each row of columns; equal rows have the same number."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        # A null is a value like any other
        coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes_of_column = np.asarray(coded.indices.to_numpy(), np.int64)
        codes = codes * (len(coded.dictionary) + 1) + codes_of_column
        # Numbered again from 0: the product of many columns must not overflow
        _, codes = np.unique(codes, return_inverse=True)
    return codes
