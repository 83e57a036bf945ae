"""Changes of a table's definition, as a pure function from spec to spec."""

from copy import deepcopy
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.changes.apply import changed, changes_of
from opal_lake.definition.changes.columns import AddColumn, MoveColumn, RenameColumn, WidenColumn
from opal_lake.definition.changes.paths import path_of, path_text
from opal_lake.definition.requested_spec import refuse_another_spec
from opal_lake.definition.schema import (
    Field,
    Struct,
    arrow_schema,
    schema_from_json,
    schema_to_json,
    type_name,
)
from opal_lake.definition.table_spec import (
    TableLayout,
    TableSpec,
    plan_spec,
    spec_from_json,
    spec_to_json,
)
from opal_lake.errors import InvalidInputError

PLACE = pa.struct(
    [
        ("city", pa.string()),
        ("tags", pa.list_(pa.struct([("word", pa.string()), ("n", pa.int16())]))),
        ("by_key", pa.map_(pa.struct([("k", pa.int32())]), pa.struct([("v", pa.float32())]))),
    ]
)
COLUMNS = pa.schema(
    {
        "id": pa.int32(),
        "at": pa.int16(),
        "op": pa.string(),
        "n": pa.int64(),
        "price": pa.decimal128(5, 2),
        "day": pa.date32(),
        "place": PLACE,
    }
)


def spec(**more: Any) -> TableSpec:
    layout = {"deletes": "op = 'D' OR place.city = 'x'", "properties": {"zorder": "n,day"}, **more}
    return plan_spec(COLUMNS, TableLayout(keys=["id"], delta="at", **layout))


def after(*changes: dict[str, Any], of: TableSpec | None = None) -> TableSpec:
    made, _ = changed(of or spec(), changes_of(list(changes)))
    # The new definition is one that a commit can hold
    assert spec_from_json(spec_to_json(made)) == made
    return made


def shown(made: TableSpec) -> dict[str, str]:
    return {field.name: type_name(field.type, str.lower) for field in made.schema.fields}


def test_a_renamed_column_keeps_id_physical_name_and_its_uses() -> None:
    made = after(
        {"rename": "op", "to": "kind of op"},
        {"rename": "PLACE.City", "to": "town"},
        {"rename": "place", "to": "where"},
        {"rename": "n", "to": "number"},
        {"rename": "id", "to": "key"},
    )
    assert made.deletes == "`kind of op` = 'D' OR where.town = 'x'"
    assert made.properties["zorder"] == "number,day"
    assert [field.name for field in made.keys] == ["key"]
    renamed = made.schema.field("kind of op")
    assert (renamed.id, renamed.physical) == (3, "op")
    assert made.schema.past_of("OP") == " (it was renamed to 'kind of op')"
    with pytest.raises(InvalidInputError, match=r"no column 'id' \(it was renamed to 'key'\)"):
        made.schema.field("id")


def test_a_renamed_member_remembers_its_former_names_while_they_are_free() -> None:
    made = after({"rename": "place.city", "to": "town"}, {"rename": "place.town", "to": "place"})
    assert member(made).former == ("city", "town")
    assert member(spec_again(made)) == member(made)
    back = after({"rename": "place.Place", "to": "City"}, of=made)
    assert (member(back).name, member(back).former) == ("City", ("town", "place"))
    # The name is another member's now
    added = after({"add": "place.TOWN", "type": "int"}, of=made)
    assert member(added).former == ("city",)
    moved = after({"rename": "place.tags", "to": "city"}, of=made)
    assert member(moved).former == ("town",)


def member(spec: TableSpec) -> Field:
    """Return the first member of the column `place`."""
    kind = spec.schema.field("place").type
    assert isinstance(kind, Struct)
    return kind.fields[0]


def spec_again(spec: TableSpec) -> TableSpec:
    return spec_from_json(spec_to_json(spec))


def test_an_untouched_condition_keeps_its_text() -> None:
    text = "op  in ('D')   and n<3"
    assert after({"rename": "price", "to": "cost"}, of=spec(deletes=text)).deletes == text


def test_a_column_added_after_a_drop_of_its_name_has_another_physical_name() -> None:
    made = after(
        {"drop": "price"},
        {"drop": "place.tags.element.n"},
        {"add": "price", "type": "double", "first": True},
        {"add": "place.tags.element.n", "type": "array<int>", "after": "word"},
    )
    price = made.schema.field("price")
    assert (price.id, price.physical) == (18, "price_18")
    assert shown(made)["place"] == (
        "struct<city: string, tags: array<struct<word: string, n: array<int>>>, "
        "by_key: map<struct<k: int>, struct<v: float>>>"
    )
    assert made.schema.names[0] == "price"
    assert made.schema.created_id == 17
    assert "n_19" in str(schema_to_json(made.schema))
    assert not made.schema.had("price")


def test_moves_keep_all_columns() -> None:
    made = after(
        {"move": "place", "first": True},
        {"move": "id", "after": "day"},
        {"move": "place.by_key", "after": "city"},
    )
    assert made.schema.names == ["place", "at", "op", "n", "price", "day", "id"]
    assert shown(made)["place"].startswith("struct<city: string, by_key: map<")


def test_widened_columns_remember_their_earlier_types() -> None:
    made = after(
        {"widen": "id", "type": "bigint"},
        {"widen": "at", "type": "int"},
        {"widen": "at", "type": "bigint"},
        {"widen": "price", "type": "decimal(38,2)"},
        {"widen": "place.by_key.value.v", "type": "double"},
        {"widen": "place.by_key.key.k", "type": "long"},
        {"widen": "day", "type": "timestamp_ntz"},
    )
    assert made.schema.field("at").earlier == ("short", "integer")
    assert made.schema.field("price").earlier == ("decimal(5,2)",)
    assert shown(made)["day"] == "timestamp_ntz"


def test_changes_without_effect_are_left_out() -> None:
    before = spec()
    same = [
        {"rename": "id", "to": "id"},
        {"widen": "n", "type": "long"},
        {"move": "id", "first": True},
        {"move": "at", "after": "id"},
    ]
    made, effective = changed(before, changes_of(same))
    assert (made, effective) == (before, [])


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"drop": "id"}, "column 'id' cannot be dropped: the key of the table needs it"),
        ({"drop": "at"}, "the delta of the table needs it"),
        ({"drop": "op"}, "the delete condition of the table needs it"),
        ({"drop": "place"}, "the delete condition of the table needs it"),
        ({"drop": "place.city"}, "the delete condition of the table needs it"),
        ({"drop": "n"}, "the property 'zorder' of the table needs it"),
        ({"drop": "place.by_key.key.k"}, "belongs to the keys of a map"),
        ({"drop": "place.by_key.value.v"}, "is the only member of 'place.by_key.value'"),
        ({"drop": "place.tags.element"}, "a part that every list or map has"),
        ({"drop": "nope"}, "no column 'nope'; the table has 'id', 'at'"),
        ({"drop": "place.nope"}, "column 'place' has no part 'nope'; it has 'city', 'tags'"),
        ({"drop": "id.x"}, "column 'id' is INT and has no part 'x'"),
        ({"drop": ""}, "'' is not a path to a column"),
        ({"drop": "a..b"}, "is not a path to a column"),
        ({"rename": "op", "to": "N"}, "differ in case only|two columns are called"),
        ({"rename": "op", "to": "place.op"}, "is a path, and a column stays where it is"),
        ({"rename": "op", "to": "_opal_x"}, "reserved for the format"),
        ({"rename": "n", "to": "a,b"}, "choose one without commas"),
        ({"rename": "place.tags.element", "to": "e"}, "cannot be renamed"),
        ({"rename": "place.city", "to": "tags"}, "two columns are called 'tags'"),
        ({"add": "id", "type": "int"}, "column 'id' exists already, as INT"),
        ({"add": "place.CITY", "type": "int"}, "column 'place.city' exists already, as STRING"),
        ({"add": "op.x", "type": "int"}, "column 'op' is STRING, not a STRUCT"),
        ({"add": "place.tags.x", "type": "int"}, "name its part, for example 'place.tags.element'"),
        ({"add": "place.by_key.key.x", "type": "int"}, "belongs to the keys of a map"),
        ({"add": "x", "type": "text"}, "column 'x': 'text' is not a type"),
        ({"add": "x", "type": "int", "after": "nope"}, "after='nope' is not next to 'x'"),
        ({"add": "x", "type": "int", "after": "at", "first": True}, "leave out one of them"),
        ({"add": "x"}, "add needs 'type'"),
        ({"add": "x", "type": "int", "of": 3}, "add has no argument of"),
        ({"move": "op"}, "lacks the place"),
        ({"move": "op", "after": "place.city"}, "is not next to 'op'"),
        ({"move": "place.tags.element", "first": True}, "cannot be moved"),
        ({"widen": "n", "type": "int"}, "column 'n' is BIGINT and cannot become INT"),
        ({"widen": "price", "type": "decimal(7,3)"}, "cannot become DECIMAL"),
        ({"widen": "price", "type": "decimal(4,2)"}, "cannot become DECIMAL"),
        ({"widen": "op", "type": "binary"}, "cannot become BINARY"),
        ({"widen": "day", "type": "timestamp"}, "cannot become TIMESTAMP:"),
        ({"widen": "place", "type": "int"}, "name the part that gets a wider type"),
        ({"widen": "n", "type": "array<int>"}, "name the part that gets a wider type"),
        ({"rename": "n", "drop": "n"}, "has 2 of the keys"),
        ({"remove": "n"}, "has 0 of the keys"),
        ({"rename": 5, "to": "a"}, "rename=5 is not valid"),
        ({"move": "op", "first": "yes"}, "first='yes' is not valid"),
    ],
)
def test_a_change_that_does_not_fit_is_an_error(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        after(change)


def test_an_error_in_a_list_of_changes_names_the_change() -> None:
    with pytest.raises(InvalidInputError, match="change 2 of 3: no column 'price'"):
        after({"drop": "price"}, {"drop": "price"}, {"drop": "day"})


def test_a_date_that_something_counts_in_days_stays_a_date() -> None:
    layout = TableLayout(keys=["id"], delta="day", partition_by=["day"])
    made = plan_spec(COLUMNS, layout)
    with pytest.raises(InvalidInputError, match="belongs to the delta and the partitioning"):
        after({"widen": "day", "type": "timestamp_ntz"}, of=made)
    with pytest.raises(InvalidInputError, match="ORC files hold dates and timestamps as plain"):
        after({"widen": "day", "type": "timestamp_ntz"}, of=spec(file_format="orc"))


def test_a_delta_column_gets_no_more_digits_than_order_words_hold() -> None:
    made = plan_spec(COLUMNS, TableLayout(keys=["id"], delta="price"))
    assert after({"widen": "price", "type": "decimal(18,2)"}, of=made).delta.earlier
    with pytest.raises(InvalidInputError, match="delta column 'price' has type DECIMAL"):
        after({"widen": "price", "type": "decimal(19,2)"}, of=made)


def test_a_type_on_which_the_delete_condition_relies_does_not_widen() -> None:
    with pytest.raises(InvalidInputError, match=r"the delete condition .* has a fault"):
        after(
            {"widen": "day", "type": "timestamp_ntz"},
            of=spec(deletes="length(op) > 3 AND day = date(day)"),
        )


def test_changes_are_equal_after_a_round_trip_through_json() -> None:
    changes = [
        AddColumn("a.b", pa.list_(pa.int32()), after="c"),
        RenameColumn("a", "b"),
        MoveColumn("a", first=True),
        WidenColumn("n", "bigint"),
    ]
    data = [change.to_json() for change in changes]
    assert data[0] == {"add": "a.b", "type": "ARRAY<INT>", "after": "c"}
    assert changes_of(data) == changes


@pytest.mark.parametrize("names", [("a",), ("a b", "c"), ("a.b", "`"), ("", "x"), ("é", " y")])
def test_a_path_is_read_as_it_was_written(names: tuple[str, ...]) -> None:
    if all(names):
        assert path_of(path_text(names)) == names


def test_stored_schemas_with_impossible_earlier_types_are_refused() -> None:
    data = schema_to_json(after({"widen": "id", "type": "bigint"}).schema)
    for wrong in (["string"], ["integer", "byte"], "integer", [3]):
        data["fields"][0]["earlier"] = wrong
        with pytest.raises(ValueError):
            schema_from_json(data)


def test_a_pipeline_may_request_the_table_as_it_was_created() -> None:
    made = after(
        {"rename": "id", "to": "key"},
        {"rename": "op", "to": "kind"},
        {"rename": "n", "to": "number"},
        {"widen": "key", "type": "bigint"},
        {"drop": "price"},
        {"add": "place.zip", "type": "int"},
        {"drop": "place.tags.element.n"},
        {"widen": "place.by_key.value.v", "type": "double"},
    )
    created = {"deletes": "op = 'D' or place.city='x'", "properties": {"zorder": "n,day"}}
    first = TableLayout(keys=["id"], delta="at", **created)
    now = TableLayout(keys=["key"], delta="at", deletes=made.deletes)
    columns = arrow_schema(made.schema)
    for layout in (first, now):
        for requested in (None, COLUMNS, columns):
            refuse_another_spec("lake/t", made, requested, layout)


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({"id": pa.string()}, "column 'key' is BIGINT, not STRING"),
        ({"id": pa.int16()}, "column 'key' is BIGINT, not SMALLINT"),
        ({"more": pa.int16()}, "column 'more' is missing"),
        ({"place": pa.struct([("city", pa.int32())])}, "column 'place' is STRUCT"),
        ({"n": pa.int32()}, "column 'n' is BIGINT, not INT"),
    ],
)
def test_a_request_for_columns_that_never_were_is_refused(
    columns: dict[str, pa.DataType], problem: str
) -> None:
    made = after({"rename": "id", "to": "key"}, {"widen": "key", "type": "bigint"})
    given = dict(zip(COLUMNS.names, COLUMNS.types, strict=True))
    layout = TableLayout(keys=["id"], delta="at", deletes=made.deletes)
    with pytest.raises(InvalidInputError, match=problem):
        refuse_another_spec("lake/t", made, pa.schema({**given, **columns}), layout)


def test_a_default_is_stored_in_the_form_of_bounds() -> None:
    literals = {
        "boolean": ("true", True),
        "tinyint": (-7, -7),
        "bigint": ("9223372036854775807", (1 << 63) - 1),
        "float": (0.5, 0.5),
        "decimal(30,2)": ("12345678901234567890.1", "12345678901234567890.10"),
        "string": ("'it''s'", "it's"),
        "binary": (b"\x00\xff", "00ff"),
        "date": (date(1969, 12, 31), -1),
        "timestamp": (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        "timestamp_ntz": ("TIMESTAMP_NTZ '1970-01-01 00:00:00.000001'", 1),
    }
    for kind, (given, stored) in literals.items():
        field = after({"add": "new", "type": kind, "default": given}).schema.field("new")
        assert (field.initial, field.write) == (stored, stored), kind
        field = after({"add": "new", "type": kind}).schema.field("new")
        assert (field.initial, field.write) == (None, None)


def test_the_default_for_new_rows_changes_and_the_initial_value_does_not() -> None:
    added = after({"add": "new", "type": "date", "default": "DATE '1970-01-02'"})
    changed_later = after({"set_default": "new", "value": "DATE '1970-01-03'"}, of=added)
    field = changed_later.schema.field("new")
    assert (field.initial, field.write) == (1, 2)
    widened = after({"widen": "new", "type": "timestamp_ntz"}, of=changed_later)
    field = after({"rename": "new", "to": "newer"}, of=widened).schema.field("newer")
    assert (field.initial, field.write) == (86_400_000_000, 2 * 86_400_000_000)
    field = after({"drop_default": "new"}, of=added).schema.field("new")
    assert (field.initial, field.write) == (1, None)
    again = after({"drop": "new"}, {"add": "new", "type": "date"}, of=added).schema.field("new")
    assert (again.initial, again.write) == (None, None)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"add": "x", "type": "int", "default": 1.5}, "of type INT"),
        ({"add": "x", "type": "tinyint", "default": 300}, "of type TINYINT"),
        ({"add": "x", "type": "string", "default": "new"}, "a text in quotes within quotes"),
        ({"add": "x", "type": "decimal(5,2)", "default": "0.001"}, r"of type DECIMAL\(5,2\)"),
        ({"add": "x", "type": "string", "default": f"'{'x' * 257}'"}, "at most 256 bytes"),
        ({"add": "x", "type": "double", "default": float("nan")}, "the default of column 'x'"),
        ({"add": "x", "type": "int", "default": [1]}, r"default=\[1\] is not valid"),
        ({"add": "x", "type": "array<int>", "default": 1}, "only columns without parts"),
        ({"add": "place.x", "type": "int", "default": 1}, "only whole columns have a default"),
        ({"set_default": "place.city", "value": "'x'"}, "only whole columns have a default"),
        ({"set_default": "id", "value": 1}, "is a key or the delta"),
        ({"set_default": "n", "value": "NULL"}, "drop_default has that effect"),
        ({"set_default": "n", "value": "at + 1"}, "Write a literal of that type"),
        ({"set_default": "n"}, "needs 'value'"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        after(change)


def test_a_stored_default_that_no_column_has_is_refused() -> None:
    data = schema_to_json(after({"add": "new", "type": "int", "default": 1}).schema)
    for column, key, value in (
        (7, "initial", "1"),
        (7, "write", True),
        (7, "write", 1 << 40),
        (6, "write", 1),
        (0, "initial", 1),
    ):
        forged = deepcopy(data)
        forged["fields"][column][key] = value
        with pytest.raises(ValueError, match=r"default|initial"):
            schema_from_json(forged)
    forged = deepcopy(data)
    forged["fields"][6]["type"]["struct"][0]["write"] = "x"
    with pytest.raises(ValueError, match="the part 'city' of a column has a default"):
        schema_from_json(forged)
