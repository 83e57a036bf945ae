"""New columns of several parts of a batch."""

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import (
    NewColumns,
    is_new,
    merge_new_columns,
    split_by_case,
    split_by_refused_column,
)


def test_a_new_column_has_the_wider_of_two_types_or_the_first() -> None:
    parts = [
        NewColumns(
            columns=pa.schema([("x", pa.int64()), ("y", pa.int64())]), names={0: ("x", "y")}
        ),
        None,
        NewColumns(columns=pa.schema([("x", pa.float64())]), names={3: ("x",)}),
        NewColumns(
            columns=pa.schema([("y", pa.string()), ("z", pa.bool_())]), names={5: ("y", "z")}
        ),
    ]
    new = merge_new_columns(parts)
    assert new is not None
    assert new.columns == pa.schema([("x", pa.float64()), ("y", pa.int64()), ("z", pa.bool_())])
    assert (new.first, sorted(new.names), new.moved(range(10, 20)).first) == (0, [0, 3, 5], 10)
    assert merge_new_columns([None]) is None


def test_names_that_differ_in_case_only_make_their_messages_bad_and_no_column() -> None:
    known = frozenset({"id", "at"})
    assert [is_new(name, known) for name in ("id", "ID", "x")] == [False, True, True]
    assert not is_new("x", None)
    actual = {0: ("x",), 1: ("ID",), 2: ("x", "At")}
    new, wrong = split_by_case(
        NewColumns(
            columns=pa.schema([("x", pa.int64()), ("ID", pa.int64()), ("At", pa.int64())]),
            names=actual,
        ),
        known,
    )
    assert wrong.keys() == {1, 2}
    assert new == NewColumns(columns=pa.schema([("x", pa.int64())]), names={0: ("x",)})
    assert (
        split_by_case(
            NewColumns(columns=pa.schema([("ID", pa.int64())]), names={0: ("ID",)}), known
        )[0]
        is None
    )


def test_members_like_a_column_that_is_filled_from_elsewhere_are_left_out() -> None:
    given = NewColumns(
        columns=pa.schema([("x", pa.int64()), ("AT", pa.int64())]),
        names={0: ("AT",), 1: ("x", "AT")},
    )
    left = NewColumns(columns=pa.schema([("x", pa.int64())]), names={1: ("x",)})
    assert split_by_case(given, ["id", "at"], filled={"at": "@timestamp"}) == (left, {})


def test_a_message_is_refused_for_its_own_type_and_not_for_that_of_its_neighbour() -> None:
    parts = [
        NewColumns(columns=pa.schema([("x", pa.null())]), names={0: ("x",)}),
        NewColumns(columns=pa.schema([("x", pa.int32())]), names={1: ("x",)}),
        NewColumns(columns=pa.schema([("x", pa.int64())]), names={2: ("x",)}),
    ]
    new = merge_new_columns(parts)
    assert new is not None
    left, wrong = split_by_refused_column(new, {("x", "null"): "a map"})
    assert wrong == {0: "the table has no column 'x', and cannot get it: a map"}
    assert left is not None
    assert (left.columns, left.names) == (
        pa.schema([("x", pa.int64())]),
        {1: ("x",), 2: ("x",)},
    )
    assert left.of_first_message().columns == pa.schema([("x", pa.int32())])


def test_a_refused_joint_type_makes_all_its_messages_bad() -> None:
    kinds = [pa.struct([(name, pa.int64())]) for name in ("a", "b")]
    parts = [
        NewColumns(columns=pa.schema([("x", kind)]), names={position: ("x",)})
        for position, kind in enumerate(kinds)
    ]
    new = merge_new_columns(parts)
    assert new is not None
    left, wrong = split_by_refused_column(
        new, {("x", str(new.columns.field("x").type)): "a reason"}
    )
    assert (left, sorted(wrong)) == (None, [0, 1])
