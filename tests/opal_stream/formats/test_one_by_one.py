"""A batch decodes as its messages alone: the same rows, and bad ones for the same reasons.

OPAL_JSON_BATCHES says how many batches the slow test decodes (10,000).
"""

import json
import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.orders import batch
from tests.opal_stream.toast import UNCHANGED

BATCHES = int(os.environ.get("OPAL_JSON_BATCHES", "10000"))
PLACEHOLDERS = [*UNCHANGED.values(), [UNCHANGED["note"]]]
TYPES = [
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.decimal128(9, 2),
    pa.list_(pa.int32()),
    pa.list_(pa.string()),
    pa.struct([("a", pa.int64()), ("b", pa.string())]),
]
TEXTS = ["", "a", "7", "1.5", "true", "2026-01-02", "2026-01-02T03:04:05.123456Z", "YQ==", "é\n"]
NUMBERS = [0, 1, -1, 7, 20_000, 1_700_000_000_000, 2**40, 2**63, 0.5, 1e300]
LEAVES = st.sampled_from([None, True, False, *TEXTS, *NUMBERS])
VALUES = st.one_of(
    LEAVES,
    st.lists(LEAVES, max_size=2),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), LEAVES, max_size=2),
    st.sampled_from(PLACEHOLDERS),
)
NAMES = ["x", "y", "z"]
BROKEN = [b"", b"{", b"[]", b"{}", b"7", b'{"id": 1} {"id": 2}', b'{"id": 1}\n', b"\xff", b"null"]
CONNECT = {
    "int32": {"type": "int32"},
    "string": {"type": "string"},
    "bytes": {"type": "bytes"},
    "double": {"type": "double"},
    "date": {"type": "int32", "name": "io.debezium.time.Date"},
    "micros": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    "decimal": {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
    },
}


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    row: dict[str, Any] = {"id": draw(st.sampled_from([1, 2, 3, None, "k"]))}
    if draw(st.booleans()):
        row["id"] = 1
    for name in [*NAMES, "new", "X"]:
        if draw(st.integers(0, 3 if name in NAMES else 30)) == 1:
            row[name] = draw(VALUES)
    return row


@st.composite
def events(draw: st.DrawFn) -> Any:
    """Mostly sound ones."""
    op = draw(st.sampled_from(["c", "u", "u", "r", "d", "d", "t", None]))
    after, before = draw(rows()), draw(rows())
    payload = {
        "before": draw(st.sampled_from([before, before, None])) if op in ("d", "u") else None,
        "after": None if op == "d" else draw(st.sampled_from([after, after, after, None])),
        "op": op,
        "ts_ms": 5,
    }
    match draw(st.integers(0, 3)):
        case 0:
            return {"payload": payload}
        case 1:
            names = [*NAMES, "new"]
            types = draw(st.fixed_dictionaries(dict.fromkeys(names, st.sampled_from([*CONNECT]))))
            fields = [{**CONNECT[kind], "field": name} for name, kind in types.items()]
            sides = [
                {"type": "struct", "fields": fields, "field": side} for side in ("before", "after")
            ]
            return {"schema": {"type": "struct", "fields": sides}, "payload": payload}
    return payload


@st.composite
def batches(draw: st.DrawFn) -> tuple[TableSpec, FormatOptions, MessageBatch]:
    is_debezium = draw(st.booleans())
    types = {name: draw(st.sampled_from(TYPES)) for name in NAMES}
    spec = plan_spec(
        pa.schema({"id": pa.int64(), **types, "at": pa.timestamp("us", "UTC"), "op": pa.string()}),
        TableLayout(keys=["id"], delta="at", deletes=draw(st.sampled_from(["op = 'd'", None]))),
    )
    columns = {"at": "@timestamp", **({"op": "@op"} if is_debezium else {})}
    options = FormatOptions(
        format="debezium-json" if is_debezium else "json",
        columns=columns,
        time_unit=draw(st.sampled_from(["ms", "us"])),
        on_new_columns=draw(st.sampled_from(["fail", "add", "ignore", "quarantine"])),
    )
    message = st.one_of(
        (events() if is_debezium else rows()).map(lambda entry: json.dumps(entry).encode()),
        (events() if is_debezium else rows()).map(lambda entry: json.dumps(entry).encode()),
        st.sampled_from([None, *BROKEN]),
    )
    values = draw(st.lists(message, min_size=2, max_size=8))
    keys = [draw(st.sampled_from([None, b"1", b'{"id": 1}', b"{"])) for _ in values]
    return spec, options, batch(values, keys=keys)


def of_all(decoded: Decoded) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Rows, reasons and new columns by the place of the message."""
    actual = {row["_opal_source"]: row for row in decoded.rows.to_pylist()}
    assert len(actual) == decoded.rows.num_rows
    reasons = {bad.source: bad.reason for bad in decoded.bad}
    new = decoded.new
    lacks: dict[str, Any] = {}
    for position in new.positions if new is not None else ():
        assert new is not None
        names, own = new.names.get(position, ()), new.own(position)
        # Without a schema a type is that of all values of a batch
        types = [own.field(name).type for name in names] if new.is_of_schemas else None
        lacks[str(position)] = (names, new.paths(position), types)
    return actual, reasons, lacks


def check(spec: TableSpec, options: FormatOptions, messages: MessageBatch) -> None:
    whole = Decoder(spec, options).decode(messages)
    rows, reasons, lacks = of_all(whole)
    skipped = 0
    new = whole.new
    first = new.first if new is not None and new.is_of_schemas else len(messages)
    is_of_first = options.on_new_columns == "add"  # what comes later is asked for again
    for position in range(len(messages)):
        alone = Decoder(spec, options).decode(messages.slice(position, position + 1))
        own_rows, own_reasons, own_lacks = of_all(alone)
        source = messages.source(position)
        value = messages.values[position]
        assert own_rows.get(source) == rows.get(source), value
        assert own_reasons.get(source) == reasons.get(source), value
        if position <= first or not is_of_first:
            own, of_batch = own_lacks.get("0"), lacks.get(str(position))
            if own is not None and of_batch is not None and None in (own[2], of_batch[2]):
                own, of_batch = own[:2], of_batch[:2]  # another message of the batch has a schema
            assert own == of_batch, value
        skipped += alone.skipped
    assert skipped == whole.skipped


@settings(max_examples=300)
@given(batches())
def test_a_batch_decodes_as_its_messages_alone(
    given_batch: tuple[TableSpec, FormatOptions, MessageBatch],
) -> None:
    check(*given_batch)


@pytest.mark.slow
@settings(max_examples=BATCHES)
@given(batches())
def test_many_batches_decode_as_their_messages_alone(
    given_batch: tuple[TableSpec, FormatOptions, MessageBatch],
) -> None:
    check(*given_batch)
