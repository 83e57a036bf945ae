"""Keys of messages in the format of the values, in their own, or as texts."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.formats.build import FIRST, avro, head, record
from tests.opal_stream.orders import bad, batch, good, new_spec, order

TEXT = pa.string()
MICROS = pa.timestamp("us", "UTC")
KEY_OF_FIRST = {"type": "record", "name": "Key", "fields": FIRST["fields"][:1]}
PLAIN_KEYS = [
    ("json", b'"x"', "x"),
    ("json", b' "x\\u00e9" ', "xé"),
    ("string", b'"x"', '"x"'),
    ("string", b"null", "null"),
    ("string", b'{"id": 1}', '{"id": 1}'),
    (None, b"x", "x"),
    (None, b"7", "7"),
]


def spec_of(kind: pa.DataType) -> Any:
    return new_spec(id=kind, op=pa.string(), at=MICROS)


def tombstones(keys: list[bytes | None], kind: pa.DataType = TEXT, **options: Any) -> Decoded:
    return Decoder(spec_of(kind), FormatOptions(**options)).decode(
        batch([None] * len(keys), keys=keys)
    )


def filled(keys: list[bytes | None], kind: pa.DataType = TEXT, **options: Any) -> Decoded:
    """Decode messages that have a value, with the column `id` from their keys."""
    chosen = FormatOptions(**options, columns={"id": "@key"})
    values = [{"op": "I", "at": 1} for _ in keys]
    return Decoder(spec_of(kind), chosen).decode(batch(values, keys=keys))


@pytest.mark.parametrize("key_format, key, value", PLAIN_KEYS)
@pytest.mark.parametrize("of", [tombstones, filled])
def test_a_plain_key_is_what_its_format_says(
    of: Any, key_format: str | None, key: bytes, value: str
) -> None:
    decoded = of([key], key_format=key_format)
    assert (bad(decoded), [row["id"] for row in good(decoded)]) == ({}, [value])


@pytest.mark.parametrize("of", [tombstones, filled])
def test_a_json_key_means_what_a_member_of_a_value_means(of: Any) -> None:
    keys: list[bytes | None] = [b"7", b" 8", b"7.5", b'"7"', b"abc", b"true", b"[7]"]
    decoded = of(keys, pa.int64(), key_format="json")
    assert [row["id"] for row in good(decoded)] == [7, 8]
    assert [int(source[-1]) for source in bad(decoded)] == [2, 3, 4, 5, 6]
    texts = of([b"7", b"abc", b'"half', b'"x", "op": "D"'], key_format="json")
    assert good(texts) == []
    assert all(reason.startswith("key: ") for reason in bad(texts).values())
    assert "if keys are plain text, use key_format='string'" in bad(texts)["orders/3@101"]
    [moment] = good(of([b'"2026-01-02T00:00:00"'], MICROS, key_format="json"))
    assert moment["id"].isoformat() == "2026-01-02T00:00:00+00:00"


@pytest.mark.parametrize("of", [tombstones, filled])
@pytest.mark.parametrize("key", [b'"x"', b' "x"', b"null", b'"'])
def test_a_key_of_two_readings_is_refused_where_no_format_of_keys_is_given(
    of: Any, key: bytes
) -> None:
    decoded = of([key, b"x"])
    assert [row["id"] for row in good(decoded)] == ["x"]
    [reason] = bad(decoded).values()
    assert reason == (
        f"key: {key.decode()} is a value of JSON, or a text that looks like one; choose with "
        "key_format='json' (or the format of the registry), or key_format='string'"
    )


def test_a_whole_key_that_is_an_object_is_its_text_only_where_no_format_is_given() -> None:
    assert [row["id"] for row in good(filled([b'{"id": 1}']))] == ['{"id": 1}']
    [reason] = bad(filled([b'{"id": 1}'], key_format="json")).values()
    assert reason == "key: it is an object; fill the column from a member of it, such as @key.id"


PLAIN_KEYS_OF_AVRO = [
    ("string", "x", pa.string(), "x"),
    ("long", 7, pa.int64(), 7),
    ("int", 7, pa.string(), None),
    ({"type": "string", "avro.java.string": "String"}, "x", pa.string(), "x"),
    (["null", "string"], "x", pa.string(), "x"),
    (["string", "long"], 7, pa.int64(), 7),
    ("bytes", b"\0x", pa.binary(), b"\0x"),
    ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", pa.string(), "b"),
    ({"type": "string", "logicalType": "uuid"}, "x", pa.string(), None),
    ("double", 1.5, pa.string(), None),
]


@pytest.mark.parametrize("schema, written, kind, value", PLAIN_KEYS_OF_AVRO)
@pytest.mark.parametrize("of", [tombstones, filled])
def test_a_plain_key_of_avro_fills_a_column(
    registry: Registry, of: Any, schema: Any, written: Any, kind: pa.DataType, value: Any
) -> None:
    registry.register(8, schema, "orders-key")
    key = b"%b\x02x" % head(8) if schema == PLAIN_KEYS_OF_AVRO[8][0] else avro(8, schema, written)
    decoded = of([key, key], kind, key_format="avro", registry=registry.url)
    if value is None:
        assert all(reason.startswith("key: column 'key': ") for reason in bad(decoded).values())
        assert len(bad(decoded)) == 2
    else:
        assert (bad(decoded), [row["id"] for row in good(decoded)]) == ({}, [value] * 2)


def test_keys_of_avro_are_judged_alone_and_their_schemas_are_asked_for_once(
    registry: Registry,
) -> None:
    registry.register(8, "long", "orders-key")
    registry.register(9, KEY_OF_FIRST, "orders-key")
    reader = Decoder(spec_of(pa.int64()), FormatOptions(key_format="avro", registry=registry.url))
    keys = [avro(8, "long", 1), avro(9, KEY_OF_FIRST, {"id": 2}), head(7) + b"\x02", b"3", None]
    for _ in range(2):
        decoded = reader.decode(batch([None] * 5, keys=keys))
        assert [row["id"] for row in good(decoded)] == [1, 2]
        assert bad(decoded) == {
            "orders/3@102": "key: the schema registry has no schema 7",
            "orders/3@103": "key: the message does not begin with a zero byte and the id of a "
            "schema: it was not written with a schema registry",
            "orders/3@104": "key column 'id' is null",
        }
        reader = pickle.loads(pickle.dumps(reader)).renewed(reader.spec)
    assert [registry.asked.count(number) for number in (8, 9)] == [1, 1]


def learned(reader: Decoder, messages: MessageBatch) -> list[int]:
    """Learn all schemas of the messages; return where `unseen` found a new one."""
    positions: list[int] = []
    while (position := reader.unseen(messages)) is not None:
        positions.append(position)
        reader.learn(messages.values[position], messages.keys[position])
    return positions


@pytest.mark.parametrize("key_format", [None, "avro", "json-registry"])
@pytest.mark.parametrize("column", [{}, {"name": "@key"}, {"name": "@key.id"}])
def test_another_process_reads_learned_schemas_of_keys_without_the_registry(
    registry: Registry, key_format: str | None, column: dict[str, str]
) -> None:
    """Return a decoder of a Spark task, which does not reach the registry."""
    registry.register(7, FIRST)
    registry.register(8, "long", "orders-key")
    registry.register(9, KEY_OF_FIRST, "orders-key")
    keys = [avro(8, "long", 1), avro(9, KEY_OF_FIRST, {"id": 2})]
    if key_format == "json-registry":
        registry.kinds |= {8: "JSON", 9: "JSON"}
        keys = [head(8) + b"1", head(9) + b'{"id":2}']
    options = FormatOptions(
        format="avro", key_format=key_format, registry=registry.url, columns=column
    )
    values = [avro(7, FIRST, record(5)), avro(7, FIRST, record(6)), None, None]
    messages = batch(values, keys=[*keys, *keys])
    expected = Decoder(new_spec(), options).decode(messages)
    registry.asked.clear()
    reader = Decoder(new_spec(), options)
    # Only tombstones need their keys where no column is filled from them
    assert learned(reader, messages) == ([0, 1] if column else [0, 2, 3])
    moved = pickle.loads(pickle.dumps(reader))
    registry.away = True
    decoded = moved.decode(messages)
    assert (good(decoded), bad(decoded)) == (good(expected), bad(expected))
    assert sorted(registry.asked) == [7, 8, 9]


def test_keys_that_are_not_read_are_not_asked_for(registry: Registry) -> None:
    registry.register(7, FIRST)
    options = FormatOptions(format="avro", registry=registry.url, on_tombstone="ignore")
    messages = batch([avro(7, FIRST, record(5)), None], keys=[head(8), head(9)])
    assert learned(Decoder(new_spec(), options), messages) == [0]
    assert registry.asked == [7]


@pytest.mark.parametrize("key_format", [None, "avro"])
def test_keys_beside_values_of_avro_may_be_texts_where_no_format_is_given(
    registry: Registry, key_format: str | None
) -> None:
    registry.register(7, FIRST)
    registry.register(8, "long", "orders-key")
    options = FormatOptions(format="avro", key_format=key_format, registry=registry.url)
    keys = [None, avro(8, "long", 1), b"2", b"{}"]
    values = [avro(7, FIRST, record(1)), None, None, None]
    decoded = Decoder(new_spec(), options).decode(batch(values, keys=keys))
    texts = [2] if key_format is None else []
    assert [row["id"] for row in good(decoded)] == [1, 1, *texts]


def test_a_record_does_not_fill_a_column_and_a_plain_key_has_no_members(
    registry: Registry,
) -> None:
    registry.register(8, "long", "orders-key")
    registry.register(9, KEY_OF_FIRST, "orders-key")
    chosen: dict[str, Any] = {"key_format": "avro", "registry": registry.url}
    [reason] = bad(filled([avro(9, KEY_OF_FIRST, {"id": 1})], pa.int64(), **chosen)).values()
    assert reason == "key: it is an object; fill the column from a member of it, such as @key.id"
    options = FormatOptions(**chosen, columns={"id": "@key.id"})
    keys = [avro(8, "long", 1), None, avro(9, KEY_OF_FIRST, {"id": 5})]
    decoded = Decoder(spec_of(pa.int64()), options).decode(batch([order(1)] * 3, keys=keys))
    assert [row["id"] for row in good(decoded)] == [5]
    assert bad(decoded) == {
        "orders/3@100": "key: the message is not an Avro record",
        "orders/3@101": "key column 'id' is null",
    }


def test_plain_json_keys_of_a_registry_fill_a_column(registry: Registry) -> None:
    registry.register(8, {"type": "string"}, "orders-key")
    registry.kinds[8] = "JSON"
    chosen: dict[str, Any] = {"key_format": "json-registry", "registry": registry.url}
    keys: list[bytes | None] = [head(8) + b'"x"', head(8) + b'{"id": "y"}', b'"z"', head(8) + b"7"]
    decoded = tombstones(keys, **chosen)
    assert [row["id"] for row in good(decoded)] == ["x", "y"]
    assert len(bad(decoded)) == 2


@pytest.mark.parametrize("key_format, key", [("string", b"x"), ("json", b'"x"'), (None, b"x")])
def test_one_value_does_not_fill_two_columns(key_format: str | None, key: bytes) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("at", MICROS)])
    spec = plan_spec(schema, TableLayout(keys=["a", "b"], delta="at", deletes="a = ''"))
    whole = json.dumps({"a": "1", "b": "2"}).encode()
    decoded = Decoder(spec, FormatOptions(key_format=key_format)).decode(
        batch([None, None], keys=[key, whole])
    )
    assert bad(decoded)["orders/3@100"] == "key: one value cannot fill the columns a, b"
    assert [(row["a"], row["b"]) for row in good(decoded)] == (
        [] if key_format == "string" else [("1", "2")]
    )
