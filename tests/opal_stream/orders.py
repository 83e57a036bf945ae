"""A table of orders, messages about them, and a stream between both."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.table import Table
from opal_stream.flush.buffer import FlushLimits
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.flush.options import StreamOptions, Totals
from opal_stream.flush.stream import Stream, Tuning
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.kafka.applications import known_positions
from opal_stream.kafka.connection import TIMEOUT_S, Connection
from opal_stream.operations.reading import FormatOptions
from opal_stream.tracking.events import Tracker
from tests.fixtures_kafka import Kafka

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("total", pa.float64()),
        ("op", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
LAYOUT = TableLayout(keys=["id"], delta="at", deletes="op = 'D'")


def new_table(folder: Path, *, file_format: str = "parquet") -> Table:
    layout = replace(LAYOUT, file_format=file_format)
    return Table.create(str(folder / "orders"), SCHEMA, **asdict(layout))


def new_spec(**columns: pa.DataType) -> TableSpec:
    return plan_spec(pa.schema(list(columns.items())) if columns else SCHEMA, LAYOUT)


def order(number: int, moment: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"n{number}",
        "total": number / 2,
        "op": "I",
        "at": 1_700_000_000_000 + moment,
        **more,
    }


def batch(values: Sequence[Any], **columns: Any) -> MessageBatch:
    """Return messages of one partition from offset 100 on, one for each second."""
    count = len(values)
    actual = [
        value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        for value in values
    ]
    usual = {
        "keys": [None] * count,
        "headers": [()] * count,
        "timestamps_ms": [1_700_000_000_000 + 1000 * n for n in range(count)],
    }
    return MessageBatch(
        topics=["orders"] * count,
        partitions=[3] * count,
        offsets=list(range(100, 100 + count)),
        values=actual,
        **{**usual, **columns},
    )


def decode(
    values: Sequence[Any],
    options: FormatOptions | None = None,
    spec: TableSpec | None = None,
    **columns: Any,
) -> Decoded:
    return Decoder(spec or new_spec(), options or FormatOptions()).decode(batch(values, **columns))


def good(decoded: Decoded) -> list[dict[str, Any]]:
    """Return the good rows without their notes."""
    return [_without_notes(row) for row in decoded.rows.to_pylist() if row["_opal_bad"] is None]


def _without_notes(row: dict[str, Any]) -> dict[str, Any]:
    notes = [name for name in row if name.startswith("_opal") and name != "_opal_deleted"]
    return {name: value for name, value in row.items() if name not in notes}


def bad(decoded: Decoded) -> dict[str, str]:
    return {message.source: message.reason for message in decoded.bad}


def new_topic(kafka: Kafka, partitions: int = 1, **config: str) -> str:
    return kafka.create_topic(f"orders-{secrets.token_hex(4)}", partitions, **config)


def new_stream(
    table: Table,
    kafka: Kafka,
    topic: str,
    tracker: Tracker | None = None,
    tuning: Tuning | None = None,
    timeout_s: float = TIMEOUT_S,
    **options: Any,
) -> Stream:
    usual = {"limits": FlushLimits(interval_s=0.1), "until_empty": True}
    return Stream(
        table,
        Connection(bootstrap_servers=kafka.servers, timeout_s=timeout_s),
        StreamOptions(topics=[topic], **{**usual, **options}),
        tracker,
        tuning=tuning,
    )


def read(table: Table, kafka: Kafka, topic: str, **options: Any) -> Totals:
    return new_stream(table, kafka, topic, **options).run()


def ids(table: Table) -> list[int]:
    return sorted(table.read(columns=["id"])["id"].to_pylist())


def ends(table: Table) -> list[int]:
    """Return the positions of partitions, by name."""
    known = known_positions(table.snapshot_at().positions)
    return [known[application] for application in sorted(known, key=str)]


def gather(table: Table, **options: Any) -> Totals:
    """Commit what lies there."""
    return Committer(table, CommitterOptions(until_empty=True, **options)).run()


def gathered(table: Table) -> list[str]:
    """Return the names of the files that no commit holds yet."""
    return sorted(
        path.name for path in (Path(table.uri) / "_opal/gathered").rglob("*") if path.is_file()
    )
