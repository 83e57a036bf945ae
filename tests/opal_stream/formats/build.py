"""Messages in the formats of a registry and of Debezium, for tests."""

import io
import struct
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa

from opal_stream.formats.decoder import Decoder
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_stream.orders import new_spec

MOMENT = {"type": "long", "logicalType": "timestamp-millis"}


FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "op", "type": "string"},
        {"name": "at", "type": MOMENT},
    ],
}


SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "name", "type": ["null", "string"], "default": None}],
}


def head(number: int) -> bytes:
    return b"\0" + struct.pack(">I", number)


def avro(number: int, schema: Any, record: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), record)
    return head(number) + sink.getvalue()


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "op": "I", "at": datetime(2026, 1, 1, tzinfo=UTC), **more}


def decoder(registry: Registry, form: str = "avro", **columns: pa.DataType) -> Decoder:
    return Decoder(new_spec(**columns), FormatOptions(format=form, registry=registry.url))


def nested(levels: int, shape: str) -> Any:
    """Return a type of Avro of some levels, as producers write it."""
    kind: Any = "int"
    for level in range(levels):
        if shape == "array":
            kind = {"type": "array", "items": kind}
        elif shape == "map":
            kind = {"type": "map", "values": kind}
        else:
            member = {"name": "a", "type": kind}
            kind = {"type": "record", "name": f"R{level}", "fields": [member]}
            kind = ["null", kind] if shape == "record" else ["null", "string", kind]
    return kind


def event(op: str, before: Any, after: Any, moment: int, *, schema: bool = False) -> Any:
    payload = {
        "before": before,
        "after": after,
        "op": op,
        "ts_ms": 1_700_000_000_000 + moment,
        "source": {"lsn": moment, "db": "shop"},
    }
    return {"schema": {"type": "struct", "fields": []}, "payload": payload} if schema else payload
