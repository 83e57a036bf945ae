"""JSON messages to rows: times in both forms, and bad messages apart from good ones."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake.errors import InvalidInputError
from opal_stream.formats.depth import MAX_DEPTH, check_depth
from opal_stream.operations.reading import FormatOptions
from tests.cpu_time import least_cpu_s
from tests.opal_stream.orders import bad, decode, good, new_spec, order

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


def test_members_become_columns_others_are_left_out_and_absent_ones_are_null() -> None:
    decoded = decode([{**order(1), "more": {"x": [1]}}, {"id": 2, "at": 5, "op": "D"}])
    first, second = good(decoded)
    assert (first["name"], first["total"], first["_opal_deleted"]) == ("n1", 0.5, False)
    assert (second["name"], second["total"], second["_opal_deleted"]) == (None, None, True)
    assert decoded.rows["_opal_source"].to_pylist() == ["orders/3@100", "orders/3@101"]


@pytest.mark.parametrize(
    "moment",
    [
        "2026-01-02T03:04:05.678Z",
        "2026-01-02T04:04:05.678+01:00",
        "2026-01-02 03:04:05.678",
        1767323045678,
    ],
)
def test_a_time_is_text_or_a_number(moment: object) -> None:
    [row] = good(decode([order(1, at=moment)]))
    assert row["at"] == MOMENT


def test_times_may_change_their_form_from_message_to_message() -> None:
    spec = new_spec(
        id=pa.int64(),
        op=pa.string(),
        at=pa.timestamp("us", "UTC"),
        day=pa.date32(),
        cost=pa.decimal128(10, 2),
    )
    values = [
        {"id": 1, "at": "2026-01-02T03:04:05.678Z", "day": "2026-01-02", "cost": "1.5"},
        {"id": 2, "at": 1767323045678, "day": 20455, "cost": 1.5},
        {"id": 3, "at": "2026-01-02T03:04:05.678Z", "day": 20455, "cost": 2},
    ]
    rows = good(decode(values, spec=spec))
    assert [(row["id"], row["at"], row["day"]) for row in rows] == [
        (n, MOMENT, date(2026, 1, 2)) for n in (1, 2, 3)
    ]
    assert [row["cost"] for row in rows] == [Decimal("1.50"), Decimal("1.50"), Decimal("2.00")]


ZONES = ["Z", "", "+00:00"]
EXACT = datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)


@pytest.mark.parametrize("form", ["json", "debezium-json", "header"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_time_of_nanoseconds_keeps_its_value_or_makes_a_bad_message(form: str, zone: str) -> None:
    digits = ["123456", "123456000", "1234560", "123456789", "1234567", "123456000"]
    times = [f"2026-01-02T03:04:05.{fraction}{zone}" for fraction in digits]
    columns: dict[str, Any] = {}
    values: list[Any] = [order(n, at=text, name=text) for n, text in enumerate(times)]
    options = FormatOptions(format="debezium-json" if form == "debezium-json" else "json")
    if form == "debezium-json":
        values = [{"before": None, "after": row, "op": "c", "ts_ms": 5} for row in values]
    if form == "header":
        options = FormatOptions(columns={"at": "@header.at"})
        columns = {"headers": [[("at", text.encode())] for text in times]}
        if not zone:
            pytest.skip("a header's time names its zone")
    decoded = decode(values, options, **columns)
    assert [(row["id"], row["at"], row["name"]) for row in good(decoded)] == [
        (n, EXACT, times[n]) for n in (0, 1, 2, 5)
    ]
    assert list(bad(decoded)) == ["orders/3@103", "orders/3@104"]
    for reason in bad(decoded).values():
        assert "has nanoseconds, but a table stores only microseconds" in reason


def test_numbers_are_of_the_unit_that_the_stream_names() -> None:
    [row] = good(decode([order(1, at=1767323045678000)], FormatOptions(time_unit="us")))
    assert row["at"] == MOMENT
    with pytest.raises(InvalidInputError, match="time_unit='h' is unknown"):
        decode([], FormatOptions(time_unit="h"))


@pytest.mark.parametrize(
    "message, reason",
    [
        (b"nope", "not a JSON object"),
        (b"", "not a JSON object"),
        (b"  ", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"id":1', "JSON parse error"),
        (b'{"id":1}{"id":2}', "more than one JSON object"),
        (b'{"id":1}\n{"id":2}', "more than one JSON object"),
        (b'{"id":"x","at":1}', "changed from number to string"),
        (b'{"id":1.5,"at":1}', "int64"),
        (b'{"id":99999999999999999999,"at":1}', "int64"),
        (b'{"id":1,"at":"soon"}', "timestamp"),
        (b'{"id":1,"at":1,"name":"\xff"}', "utf-8"),
        (b'{"at":1}', "key column 'id' is null"),
        (b'{"id":1}', "delta column 'at' is null"),
    ],
)
def test_a_bad_message_is_named_with_what_is_wrong_and_the_others_go_in(
    message: bytes, reason: str
) -> None:
    decoded = decode([order(1), message, order(2), order(3)])
    assert [row["id"] for row in good(decoded)] == [1, 2, 3]
    assert list(bad(decoded)) == ["orders/3@101"]
    assert reason in bad(decoded)["orders/3@101"]
    [remaining] = [row for row in decoded.rows.to_pylist() if row["_opal_bad"]]
    assert (remaining["_opal_source"], remaining["_opal_row"]) == (
        "orders/3@101",
        message.decode() if message.isascii() else remaining["_opal_row"],
    )


def test_a_message_may_span_lines_and_begin_with_space() -> None:
    pretty = json.dumps(order(1), indent=2).encode()
    assert [row["id"] for row in good(decode([pretty, b" \n" + pretty, order(2)]))] == [1, 1, 2]


VALUES = st.one_of(
    st.integers(0, 9).map(lambda n: json.dumps(order(n)).encode()),
    st.integers(0, 9).map(lambda n: json.dumps(order(n), indent=1).encode()),
    st.sampled_from(
        [
            b"",
            b"\n",
            b"{}",
            b"{}{}",
            b'{"id":1}\n{"id":2}',
            b"null",
            b'{"id":"x"}',
            b"}{",
            b'{"id":7,"at":"x"}',
            b'{"id":7,"at":"2026-01-02T03:04:05.123456000Z"}',
            b'{"id":8,"at":"2026-01-02T03:04:05.123456001Z"}',
        ]
    ),
    st.binary(max_size=8),
)


@given(st.lists(VALUES, max_size=12))
def test_a_batch_gives_what_its_messages_give_one_by_one(values: list[bytes]) -> None:
    """The fast way over joined lines never gives one message the row of another."""
    together = decode(values)
    alone = [decode([value]) for value in values]
    assert good(together) == [row for decoded in alone for row in good(decoded)]
    assert [message.position for message in together.bad] == [
        position for position, decoded in enumerate(alone) if decoded.bad
    ]


@pytest.mark.parametrize("first", ["2026-01-01T00:00:00Z", 1_700_000_000_000])
def test_the_reason_of_a_bad_time_does_not_depend_on_the_messages_before_it(first: Any) -> None:
    decoded = decode([order(1, at=first), order(2, at=[])])
    assert bad(decoded) == {
        "orders/3@101": "JSON parse error: Column(/at) is array, not a text or a number"
    }


SHAPES = {"lists": (b"[", b"]"), "objects": (b'{"a":', b"}"), "both": (b'[{"a\\"]":', b"}]")}
DEEP = """
import sys
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.orders import bad, decode

form, policy = sys.argv[1:]
values = sys.stdin.buffer.read().split(b"\\n")
print(bad(decode(values, FormatOptions(format=form, on_new_columns=policy))))
"""


def deep(levels: int, shape: str) -> bytes:
    """Return a value of some levels."""
    begin, end = SHAPES[shape]
    times = levels // (begin.count(b"[") + begin.count(b"{"))
    return begin * times + b"1" + end * times


def order_with(value: bytes, form: str = "json") -> bytes:
    row = json.dumps(order(1)).encode()[:-1] + b', "deep": ' + value + b"}"
    around = {
        "json": b"%b",
        "debezium-json": b'{"before":null,"op":"c","after":%b}',
        "payload": b'{"schema":null,"payload":{"before":null,"op":"c","after":%b}}',
    }
    return around[form] % row


@pytest.mark.parametrize("form", ["json", "debezium-json", "payload"])
def test_a_message_that_nests_too_deep_is_a_bad_one_and_does_not_end_the_process(form: str) -> None:
    values = [order_with(deep(40_000, shape), form) for shape in SHAPES]
    name = "json" if form == "json" else "debezium-json"
    command = [sys.executable, "-c", DEEP, name, "quarantine"]
    done = subprocess.run(command, input=b"\n".join(values), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    levels = 40_001 + ["json", "debezium-json", "payload"].index(form)
    reason = f"the message nests {levels:,} levels deep, more than the limit of {MAX_DEPTH}"
    report = {f"orders/3@{100 + number}": reason for number in range(len(SHAPES))}
    assert done.stdout.decode().strip() == str(report)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", ["fail", "add", "quarantine", "ignore"])
def test_the_limit_of_depth_is_exact_and_holds_where_new_columns_count(
    policy: str, shape: str
) -> None:
    options = FormatOptions(on_new_columns=policy)
    least = deep(MAX_DEPTH - 2, shape)
    most, beyond = b"[" + least + b"]", b"[[" + least + b"]]"
    decoded = decode([order_with(most), order_with(beyond)], options)
    reason = f"the message nests {MAX_DEPTH + 1} levels deep, more than the limit of {MAX_DEPTH}"
    report = bad(decoded)
    assert report.get("orders/3@101") == (None if policy == "ignore" else reason)
    assert ("orders/3@100" in report) == (policy == "quarantine")
    if policy in ("fail", "add"):
        assert decoded.new is not None
        assert decoded.new.positions == [0]


def test_brackets_within_texts_are_not_levels() -> None:
    text = "[{" * 1000 + '\\"'
    rows = good(decode([order(1, name=text), order(2, name=text[::-1])]))
    assert [row["name"] for row in rows] == [text, text[::-1]]


@pytest.mark.parametrize("end", [b"", b"\\"], ids=["quote", "backslash"])
def test_the_depth_of_a_text_without_an_end_is_read_in_linear_time(end: bytes) -> None:
    unfinished = b'{"text": "' + b"[" * 100 + b'\\"' * 500_000

    whole_s = least_cpu_s(lambda: check_depth(unfinished + b'"}'))
    assert least_cpu_s(lambda: check_depth(unfinished + end)) < 20 * whole_s + 0.1


@pytest.mark.slow_but_one
@pytest.mark.parametrize("level", ["column", "member", "element"])
@pytest.mark.parametrize("form", ["json", "debezium-json"])
def test_time_is_linear_in_the_members_that_the_table_lacks(form: str, level: str) -> None:
    spec = new_spec(
        id=pa.int64(),
        op=pa.string(),
        at=pa.timestamp("us", "UTC"),
        address=pa.struct([("city", pa.string())]),
        lines=pa.list_(pa.struct([("sku", pa.string())])),
    )

    def took_s(members: int) -> float:
        more = {f"m{number}": number for number in range(members)}
        within = {"column": more, "member": {"address": more}, "element": {"lines": [more]}}
        row = {"id": 1, "op": "I", "at": 5, **within[level]}
        value = row if form == "json" else {"before": None, "after": row, "op": "c", "ts_ms": 5}
        options = FormatOptions(format=form, on_new_columns="quarantine")

        def work() -> None:
            decoded = decode([value], options, spec)
            assert "table has no" in bad(decoded)["orders/3@100"]

        return least_cpu_s(work)

    few_s = took_s(1_000)
    assert took_s(8_000) < 24 * few_s  # eight times as many; 64 times as long were quadratic
