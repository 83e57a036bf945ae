"""Keys, headers and times of messages as columns; tombstones; deletes by the condition."""

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_stream.formats.decoder import Decoder
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.orders import bad, decode, good, new_spec, order


def test_columns_may_come_from_the_message() -> None:
    spec = new_spec(
        id=pa.int64(),
        op=pa.string(),
        at=pa.timestamp("us", "UTC"),
        key=pa.string(),
        trace=pa.binary(),
        part=pa.int32(),
        nth=pa.int64(),
    )
    columns = {
        "at": "@timestamp",
        "key": "@key",
        "trace": "@header.trace",
        "part": "@partition",
        "nth": "@offset",
    }
    [row] = good(
        decode(
            [{"id": 1}],
            FormatOptions(columns=columns),
            spec,
            keys=[b"k"],
            headers=[[("trace", b"\xff"), ("x", None)]],
        )
    )
    assert (row["key"], row["trace"], row["part"], row["nth"], row["at"].year) == (
        "k",
        b"\xff",
        3,
        100,
        2023,
    )


def test_a_message_names_a_few_of_many_new_columns() -> None:
    many = {f"new{number:05}": 1 for number in range(10_000)}
    reasons = bad(
        decode(
            [order(0) | many, order(1) | {"x" * 100_000: 1}],
            FormatOptions(on_new_columns="quarantine"),
        )
    )
    first = ", ".join(f"'new{number:05}'" for number in range(10))
    assert reasons["orders/3@100"] == f"the table has no columns {first} and 9,990 more"
    assert reasons["orders/3@101"] == f"the table has no column '{'x' * 80}...'"


@pytest.mark.parametrize("policy", ["fail", "add", "quarantine"])
def test_a_member_that_is_a_column_but_for_its_case_makes_its_message_bad(policy: str) -> None:
    values = [
        order(0),
        order(1) | {"TOTAL": 5},
        order(2) | {"OP": None},
        order(3) | {"Id": 7, "new": 1},
    ]
    decoded = decode(values, FormatOptions(on_new_columns=policy))
    reasons = bad(decoded)
    assert (
        reasons["orders/3@101"]
        == "member 'TOTAL' differs from column 'total' in case only; write it as the table does"
    )
    assert reasons["orders/3@103"].startswith("member 'Id' differs from column 'id'")
    assert reasons.keys() == {"orders/3@101", "orders/3@103"}
    assert [row["id"] for row in good(decoded)] == [0, 2]
    assert decoded.new is None


def test_members_of_the_key_may_be_columns_and_a_bad_key_is_a_bad_message() -> None:
    options = FormatOptions(columns={"id": "@key.id"})
    decoded = decode([order(0)] * 3, options, keys=[b'{"id": 7}', b"seven", None])
    assert [row["id"] for row in good(decoded)] == [7]
    assert list(bad(decoded)) == ["orders/3@101", "orders/3@102"]


@pytest.mark.parametrize("key, number", [(b"7", 7), (b'{"id": 7}', 7)])
def test_a_tombstone_deletes_the_key_at_the_time_of_the_message(key: bytes, number: int) -> None:
    [row, _] = sorted(
        good(decode([order(1), None], keys=[None, key])), key=lambda row: not row["_opal_deleted"]
    )
    assert (row["id"], row["_opal_deleted"], row["at"].second) == (number, True, 21)


def test_tombstones_are_skipped_where_the_stream_ignores_them() -> None:
    messages = [order(1), None, None]
    decoded = decode(messages, FormatOptions(on_tombstone="ignore"), keys=[None, b"1", b"x"])
    assert [(row["id"], row["_opal_deleted"]) for row in good(decoded)] == [(1, False)]
    assert (decoded.skipped, bad(decoded)) == (2, {})


def test_each_tombstone_s_key_is_judged_alone() -> None:
    keys = [b"1", b'{"id": 2}', b'{"other": 1}', b"x", b"3"]
    decoded = decode([None] * 5, keys=keys)
    assert sorted(row["id"] for row in good(decoded)) == [1, 2, 3]
    assert bad(decoded).keys() == {"orders/3@102", "orders/3@103"}
    text = plan_spec(
        pa.schema([("id", pa.string()), ("at", pa.int64())]),
        TableLayout(keys=["id"], delta="at", deletes="id = ''"),
    )
    columns = {"at": "@offset"}
    assert [
        row["id"]
        for row in good(
            decode([None] * 2, FormatOptions(columns=columns), text, keys=[b"x", b'{"a": 1}'])
        )
    ] == ["x"]


@pytest.mark.parametrize(
    "kind, filled", [(pa.int64(), "at=@offset"), (pa.date32(), "at=@timestamp")]
)
def test_a_tombstone_of_a_table_whose_delta_is_no_timestamp_says_what_to_write(
    kind: pa.DataType, filled: str
) -> None:
    spec = new_spec(id=pa.int64(), op=pa.string(), at=kind)
    decoded = decode([{"id": 1, "at": 1}, None, None], spec=spec, keys=[None, b"1", b"x"])
    reasons = bad(decoded)
    name, what = filled.split("=")
    assert reasons["orders/3@101"] == (
        "a tombstone has no value for the delta column 'at', which is not a timestamp: fill the "
        f"column from each message, for example columns={{'at': {what!r}}} (--column {filled})"
    )
    assert "x" in reasons["orders/3@102"], "a key that is none is said first"
    [row] = good(decode([None], FormatOptions(columns={name: what}), spec, keys=[b"1"]))
    assert row["_opal_deleted"]
    assert row["at"] is not None


def test_a_tombstone_without_a_key_and_one_for_a_table_without_deletes_are_bad() -> None:
    assert bad(decode([None])) == {"orders/3@100": "key column 'id' is null"}
    plain = plan_spec(
        pa.schema([("id", pa.int64()), ("at", pa.int64())]), TableLayout(keys=["id"], delta="at")
    )
    assert (
        "the table has no delete condition"
        in bad(decode([None], spec=plain, keys=[b"1"]))["orders/3@100"]
    )


@pytest.mark.parametrize(
    "condition, deleted",
    [
        ("op = 'D'", [1]),
        ("op in ('D', 'I')", [0, 1]),
        ("OP == 'I'", [0]),
        ("op IS NULL", [2]),
        ("total = 5", [1]),
        ("gone", [2]),
        ("upper(op) LIKE 'd' OR NOT (total > 1) OR id % 3 = 2", [0, 2]),
    ],
)
def test_deletes_are_those_of_the_table_s_condition(condition: str, deleted: list[int]) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("op", pa.string()),
            ("total", pa.int64()),
            ("gone", pa.bool_()),
            ("at", pa.int64()),
        ]
    )
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at", deletes=condition))
    values = [
        {"id": 0, "op": "I", "total": 1, "at": 1},
        {"id": 1, "op": "D", "total": 5, "at": 1, "gone": False},
        {"id": 2, "at": 1, "gone": True},
    ]
    assert [row["id"] for row in good(decode(values, spec=spec)) if row["_opal_deleted"]] == deleted


def test_a_condition_that_is_not_of_the_language_is_refused_at_the_start() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at", deletes="id = 'D'"))
    with pytest.raises(InvalidInputError, match="the STRING 'D' are not comparable"):
        Decoder(spec, FormatOptions())


def test_a_message_for_which_the_condition_divides_by_zero_is_bad() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at", deletes="10 / at > 5"))
    decoded = decode([{"id": 1, "at": 0}, {"id": 2, "at": 1}, {"id": 3, "at": 5}], spec=spec)
    assert bad(decoded) == {"orders/3@100": "the delete condition '10 / at > 5' divides by zero"}
    assert [(row["id"], row["_opal_deleted"]) for row in good(decoded)] == [(2, True), (3, False)]


@pytest.mark.parametrize(
    "options, message",
    [
        (FormatOptions(format="avro"), "needs a schema registry: give its address"),
        (FormatOptions(columns={"at": "@op"}), "unknown path '@op'"),
        (FormatOptions(columns={"when": "@timestamp"}), "column 'when' is not in the table"),
    ],
)
def test_options_that_fit_nothing_are_refused(options: FormatOptions, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        decode([], options)
