import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings

from opal_lake.data.columns import physical_schema, to_logical, to_physical
from opal_lake.definition.schema import Schema, arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError
from tests.opal_lake.shapes import ZONED, every_type, spec_of, tables, with_row_ids

FORMATS = pytest.mark.parametrize("file_format", ["parquet", "orc"])


def one_column(values: Any, kind: pa.DataType) -> pa.Table:
    array = values
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        array = pa.array(values, kind)
    return pa.table(
        {
            "k": pa.nulls(len(array), pa.string()),
            "d": pa.nulls(len(array), pa.int64()),
            "x": array,
        }
    )


def spec_with(kind: pa.DataType, file_format: str = "parquet") -> TableSpec:
    return spec_of(one_column([], kind), file_format)


@FORMATS
@given(table=tables())
@settings(max_examples=150, deadline=None)
def test_rows_survive_conversion_to_physical_columns_and_back(
    file_format: str, table: pa.Table
) -> None:
    spec = spec_of(table, file_format)
    physical = to_physical(with_row_ids(table), spec)
    physical.validate(full=True)
    assert physical.schema == physical_schema(spec)
    back = to_logical(physical, spec)
    back.validate(full=True)
    assert back.schema == arrow_schema(spec.schema)
    assert back.to_pylist() == table.to_pylist()


@FORMATS
def test_every_type_survives_at_every_level(file_format: str) -> None:
    table = every_type()
    spec = spec_of(table, file_format)
    for part in (
        table,
        table.slice(5, 11),
        table.slice(36),
        pa.concat_tables([table.slice(30), table.slice(2, 3)]),
    ):
        assert to_logical(to_physical(part, spec), spec).to_pylist() == part.to_pylist()


def test_orc_files_hold_times_as_numbers_at_every_level() -> None:
    physical = str(physical_schema(spec_of(every_type(), "orc")))
    assert "timestamp" not in physical
    assert "date32" not in physical


def test_names_in_files_are_ascii_words_at_every_level() -> None:
    def names_of(fields: Iterable[pa.Field]) -> list[str]:
        names: list[str] = []
        for field in fields:
            members = [field.type.field(position) for position in range(field.type.num_fields)]
            names += [field.name, *names_of(members)]
        return names

    for name in names_of(physical_schema(spec_of(every_type(), "parquet"))):
        assert re.fullmatch("[A-Za-z0-9_]+", name)


def test_files_have_a_column_of_deletes_only_with_a_delete_condition() -> None:
    table = one_column([1], pa.int64())
    assert physical_schema(spec_of(table, "parquet")).names == [
        "k",
        "d",
        "x",
        "_opal_segment",
        "_opal_offset",
    ]
    marked = spec_of(table, "parquet", deletes="x = 1")
    assert physical_schema(marked).names == [
        "k",
        "d",
        "x",
        "_opal_segment",
        "_opal_offset",
        "_opal_deleted",
    ]
    assert physical_schema(marked, with_row_ids=False).names == ["k", "d", "x"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@FORMATS
def test_times_of_any_unit_and_zone_are_converted(file_format: str, unit: str) -> None:
    moment = datetime(2024, 11, 3, 9, 30, tzinfo=UTC)
    table = one_column([moment, None], pa.timestamp(unit, tz="America/Los_Angeles"))
    spec = spec_with(ZONED, file_format)
    assert to_logical(to_physical(table, spec), spec, ["x"]).to_pylist() == [
        {"x": moment},
        {"x": None},
    ]


def test_times_that_lose_digits_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'x'.*lose data"):
        to_physical(one_column([1], pa.timestamp("ns", tz="UTC")), spec_with(ZONED))


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.null()]
)
def test_other_arrow_types_of_text_become_string(kind: pa.DataType) -> None:
    spec = spec_with(pa.list_(pa.string()))
    is_null = kind == pa.null()
    text = pa.nulls(2) if is_null else pa.array(["a", None], pa.string()).cast(kind)
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1, 2], pa.int64()), text)
    physical = to_physical(one_column(lists, lists.type), spec)
    assert physical.schema.field("x").type == pa.list_(pa.field("element", pa.string()))
    assert physical["x"].to_pylist() == [[None if is_null else "a"], [None]]


@pytest.mark.parametrize(
    "kind, message",
    [
        (pa.int32(), "holds INT where the table has BIGINT; cast it"),
        (pa.string(), "holds STRING where"),
        (pa.timestamp("us"), "holds TIMESTAMP_NTZ where"),
        (pa.list_(pa.int64()), "holds ARRAY<BIGINT> where the table has BIGINT; cast it"),
        (pa.struct([("a", pa.int64())]), "holds STRUCT<a: BIGINT> where"),
        (pa.time64("us"), r"type time64\[us\] is not supported.*cast it to one of BOOLEAN"),
    ],
)
def test_error_names_the_type_that_does_not_fit(kind: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"'x'.* {message}"):
        to_physical(one_column([None], kind), spec_with(pa.int64()))


def test_error_names_the_path_of_a_nested_column() -> None:
    spec = spec_with(pa.struct([("a", pa.list_(pa.int64()))]))
    other = r"x\.a\.element' holds STRING where the table has BIGINT"
    with pytest.raises(InvalidInputError, match=other):
        to_physical(one_column([{"a": ["1"]}], pa.struct([("a", pa.list_(pa.string()))])), spec)
    with pytest.raises(InvalidInputError, match="column 'x' lacks its member 'a'"):
        to_physical(one_column([{"b": 1}], pa.struct([("b", pa.int64())])), spec)


@pytest.mark.parametrize(
    "around", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)]
)
def test_members_that_would_be_lost_are_refused(
    around: Callable[[pa.DataType], pa.DataType],
) -> None:
    known, number = pa.struct([("a", pa.int64())]), ("a", pa.int64())
    spec = spec_with(around(known))
    wider = around(pa.struct([number, ("b", pa.string())]))
    with pytest.raises(InvalidInputError, match="has a member 'b', which the table lacks"):
        to_physical(one_column([None], wider), spec)
    with pytest.raises(InvalidInputError, match="has its member 'a' twice"):
        to_physical(one_column([None], around(pa.struct([number, number]))), spec)


def test_missing_and_repeated_columns_are_refused() -> None:
    table = one_column([1], pa.int64())
    with pytest.raises(InvalidInputError, match="'x' is missing"):
        to_physical(table.drop_columns("x"), spec_with(pa.int64()))
    with pytest.raises(InvalidInputError, match="2 times"):
        to_physical(table.append_column("x", table["x"]), spec_with(pa.int64()))


@FORMATS
def test_columns_and_members_younger_than_a_file_are_null(file_format: str) -> None:
    old = one_column([{"a": 1}, None], pa.struct([("a", pa.int64())]))
    young = pa.table(
        {"k": [""], "d": [0], "x": [{"a": 1, "b": None}], "y": pa.array([None], pa.list_(ZONED))}
    )
    young = young.set_column(
        2, "x", pa.array([{"a": 1}], pa.struct([("a", pa.int64()), ("b", ZONED)]))
    )
    stored = to_physical(old, spec_of(old, file_format))
    back = to_logical(stored, spec_of(young, file_format), ["y", "x"])
    assert back.to_pylist() == [{"y": None, "x": {"a": 1, "b": None}}, {"y": None, "x": None}]


def test_a_file_of_another_type_is_a_format_error() -> None:
    stored = one_column(["a"], pa.string())
    with pytest.raises(FormatError, match="'x'"):
        to_logical(stored, spec_with(pa.int64()))


def test_no_columns_keep_the_number_of_rows() -> None:
    table = one_column([1, 2], pa.int64())
    assert to_logical(table, spec_with(pa.int64()), []).num_rows == 2


def test_renamed_columns_are_read_by_their_physical_name() -> None:
    table = one_column([1], pa.int64())
    spec = spec_of(table, "parquet")
    stored = to_physical(table, spec)
    k, d, x = spec.schema.fields
    renamed = type(x)(id=x.id, name="new", physical=x.physical, type=x.type)
    after = TableSpec(schema=Schema(fields=(k, d, renamed), last_id=3), key_ids=(1,), delta_id=2)
    assert to_logical(stored, after, ["new"]).to_pylist() == [{"new": 1}]


def test_zones_do_not_change_the_instant() -> None:
    moment = datetime(2024, 7, 1, tzinfo=ZoneInfo("Asia/Kolkata"))
    table = one_column([moment], pa.timestamp("us", tz="Asia/Kolkata"))
    stored = to_physical(table, spec_with(ZONED, "orc"))
    assert stored["x"].to_pylist() == [int(moment.timestamp()) * 1_000_000]
