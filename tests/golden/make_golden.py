"""Make the frozen tables next to this file, and their content as JSON.

Until the first release, a commit that changes bytes remakes them and says why. From then on this
is run only for a new version of the format, never to make a test pass.

PYTHONPATH=spark_apps python tests/golden/make_golden.py
"""

import json
import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake import layout
from opal_lake.arguments.values import CHANGE_MODES
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import NotFoundError
from opal_lake.events.bitmap import decode_base, offsets_of
from opal_lake.events.segment_log import decode_events
from opal_lake.key_store.run import decode_run
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.sections import decode_section
from opal_lake.log.tuning import Tuning
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on
from tests.golden.changed_table import build_changed, build_erased
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

HERE = Path(__file__).parent
FORMATS = ("parquet", "orc")
TABLES = (*FORMATS, "changed-parquet", "changed-orc", "erased-parquet", "erased-orc")
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
    "1970-01-01T00:00:20+00:00",
)


ADDED: dict[str, pa.DataType] = {
    "box": pa.struct(
        [("size", pa.decimal128(6, 2)), ("seen", pa.list_(pa.timestamp("us", "UTC")))]
    ),
    "marks": pa.map_(pa.string(), pa.int64()),
}
WIDE_SCHEMA = pa.schema([*SCHEMA, *(pa.field(name, kind) for name, kind in ADDED.items())])
FRIDAY, SATURDAY = "2026-11-27", "2026-11-28"
FLOOR_US = 5_000_000  # the major compaction drops rows that no event time since then shows


def build_table(name: str) -> Storage:
    """Return the table with a name of `TABLES`."""
    file_format = name.rpartition("-")[2]
    builders = {"": build, "changed": build_changed, "erased": build_erased}
    return builders[story_of(name)](file_format)


def story_of(name: str) -> str:
    """Return the name of the story that a frozen table tells."""
    return name.rpartition("-")[0]


def build(file_format: str) -> Storage:
    """Return a table with at least one of all that commits do.

    Two keys, late rows, equal deltas with and without ties, and deletes. Each ingest but the inline
    ones has a partition key; one is discarded, and the last one stays pending.
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
            "checkpoint_commits": 8,
            "key_store_fan_in": 3,
        },
    )
    create_on(storage, plan_spec(SCHEMA, table_layout), clock, ids)
    tuning = Tuning(fold_at_logs=2, ingest_max_files=1)
    table = Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids, tuning=tuning),
        cache=MemoryRuns(storage=storage),
    )
    for batch in range(4):
        ingest_batch(table, batch)
        table.metagen(all=True)
    inline = [row_of(6, position) for position in range(3)]
    table.ingest(pa.Table.from_pylist(inline, SCHEMA), [False, False, True], metadata="inline")
    table.compact()
    table.savepoint("before-columns")
    add_nested_columns(table)
    discard_a_batch(table)
    take_business_snapshots(table)
    table.zorder(["turn", "article number"])
    table.restore(savepoint="before-columns")
    ingest_batch(table, 8, later_s=3)
    table.metagen(partition_key="2026-11-08")
    compact_up_to_the_floor(table, clock)
    table.rebuild_key_store()
    table.set_properties({"window": "30d"})
    table.set_properties({"window": "30d"}, token="already so")  # whose result is kept apart
    table.ingest(pa.Table.from_pylist([row_of(9, 0)], SCHEMA), [False])
    return storage


def ingest_batch(table: Table, batch: int, later_s: int = 0) -> None:
    rows = [row_of(batch, position, later_s) for position in range(3 + batch % 2 * 2)]
    table.ingest(
        pa.Table.from_pylist(rows, SCHEMA),
        [row["price"] is None for row in rows],
        token=f"day/{batch}",
        partition_key=f"2026-11-{batch:02}",
    )


def add_nested_columns(table: Table) -> None:
    table.add_columns(ADDED)
    box = {"size": Decimal("1.25"), "seen": [0, None]}
    wide = [
        row_of(4, position, later_s=10) | {"box": box, "marks": [("a", 1)]} for position in range(2)
    ]
    table.ingest(pa.Table.from_pylist(wide, WIDE_SCHEMA), [False, False], metadata="inline")


def discard_a_batch(table: Table) -> None:
    ingest_batch(table, 5)
    table.discard(partition_key="2026-11-05")


def take_business_snapshots(table: Table) -> None:
    """Finish Friday, so that the rows of Saturday are accepted."""
    for batch, name in ((6, FRIDAY), (7, SATURDAY)):
        rows = pa.Table.from_pylist([row_of(batch, 3, later_s=3 * batch)], SCHEMA)
        table.ingest(rows, [False], business_snapshot=name)
    table.metagen()
    table.finish_business_snapshot(FRIDAY)
    table.metagen()


def compact_up_to_the_floor(table: Table, clock: ManualClock) -> None:
    """Stop the clock meanwhile: the floor is a span before now."""
    step_us, clock.step_us = clock.step_us, 0
    table.compact(mode="major", look_back=timedelta(microseconds=clock.at_us - FLOOR_US))
    clock.step_us = step_us


def row_of(batch: int, position: int, later_s: int = 0) -> dict[str, Any]:
    changed_s = (batch * 3 + position * 4) % 7 + (2 if position else 0) + later_s
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
    """Return the table's answers, and its files' content in FORMAT.md's words.

    Answers name rows by their positions in the list `row texts`: most are in many answers.
    """
    root = table.snapshot_at().root
    head, oldest = root.version, root.oldest_version
    versions = range(oldest, head + 1)
    answers: dict[str, Any] = {
        "rows": {str(version): rows_of(table.read(version=version)) for version in versions},
        "changes": {mode: rows_of(table.changes(oldest + 1, mode=mode)) for mode in CHANGE_MODES},
        "rows of partition keys": {
            key: rows_of(table.read(partition_key=key))
            for key in sorted(table.snapshot_at().partitions)
        },
        "rows of business snapshots": {
            name: rows_of(table.read(business_snapshot=name))
            for name in (FRIDAY, SATURDAY)
            if root.business.finished
        },
        "history": {
            str(version): rows_of(table.history_view(version=version))
            for version in (*range(oldest, head, 9), head)
        },
    }
    for moment in EVENT_TIMES:
        answers[f"rows at {moment}"] = {
            str(version): rows_then(table, version, moment) for version in versions
        }
    row_texts: set[str] = set()
    for answer in answers.values():
        row_texts.update(*answer.values())
    texts = sorted(row_texts)
    content: dict[str, Any] = {"row texts": dict(enumerate(texts))}
    for name, answer in answers.items():
        positions = {}
        for which, rows in answer.items():
            positions[which] = [texts.index(text) for text in rows]
        content[name] = positions
    content["operations"] = [commit.operation for commit in table.commits()]
    content["pending"] = sorted(table.snapshot_at().pending)
    for file in storage.list(""):
        decoded = decode(file.path, storage.get(file.path))
        if decoded is not None:
            content[file.path] = decoded
    return json.loads(json.dumps(content))


def rows_then(table: Table, version: int, moment: str) -> list[str]:
    """Return the rows at an event time, or that it is before the floor."""
    try:
        return rows_of(table.read(version=version, event_time=moment))
    except NotFoundError:
        return ["before the floor"]


def rows_of(rows: pa.Table) -> list[str]:
    return sorted(row_text(row) for row in rows.to_pylist())


def row_text(row: dict[str, Any]) -> str:
    """Return a row as JSON; the frozen content has this text for values that JSON lacks."""
    return json.dumps(row, ensure_ascii=False, default=text_of)


def text_of(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def decode(path: str, data: bytes) -> Any:
    """Return the content of a file whose bytes are not JSON; None of other files."""
    if path.startswith(layout.SEGMENT_LOGS):
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
        events = decode_events(data, path, rows, with_next=True)
        columns: list[Any] = [events.segment, events.offset, events.until]
        if events.next_rows is not None:  # those of a merged log are None
            columns += [events.next_rows.segment, events.next_rows.offset]
        return [column.tolist() for column in columns]
    if path.startswith(layout.KEY_STORE):
        entries = decode_run(data, path)
        return [column.tolist() for column in (*entries.order_columns, entries.deleted)]
    if path.startswith(layout.BITMAPS):
        base = decode_base(data, path)
        return {str(segment): offsets_of(marks).tolist() for segment, marks in base.items()}
    if path.endswith(".jsonl.zst") and not path.startswith(layout.LOG_PAGES):  # copies
        return decode_section(data, path, lambda item: item)
    return None


def main() -> None:
    for name in TABLES:
        storage, folder = build_table(name), HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        for each in storage.list(""):
            target = folder / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(storage.get(each.path))
        log = CommitLog(storage=storage, clock=ManualClock(), ids=CountingIds())
        content = expected(storage, Table(log=log, cache=MemoryRuns(storage=storage)))
        (HERE / f"{name}.json").write_text(json_of(content) + "\n", "utf-8")


def json_of(content: dict[str, Any]) -> str:
    """Return JSON with a line for each answer and each file."""
    lines = []
    for name, value in sorted(content.items()):
        if isinstance(value, dict):
            members = [f"  {_member(pair)}" for pair in sorted(value.items())]
            inner = ",\n".join(members)
            lines.append(f"{json.dumps(name)}: {{\n{inner}\n}}")
        else:
            lines.append(_member((name, value)))
    return "{\n" + ",\n".join(lines) + "\n}"


def _member(pair: tuple[str, Any]) -> str:
    name, value = pair
    return f"{json.dumps(name)}: {json.dumps(value, sort_keys=True, ensure_ascii=False)}"


if __name__ == "__main__":
    main()
