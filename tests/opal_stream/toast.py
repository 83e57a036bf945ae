"""A table with large columns, and flushes of its change events without unchanged values."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on, table_on
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.publisher import Publisher
from opal_stream.flush.writer import Writer
from opal_stream.formats.decoder import Decoder
from opal_stream.gathered.backlog import Gate
from opal_stream.kafka.applications import Application
from opal_stream.kafka.topics import Partition
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.orders import batch

TEXT = "__debezium_unavailable_value"
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "small": pa.int64(),
        "note": pa.string(),
        "data": pa.binary(),
        "tags": pa.list_(pa.int32()),
        "lsn": pa.int64(),
        "op": pa.string(),
    }
)
LARGE = ("note", "data", "tags")
OF_EVENT = {"lsn": "@source.lsn", "op": "@op"}
UNCHANGED = {
    "note": TEXT,
    "data": base64.b64encode(TEXT.encode()).decode(),
    "tags": list(TEXT.encode()),
}
PARTITION = Partition(topic="orders", number=3)
APPLICATION = Application(stream="main", partition=PARTITION, topic_id="id")
FIELDS = [
    {"type": "int64", "optional": True, "field": "id"},
    {"type": "int64", "optional": True, "field": "small"},
    {"type": "string", "optional": True, "field": "note"},
    {"type": "bytes", "optional": True, "field": "data"},
    {
        "type": "array",
        "items": {"type": "int32", "optional": True},
        "optional": True,
        "field": "tags",
    },
]


def new_table(store: Storage | None = None, **layout: Any) -> Table:
    store = store or MemoryStorage()
    create_on(store, new_spec(**layout))
    return table_on(store)


def new_spec(**layout: Any) -> TableSpec:
    return plan_spec(SCHEMA, TableLayout(keys=["id"], delta="lsn", deletes="op = 'd'", **layout))


def row(key: int, small: int = 0, **large: Any) -> dict[str, Any]:
    """Return a row with None for large values that are not given."""
    return {"id": key, "small": small, **dict.fromkeys(LARGE), **large}


def event(op: str, values: Mapping[str, Any], lsn: int, unchanged: Sequence[str] = ()) -> Any:
    """Return a message as Debezium writes it, with its schema."""
    written = dict(values)
    if written.get("data") is not None:
        written["data"] = base64.b64encode(written["data"]).decode()
    written |= {name: UNCHANGED[name] for name in unchanged}
    sides = [{"type": "struct", "fields": FIELDS, "field": side} for side in ("before", "after")]
    payload = {
        "before": {"id": values["id"]} if op == "d" else None,
        "after": None if op == "d" else written,
        "op": op,
        "source": {"lsn": lsn},
    }
    return {"schema": {"type": "struct", "fields": sides}, "payload": payload}


@dataclass(slots=True, kw_only=True)
class Flushes:
    """A stream of given messages of one partition; `policy` is that of bad ones."""

    table: Table
    policy: str = "quarantine"
    is_gathered: bool = False
    offset: int = 100
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin again where the table stands."""
        given: dict[str, Any] = {"table": self.table, "on_bad_message": self.policy}
        if self.is_gathered:
            gate = Gate(self.table.storage, "main", 0, self.table.uri)
            self.writer = Publisher(gate=gate, **given)
        else:
            self.writer = Writer(**given)
        position = self.writer.read_positions().get(str(APPLICATION))
        self.writer.applications[PARTITION] = APPLICATION
        self.writer.positions[PARTITION] = position

    def flush(self, *events: Any) -> JobResult | None:
        options = FormatOptions(format="debezium-json", columns=OF_EVENT)
        messages = batch(events)
        messages.offsets = list(range(self.offset, self.offset + len(events)))
        decoded = Decoder(self.table.log.head().spec, options).decode(messages)
        buffer = Buffer(limits=FlushLimits())
        buffer.add(messages, decoded, time.monotonic())
        result = self.writer.flush(buffer, lambda: None, lambda: None)
        self.offset += len(events)
        return result


def stored(table: Table, **view: Any) -> dict[int, dict[str, Any]]:
    """Return the rows of the table by key, in the database's form."""
    rows = table.read(columns=["id", "small", *LARGE], **view).to_pylist()
    return {entry["id"]: entry for entry in rows}


def rejected(table: Table) -> list[dict[str, Any]]:
    """Return the rows that were put aside."""
    store = table.storage
    paths = [entry.path for entry in store.list("_opal/rejected")]
    return [
        entry
        for path in paths
        for entry in pq.read_table(pa.BufferReader(store.get(path))).to_pylist()
    ]
