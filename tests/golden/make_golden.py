"""Makes the frozen tables beside this file, and what they hold as JSON.

Until the first release, a commit that changes bytes remakes them and says why. From then on this
is run only for a new version of the format, never to make a test pass.

PYTHONPATH=spark_apps python tests/golden/make_golden.py
"""

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.data.rejects import row_text
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.events.bitmap import decode_base, offsets_of
from opal_lake.events.segment_log import decode_events
from opal_lake.key_store.run import decode_run
from opal_lake.log import visibility
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.sections import decode_section
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on
from opal_lake.write import ingest_job
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

HERE = Path(__file__).parent
FORMATS = ("parquet", "orc")
SCHEMA = pa.schema(
    [
        ("shop", pa.string()),
        ("article number", pa.decimal128(12, 2)),
        ("changed", pa.timestamp("us", tz="UTC")),
        ("turn", pa.int32()),
        ("day", pa.date32()),
        ("price", pa.float64()),
        ("raw", pa.binary()),
        (
            "stock",
            pa.struct(
                [("place", pa.string()), ("counts", pa.list_(pa.field("element", pa.int64())))]
            ),
        ),
    ]
)
EVENT_TIMES = (
    "1969-12-31T23:59:59.999999+00:00",
    "1970-01-01T00:00:03+00:00",
    "1970-01-01T00:00:08.000001+00:00",
)


def build(file_format: str) -> Storage:
    """Four rounds of ingest and MetaGen: two keys, late rows, equal deltas with and without ties, deletes.

    Then an upsert, a compaction, and one batch that is left pending.
    """
    storage, clock, ids = MemoryStorage("golden"), ManualClock(), CountingIds()
    table_layout = TableLayout(
        keys=["shop", "article number"],
        delta="changed",
        tie_break=["turn"],
        deletes="price IS NULL",
        partition_by=["day"],
        file_format=file_format,
        properties={
            "segment_rows": 4,
            "group_rows": 7,
            "checkpoint_commits": 4,
            "key_store_fan_in": 3,
        },
    )
    create_on(storage, plan_spec(SCHEMA, table_layout), clock, ids)
    table = Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids), cache=MemoryRuns(storage=storage)
    )
    for batch in range(4):
        rows = [row_of(batch, position) for position in range(3 + batch % 2 * 2)]
        deleted = [row["price"] is None for row in rows]
        table.ingest(
            pa.Table.from_pylist(rows, SCHEMA),
            deleted,
            token=f"day/{batch}",
            partition_key=f"2026-11-{batch:02}",
        )
        table.metagen(all=True)
    inline = [row_of(6, position) for position in range(3)]
    table.ingest(pa.Table.from_pylist(inline, SCHEMA), [False, False, True], metadata="inline")
    table.compact()
    table.ingest(pa.Table.from_pylist([row_of(9, 0)], SCHEMA), [False])
    return storage


def row_of(batch: int, position: int) -> dict[str, Any]:
    changed_s = (batch * 3 + position * 4) % 7 + (2 if position else 0)
    return {
        "shop": ("Köln", "a/b")[position % 2],
        "article number": Decimal(f"{(batch + position) % 2}.50"),
        "changed": changed_s * 1_000_000,
        "turn": None if batch == 1 else position,
        "day": 20_000 + batch // 3,
        "price": None if (batch, position) == (2, 1) else batch + position / 8,
        "raw": bytes([batch, position]),
        "stock": {"place": None if position else "here", "counts": [batch, None]},
    }


def expected(storage: Storage, table: Table) -> dict[str, Any]:
    """All that the table's files hold, in the words of FORMAT.md."""
    head = table.snapshot_at().version
    content: dict[str, Any] = {
        "rows": {str(version): rows_of(table.read(version=version)) for version in range(head + 1)},
        "rows at event times": {
            moment: rows_of(table.read(event_time=moment)) for moment in EVENT_TIMES
        },
        "pending": sorted(table.snapshot_at().pending),
    }
    for each in storage.list(""):
        if (decoded := decode(each.path, storage.get(each.path))) is not None:
            content[each.path] = decoded
    return json.loads(json.dumps(content))


def rows_of(rows: pa.Table) -> list[str]:
    return sorted(row_text(row) for row in rows.to_pylist())


def decode(path: str, data: bytes) -> Any:
    """The content of the files whose bytes are not JSON."""
    if path.startswith(layout.SEGMENT_LOGS):
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
        events = decode_events(data, path, rows)
        return [events.segment.tolist(), events.offset.tolist(), events.until.tolist()]
    if path.startswith(layout.KEY_STORE):
        entries = decode_run(data, path)
        return [column.tolist() for column in (*entries.order_columns, entries.deleted)]
    if path.startswith(layout.BITMAPS):
        return {
            str(segment): offsets_of(marks).tolist()
            for segment, marks in decode_base(data, path).items()
        }
    if path.endswith(".jsonl.zst"):
        return decode_section(data, path, lambda item: item)
    return None


def main() -> None:
    visibility.FOLD_AT_LOGS = 2
    ingest_job.MAX_FILES_IN_COMMIT = 1  # type: ignore[attr-defined]
    for file_format in FORMATS:
        storage, folder = build(file_format), HERE / file_format
        shutil.rmtree(folder, ignore_errors=True)
        for each in storage.list(""):
            target = folder / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(storage.get(each.path))
        log = CommitLog(storage=storage, clock=ManualClock(), ids=CountingIds())
        content = expected(storage, Table(log=log, cache=MemoryRuns(storage=storage)))
        (HERE / f"{file_format}.json").write_text(
            json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
