"""A batch of Avro decodes as its messages alone do, each by its own schema.

Random schemas and values against a model in plain Python, for every policy of new columns, in
change events and alone. `OPAL_AVRO_BATCHES`
says how many batches the slow test tries.
"""

import io
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from opal_lake.definition.added_columns import plan_added, unknown_columns
from opal_lake.definition.schema import arrow_schema
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.registry import SchemaRegistry
from opal_stream.operations.reading import ON_NEW_COLUMNS, FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.avro_model import (
    KINDS,
    Maker,
    MisfitError,
    encoded,
    fitted,
    new_members,
    plain,
    plain_values,
    without_branches,
)
from tests.opal_stream.orders import batch, new_spec

_SHARES = 10  # so that none of thousands of batches is longer than a test may take
COLUMNS = ("c1", "c2", "c3")
USUAL = {"id": pa.int64(), "op": pa.string(), "at": pa.timestamp("us", "UTC")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A row as it is written, its schema, and the bytes of the message."""

    schema: Any
    row: dict[str, Any]
    value: bytes


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of messages by position: rows, mistakes, new columns and members."""

    spec: TableSpec
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    bad: dict[int, Any] = field(default_factory=dict)
    new: dict[int, Any] = field(default_factory=dict)


def made(
    seed: int, registry: Registry, client: SchemaRegistry
) -> tuple[TableSpec, bool, list[Message]]:
    """Return a table, and messages of some schemas, as change events or alone."""
    random = Random(seed)
    maker = Maker(random=random)
    kinds = random.sample(KINDS, len(COLUMNS))
    is_event = random.random() < 0.3
    schemas = []
    for _ in range(random.choice((1, 2, 2, 3, 4))):
        schema = maker.schema(COLUMNS, kinds)
        number = len(registry.schemas) + 1
        registry.register(number, _event(schema) if is_event else schema, f"orders-{seed}-value")
        client.schema(number)
        schemas.append((number, schema))
    messages = []
    for position in range(random.randrange(2, 10)):
        number, schema = random.choice(schemas)
        row = maker.value(schema) | {"id": position, "op": "u", "at": 1_700_000_000_000_000}
        body = encoded(schema, row)
        body = b"\0\2" + body + b"\2u" if is_event else body
        message = b"\0" + struct.pack(">I", number) + body
        messages.append(Message(schema=schema, row=row, value=message))
    return new_spec(**USUAL, **dict(zip(COLUMNS, kinds, strict=True))), is_event, messages


def _event(schema: Any) -> Any:
    """`before` is written as null, `after` as the second branch."""
    members = [
        {"name": "before", "type": ["null", schema]},
        {"name": "after", "type": ["null", schema["name"]]},
        {"name": "op", "type": "string"},
    ]
    return {"type": "record", "name": "shop.Envelope", "fields": members}


def decoded_by(
    spec: TableSpec, options: FormatOptions, client: SchemaRegistry, messages: Sequence[Message]
) -> Outcome:
    """Decode with a new decoder, and add columns as a stream does."""
    values = batch([message.value for message in messages])
    decoder = Decoder(spec, options)
    _of(client, decoder)
    decoded = decoder.decode(values)
    while options.on_new_columns == "add" and decoded.new is not None:
        new = unknown_columns(spec.schema, decoded.new.columns)
        try:
            spec = replace(spec, schema=plan_added(spec.schema, new))
        except InvalidInputError:
            break  # the table cannot have such a column: the stream stops here
        decoder = decoder.renewed(spec)
        decoded = decoder.decode(values)
    return outcome(decoded, spec)


def _of(client: SchemaRegistry, decoder: Decoder) -> None:
    """Return a decoder whose client has asked for the schemas already."""
    decoder.parser.registry = client  # type: ignore[attr-defined]


def outcome(decoded: Decoded, spec: TableSpec) -> Outcome:
    actual = Outcome(bad={bad.position: bad.reason for bad in decoded.bad}, spec=spec)
    rows = decoded.rows.filter(pa.compute.is_null(decoded.rows["_opal_bad"]))
    places = [int(source.rpartition("@")[2]) - 100 for source in rows["_opal_source"].to_pylist()]
    assert places == sorted(places), "rows are in the order of their messages"
    columns = {name: plain_values(rows[name]) for name in arrow_schema(spec.schema).names}
    for number, index in enumerate(places):
        actual.rows[index] = {name: column[number] for name, column in columns.items()}
    if decoded.new is not None:
        for index in decoded.new.positions:
            names = {*decoded.new.names.get(index, ()), *decoded.new.paths(index)}
            actual.new[index] = names
    return actual


def alone(
    spec: TableSpec, options: FormatOptions, client: SchemaRegistry, messages: Sequence[Message]
) -> Outcome:
    """Decode each message alone, after those before it have changed the table."""
    whole = Outcome(spec=spec)
    for position, message in enumerate(messages):
        entry = decoded_by(spec, options, client, [message])
        for all_found, actual in (
            (whole.rows, entry.rows),
            (whole.bad, entry.bad),
            (whole.new, entry.new),
        ):
            if actual:
                all_found[position] = actual[0]
        if options.on_new_columns == "add" and entry.new:
            break
        spec = whole.spec = entry.spec
    names = arrow_schema(spec.schema).names
    whole.rows = {
        position: {name: row.get(name) for name in names} for position, row in whole.rows.items()
    }
    return whole


def modelled(
    spec: TableSpec, policy: str, message: Message
) -> tuple[dict[str, Any] | None, set[str]]:
    """Return the row, None for a bad message, and what the table lacks of it."""
    nodes = {field["name"]: field["type"] for field in message.schema["fields"]}
    kinds = dict(zip(*_parts(spec), strict=True))
    members = [
        path
        for name, kind in kinds.items()
        if name in nodes and pa.types.is_nested(kind)
        for path in new_members(nodes[name], kind, name)
    ]
    new = {*(name for name in nodes if name not in kinds), *members}
    try:
        row = {
            name: fitted(nodes[name], message.row[name], kind) if name in nodes else None
            for name, kind in kinds.items()
        }
    except MisfitError:
        return None, set()
    is_aside = (policy == "quarantine" and new) or (policy == "add" and members)
    return (None if is_aside else row), (set() if policy in ("ignore", "quarantine") else new)


def _parts(spec: TableSpec) -> tuple[list[str], list[pa.DataType]]:
    schema = arrow_schema(spec.schema)
    return schema.names, schema.types


def same(entry: Any, other: Any) -> bool:
    """Return whether two values are the same, of one type; a NaN is like another."""
    if isinstance(entry, dict) and isinstance(other, dict):
        return entry.keys() == other.keys() and all(
            same(entry[name], other[name]) for name in entry
        )
    if isinstance(entry, list | tuple) and isinstance(other, list | tuple):
        return len(entry) == len(other) and all(map(same, entry, other))
    if isinstance(entry, float) and isinstance(other, float) and math.isnan(entry):
        return math.isnan(other)
    return type(entry) is type(other) and bool(entry == other)


def check(seed: int, registry: Registry, client: SchemaRegistry) -> int:
    """Compare a batch by one of the policies; return how many of its messages are bad."""
    spec, is_event, messages = made(seed, registry, client)
    policy = ON_NEW_COLUMNS[seed % len(ON_NEW_COLUMNS)]
    options = FormatOptions(
        format="debezium-avro" if is_event else "avro",
        registry=registry.url,
        columns={"op": "@op"} if is_event else {},
        on_new_columns=policy,
    )
    case = f"seed {seed}, policy {policy}"
    together = decoded_by(spec, options, client, messages)
    apart = alone(spec, options, client, messages)
    stop = min([*apart.new, len(messages)]) if policy == "add" else len(messages)
    rows, wrong = before(stop, together)
    lone_rows, lone_wrong = before(stop, apart)
    assert same(rows, lone_rows), case
    assert wrong.keys() == lone_wrong.keys(), case
    if policy != "add":  # a column that a later message adds may be another reason
        assert wrong == lone_wrong, case
    assert together.new == apart.new, case
    assert together.spec.schema == apart.spec.schema, case
    for position, message in enumerate(messages[:stop]):
        row, new = modelled(together.spec, policy, message)
        assert (position in together.bad) == (row is None), (case, position, message)
        if row is not None:
            own = {name: together.rows[position][name] for name in row}
            assert same(own, row), (case, position, message, own, row)
        if policy == "fail":
            assert together.new.get(position, set()) == new, (case, position)
    return len(wrong)


def before(stop: int, actual: Outcome) -> tuple[dict[int, Any], dict[int, str]]:
    """Rows and bad messages up to where a stream stops."""
    rows = {position: row for position, row in actual.rows.items() if position < stop}
    return rows, {position: reason for position, reason in actual.bad.items() if position < stop}


def _check_all(seeds: range, registry: Registry) -> None:
    client = SchemaRegistry(registry.url)
    bad = sum(check(seed, registry, client) for seed in seeds)
    assert bad, "some values fit no column"


def test_a_batch_decodes_as_its_messages_alone_and_as_their_own_schemas_say(
    registry: Registry,
) -> None:
    _check_all(range(240), registry)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
def test_thousands_of_batches_decode_as_their_messages_alone(
    share: int, registry: Registry
) -> None:
    count = int(os.environ.get("OPAL_AVRO_BATCHES", "1000"))
    _check_all(range(1_000 + share, 1_000 + count, _SHARES), registry)


def test_the_model_writes_what_fastavro_reads(registry: Registry) -> None:
    for seed in range(50):
        _, is_event, messages = made(seed, registry, SchemaRegistry(registry.url))
        for message in [] if is_event else messages:
            body = io.BytesIO(message.value[5:])
            written = fastavro.parse_schema(plain(message.schema))
            actual = fastavro.schemaless_reader(body, written, None)
            assert actual == without_branches(message.schema, message.row)
            assert body.read() == b""
