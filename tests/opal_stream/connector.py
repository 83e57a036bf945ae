"""The work of Debezium's connector on a PostgreSQL table, in a topic of Kafka.

It writes envelopes, keys, tombstones and a snapshot. Twice: as by default, with the schema in each
event, decimals in base64 and `adaptive` times; and without schema, with decimals as text
(`schemas.enable=false`, `decimal.handling.mode=string`).
"""

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer

from tests.opal_stream.pgoutput import Change, Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Convert = Callable[[str], Any]


def _zoned(text: str) -> str:
    return text.replace(" ", "T").removesuffix("+00") + "Z"


def _micros(text: str) -> int:
    span = datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def _base64(number: int) -> str:
    return base64.b64encode(
        number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
    ).decode()


def _unscaled(text: str, scale: int) -> str:
    return _base64(int(Decimal(text).scaleb(scale)))


def _variable(text: str) -> dict[str, Any]:
    scale = max(0, -int(Decimal(text).as_tuple().exponent))
    return {"scale": scale, "value": _unscaled(text, scale)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The form of a column's values, and its type for Kafka Connect."""

    name: str
    convert: Convert
    type: str
    semantic: str | None = None
    scale: int | None = None

    def declared(self) -> dict[str, Any]:
        parameters = (
            {}
            if self.scale is None
            else {"parameters": {"scale": str(self.scale), "connect.decimal.precision": "14"}}
        )
        named = {} if self.semantic is None else {"name": self.semantic, "version": 1}
        return {"type": self.type, "optional": True, **named, **parameters, "field": self.name}


PLAIN = [
    Member(name="region", convert=str, type="string"),
    Member(name="id", convert=int, type="int64"),
    Member(name="name", convert=str, type="string"),
    Member(
        name="opened", convert=_zoned, type="string", semantic="io.debezium.time.ZonedTimestamp"
    ),
    Member(name="seen", convert=_micros, type="int64", semantic="io.debezium.time.MicroTimestamp"),
    Member(name="born", convert=_days, type="int32", semantic="io.debezium.time.Date"),
    Member(name="active", convert=lambda text: text == "t", type="boolean"),
    Member(name="score", convert=float, type="double"),
    Member(name="visits", convert=int, type="int32"),
    Member(name="note", convert=str, type="string"),
]
DECIMALS_AS_TEXT = [
    Member(name="balance", convert=str, type="string"),
    Member(name="rate", convert=str, type="string"),
]
DECIMALS = [
    Member(
        name="balance",
        convert=lambda text: _unscaled(text, 2),
        type="bytes",
        semantic="org.apache.kafka.connect.data.Decimal",
        scale=2,
    ),
    Member(
        name="rate",
        convert=_variable,
        type="struct",
        semantic="io.debezium.data.VariableScaleDecimal",
    ),
]
KEYS = ("region", "id")


@dataclass(slots=True, kw_only=True)
class Connector:
    """Produces. A key stays in its partition; the key of an event is the table's."""

    producer: Producer
    topic: str
    partitions: int
    has_schema: bool
    counts: list[int] = field(default_factory=list)  # messages, by partition
    kinds: dict[str, int] = field(default_factory=dict)  # events, by operation
    _members: Sequence[Member] = ()
    _head: bytes = b""

    def __post_init__(self) -> None:
        self.counts = [0] * self.partitions
        self._members = [*PLAIN, *(DECIMALS if self.has_schema else DECIMALS_AS_TEXT)]
        row = [member.declared() for member in self._members]
        sides = [
            {"type": "struct", "fields": row, "optional": True, "name": "bank.Value", "field": side}
            for side in ("before", "after")
        ]
        schema = {
            "type": "struct",
            "fields": [*sides, {"type": "string", "field": "op"}],
            "name": "bank.Envelope",
        }
        self._head = b'{"schema":' + _compact(schema) + b',"payload":' if self.has_schema else b""

    def snapshot(self, rows: Sequence[Row], lsn: int) -> None:
        for row in rows:
            self._event("r", None, row, lsn, 0)

    def change(self, change: Change) -> None:
        """Yield a change; an update of the key is a delete, its tombstone, and an insert."""
        before, after = change.before, change.after
        is_moved = (
            before is not None
            and after is not None
            and any(before[name] != after[name] for name in KEYS)
        )
        if after is None or is_moved:
            assert before is not None
            self._event("d", before, None, change.lsn, change.commit_ms)
            self._produce(self._key(before), None)
        if after is not None:
            operation = "c" if change.operation == "I" or is_moved else "u"
            self._event(
                operation, None if operation == "c" else before, after, change.lsn, change.commit_ms
            )

    def _event(
        self, operation: str, before: Row | None, after: Row | None, lsn: int, moment_ms: int
    ) -> None:
        source = {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "bank",
            "db": "postgres",
            "ts_ms": moment_ms,
            "lsn": lsn,
        }
        payload = {
            "before": self._row(before),
            "after": self._row(after),
            "source": source,
            "op": operation,
            "ts_ms": moment_ms + 5,
        }
        row = after if after is not None else before
        assert row is not None
        self.kinds[operation] = self.kinds.get(operation, 0) + 1
        self._produce(
            self._key(row), self._head + _compact(payload) + (b"}" if self.has_schema else b"")
        )

    def _row(self, row: Row | None) -> Mapping[str, Any] | None:
        if row is None:
            return None
        return {
            member.name: None if (value := row[member.name]) is None else member.convert(value)
            for member in self._members
        }

    def _key(self, row: Row) -> bytes:
        return _compact({"region": row["region"], "id": int(row["id"] or 0)})

    def _produce(self, key: bytes, value: bytes | None) -> None:
        partition = zlib.crc32(key) % self.partitions
        self.counts[partition] += 1
        while True:
            try:
                self.producer.produce(self.topic, value, key=key, partition=partition)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.producer.poll(0)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
