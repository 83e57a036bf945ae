"""Sources of statements: their names, types, defaults and generated columns."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.fitted_rows import fitted_rows
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("at", pa.int64()),
        ("ratio", pa.float32()),
        ("paid", pa.bool_()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("name", pa.string()),
    ]
)
ROW = {"id": 1, "at": 1, "ratio": 0.5, "paid": True, "seen": NOON, "day": NOON.date(), "name": "x"}
VERBS = ("upsert", "insert", "overwrite", "merge")


def create(schema: pa.Schema = SCHEMA, key: str = "id", **layout: Any) -> Table:
    spec = plan_spec(schema, TableLayout(keys=[key], delta="at", **layout))
    return create_on(MemoryStorage(), spec)


def rows(**columns: Any) -> pa.Table:
    table = pa.Table.from_pylist([ROW], schema=SCHEMA)
    for name, values in columns.items():
        position = table.schema.get_field_index(name)
        if position < 0:
            table = table.append_column(name, values)
        else:
            table = table.set_column(position, name, values)
    return table


def write(table: Table, verb: str, given: pa.Table) -> None:
    if verb == "merge":
        table.merge(given, on="t.id = s.id").when_not_matched_insert_all().execute()
    else:
        getattr(table, verb)(given)


LOCAL = pa.array([datetime(2026, 1, 1, 5)])
OTHER_TYPES: list[tuple[str, pa.Array]] = [
    ("ratio", pa.array([1e300])),
    ("paid", pa.array([7])),
    ("at", pa.array(["12"])),
    ("seen", LOCAL),
    ("day", LOCAL),
    ("name", pa.array([5])),
    ("at", pa.array([1], pa.uint64())),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name, values", OTHER_TYPES)
def test_a_value_of_another_type_is_refused(verb: str, name: str, values: pa.Array) -> None:
    table = create()
    with pytest.raises(InvalidInputError, match=f"column '{name}'.*cast it"):
        write(table, verb, rows(**{name: values}))
    assert table.read().num_rows == 0


OTHER_ENCODINGS: list[tuple[str, pa.Array, Any]] = [
    ("name", pa.nulls(1), None),
    ("name", pa.array(["y"]).dictionary_encode(), "y"),
    ("name", pa.array(["y"], pa.string_view()), "y"),
    ("name", pa.array(["y"], pa.large_string()), "y"),
    ("seen", pa.array([NOON], pa.timestamp("ns", tz="UTC")), NOON),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name, values, expected", OTHER_ENCODINGS)
def test_a_value_of_another_encoding_is_taken(
    verb: str, name: str, values: pa.Array, expected: Any
) -> None:
    table = create()
    write(table, verb, rows(**{name: values}))
    assert table.read()[name].to_pylist() == [expected]


@pytest.mark.parametrize("verb", VERBS)
def test_names_go_by_the_spelling_of_the_table(verb: str) -> None:
    table = create()
    given = rows().rename_columns([name.upper() for name in SCHEMA.names])
    write(table, verb, given)
    assert table.read().to_pylist() == [ROW]
    both = given.append_column("id", given["ID"])
    with pytest.raises(InvalidInputError, match="more than one column 'id'"):
        write(table, verb, both)


@pytest.mark.parametrize("verb", VERBS)
def test_a_source_without_the_key_is_refused(verb: str) -> None:
    with pytest.raises(InvalidInputError, match=r"no column 'id'|needs the columns id"):
        write(create(), verb, rows().drop_columns(["id"]))


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_column_has_its_default(verb: str) -> None:
    table = create()
    table.alter(
        [
            {"add": "currency", "type": "string", "default": "'EUR'"},
            {"set_default": "name", "value": "'new'"},
        ]
    )
    write(table, verb, rows().drop_columns(["name"]))
    (row,) = table.read().to_pylist()
    assert (row["currency"], row["name"]) == ("EUR", "new")


def test_an_overwrite_has_defaults_in_the_rows_that_it_replaces() -> None:
    table = create()
    table.alter([{"set_default": "name", "value": "'new'"}])
    table.upsert(rows())
    table.overwrite(rows().drop_columns(["name"]))
    assert table.read()["name"].to_pylist() == ["new"]


def test_a_number_out_of_the_range_of_a_float_is_refused() -> None:
    table = create()
    table.upsert(rows())
    with pytest.raises(InvalidInputError, match=r"'ratio' of type FLOAT cannot hold: 1e\+300"):
        table.update({"ratio": "1e300"})
    merge = table.merge(rows(ratio=pa.array([-1e300])), on="t.id = s.id")
    with pytest.raises(InvalidInputError, match=r"'ratio' of type FLOAT cannot hold: 1e\+300"):
        merge.when_matched_update({"ratio": "s.ratio"}).execute()
    infinite = table.merge(rows(ratio=pa.array([float("inf")])), on="t.id = s.id")
    infinite.when_matched_update({"ratio": "s.ratio"}).execute()
    assert table.read()["ratio"].to_pylist() == [float("inf")]


def hits(table: Table, given: pa.Table, on: str = "t.id = s.id") -> int:
    return (
        table.merge(given, on=on).when_matched_update({"name": "'hit'"}).execute().counts["updated"]
    )


@pytest.mark.parametrize(
    "keys, expected",
    [
        (pa.array([1], pa.int8()), 1),
        (pa.array([1, 1 << 40, -(1 << 31) - 1, None]), 1),
        (pa.array([1.0, 1.5]).cast(pa.decimal128(3, 1)), 1),
        (pa.nulls(1), 0),
    ],
)
def test_a_key_of_another_number_type_matches_what_it_equals(keys: pa.Array, expected: int) -> None:
    table = create()
    table.upsert(rows())
    assert hits(table, pa.table({"id": keys})) == expected


@pytest.mark.parametrize(
    "keys, message",
    [
        (pa.array(["1"]), "not comparable"),
        (pa.array([True]), "not comparable"),
        (pa.array([1.5]), "that are not floating-point; cast"),
        (pa.array([1], pa.uint64()), "type uint64 is not supported"),
    ],
)
def test_a_key_that_equals_no_number_exactly_is_refused(keys: pa.Array, message: str) -> None:
    table = create()
    table.upsert(rows())
    with pytest.raises(InvalidInputError, match=message):
        hits(table, pa.table({"id": keys}))


def test_a_day_does_not_match_a_time_of_it() -> None:
    table = create(key="day")
    table.upsert(rows())
    with pytest.raises(InvalidInputError, match="not comparable"):
        hits(table, pa.table({"day": LOCAL}), "t.day = s.day")
    assert hits(table, pa.table({"day": [date(2026, 1, 1)]}), "t.day = s.day") == 1


EXTRA: dict[str, Callable[[], pa.Array]] = {
    "uint64": lambda: pa.array([1], pa.uint64()),
    "null": lambda: pa.nulls(1),
    "time64": lambda: pa.array([time(1)], pa.time64("us")),
}


@pytest.mark.parametrize("kind", EXTRA)
def test_a_column_that_no_clause_reads_may_have_any_type(kind: str) -> None:
    table = create()
    table.upsert(rows())
    given = rows(extra=EXTRA[kind]())
    assert hits(table, given) == 1
    for where in ("s.extra IS NOT NULL", "extra IS NOT NULL"):
        merge = table.merge(given, on="t.id = s.id").when_matched_delete(where)
        with pytest.raises(InvalidInputError, match=f"column 'extra': type {kind}"):
            merge.execute()
    readable = rows(extra=pa.array(["y"]).dictionary_encode())
    merge = table.merge(readable, on="t.id = s.id").when_matched_update({"name": "s.extra"})
    merge.execute()
    assert table.read()["name"].to_pylist() == ["y"]


def keyed(ids: Sequence[int | None], times: Sequence[int]) -> pa.Table:
    return pa.table({"ID": pa.array(ids, pa.int32()), "at": pa.array(times)})


def test_rows_without_a_key_have_no_latest_one() -> None:
    table = create()
    table.upsert(rows())
    given = keyed([None, 1, None, 1], [5, 7, 5, 6])
    merge = table.merge(given, on="t.id = s.id", duplicates="latest")
    assert merge.when_matched_update({"at": "s.at"}).execute().counts["updated"] == 1
    assert table.read()["at"].to_pylist() == [7]
    insert = merge.when_not_matched_insert({"id": "s.id", "at": "s.at"})
    with pytest.raises(InvalidInputError, match=r"2 rows.*: key column 'id' is null"):
        insert.execute()


def test_a_merge_may_insert_without_reading_its_source() -> None:
    table = create()
    merge = table.merge(pa.table({"id": [5]}), on="t.id = s.id")
    merge.when_not_matched_insert({"id": "7", "at": "1"}).execute()
    assert table.read()["id"].to_pylist() == [7]


def test_generated_columns_need_texts_that_can_be_read() -> None:
    fields = [("id", pa.int32()), ("at", pa.int64()), ("a", pa.string()), ("b", pa.string())]
    table = create(pa.schema(fields), generated={"b": "upper(a)"})
    wrong = pa.array([b"\xff"]).view(pa.string())
    given = pa.table({"id": pa.array([1], pa.int32()), "at": [1], "a": wrong})
    for verb in ("insert", "overwrite"):
        with pytest.raises(InvalidInputError, match=r"column 'a' of the rows holds text.*UTF-8"):
            write(table, verb, given)
    good = given.set_column(2, "a", pa.array(["é e"]))
    assert fitted_rows(good, table.snapshot_at().spec)["b"].to_pylist() == ["é E"]


@pytest.mark.parametrize("verb", ["insert", "overwrite"])
def test_reserved_names_are_refused(verb: str) -> None:
    for name in ("_opal_deleted", "_opal_x"):
        with pytest.raises(InvalidInputError, match="reserved for the format"):
            write(create(), verb, rows(**{name: pa.array([True])}))
