"""The incremental count, end to end, which equals that of the whole table."""

import random
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import DateType, LongType, NestedField

from lakechime import Chain, ChainError, DataChangeEvent, LakeChime, OperationType, chain
from lakechime.producers.iceberg import IcebergLocation, IcebergSource
from lakechime.producers.opal import sync_opal
from lakechime.producers.outbox import Target, sync
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.opal_lake import shop

NAME = "data.pageviews"
COMMITS = 50
SIGNS = {"insert": 1, "update_postimage": 0, "update_preimage": 0, "delete": -1}


class Consumer:
    """A count of rows by changes, or of the whole table without a chain of snapshots."""

    def __init__(self, client: LakeChime) -> None:
        self.client = client
        self.count = 0
        self.ranges = 0
        self.whole = 0

    def new_events(self) -> list[DataChangeEvent]:
        mark = self.client.watermark("count", "events")
        page = self.client.events(
            [NAME], after=0 if mark is None else int(str(mark.value)), limit=10_000
        )
        self.client.put_watermark(
            "count", "events", page.next_after, expected=None if mark is None else mark.revision
        )
        return [registered.event for registered in page.events]

    def range_of(self, events: list[DataChangeEvent]) -> Chain | None:
        try:
            result = chain(events)
        except ChainError:
            self.whole += 1
            return None
        self.ranges += 1
        return result


@pytest.mark.parametrize("seed", range(2))
def test_on_an_opal_table_by_its_change_feed(client: LakeChime, seed: int) -> None:
    chance, table, consumer = random.Random(seed), shop.create(MemoryStorage()), Consumer(client)
    for commit in range(COMMITS):
        commit_to_opal(chance, table, commit)
        sync_opal(client, table, NAME)
        if chance.random() < 0.3 or commit == COMMITS - 1:
            count_opal(consumer, table)
            assert consumer.count == table.read().num_rows
    assert consumer.ranges > 5


def commit_to_opal(chance: random.Random, table: Table, number: int) -> None:
    verb = chance.choice(["inline", "inline", "inline", "batch", "metagen", "compact", "restore"])
    if verb in ("inline", "batch"):
        values = [
            (f"{chance.randint(0, 40)}", number, chance.choice([None, 1, 2]))
            for _ in range(chance.randint(1, 9))
        ]
        rows, deleted = shop.rows(values)
        table.ingest(rows, deleted, metadata=verb, partition_key=chance.choice([None, "a", "b"]))
    elif verb == "restore" and chance.random() < 0.3:
        table.restore(version=chance.randint(0, table.snapshot_at().version))
    elif verb == "compact":
        table.compact()
    else:
        table.metagen(all=True)


def count_opal(consumer: Consumer, table: Table) -> None:
    events = consumer.new_events()
    if not events:
        return
    span = consumer.range_of(events)
    if span is None:
        consumer.count = table.read(version=int(str(events[-1].snapshot_id))).num_rows
        return
    start = 0 if span.start is None else int(span.start) + 1
    changed = table.changes(start, int(span.end), columns=["sku", "at"])
    consumer.count += sum(SIGNS[kind] for kind in changed["_change_type"].to_pylist())


@pytest.mark.slow_but_one
@pytest.mark.parametrize("seed", range(2))
def test_on_an_iceberg_table_by_its_range_of_snapshots(
    client: LakeChime, tmp_path: Path, seed: int
) -> None:
    chance, consumer = random.Random(seed), Consumer(client)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    catalog = load_catalog("test", **properties)
    catalog.create_namespace("data")
    table = catalog.create_table(
        NAME, Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    )
    source = IcebergSource(
        location=IcebergLocation(identifier=NAME, catalog="test", properties=properties),
        target=Target(table=NAME),
    )
    for commit in range(COMMITS):
        commit_to_iceberg(chance, table)
        if chance.random() < 0.3 or commit == COMMITS - 1:
            sync(client, source)
            count_iceberg(consumer, table)
            assert consumer.count == table.scan().to_arrow().num_rows
    assert consumer.ranges > 5


def commit_to_iceberg(chance: random.Random, table: IcebergTable) -> None:
    rows = chance.randint(1, 9)
    ids = pa.array([chance.randint(0, 40) for _ in range(rows)], pa.int64())
    batch = pa.table({"id": ids, "day": pa.array([date(2026, 11, 1)] * rows)})
    match chance.choice(["append", "append", "append", "delete", "overwrite"]):
        case "append":
            table.append(batch)
        case "delete":
            table.delete(f"id < {chance.randint(0, 5)}")
        case "overwrite":
            table.overwrite(batch, f"id > {chance.randint(35, 40)}")


def count_iceberg(consumer: Consumer, table: IcebergTable) -> None:
    """Count appends by an incremental scan, and deletes by the manifests of the range."""
    events = consumer.new_events()
    if not events:
        return
    span = consumer.range_of(events)
    if span is None:
        consumer.count = (
            table.scan(snapshot_id=int(str(events[-1].snapshot_id))).to_arrow().num_rows
        )
    elif all(event.operation_type is OperationType.APPEND for event in events):
        start = None if span.start is None else int(span.start)
        scan = table.incremental_append_scan(
            from_snapshot_id_exclusive=start, to_snapshot_id_inclusive=int(span.end)
        )
        consumer.count += scan.to_arrow().num_rows
    else:
        consumer.count += sum(rows_of(table, int(snapshot)) for snapshot in span.snapshots)


def rows_of(table: IcebergTable, number: int) -> int:
    snapshot, total = table.snapshot_by_id(number), 0
    assert snapshot is not None
    signs = {
        ManifestEntryStatus.ADDED: 1,
        ManifestEntryStatus.DELETED: -1,
        ManifestEntryStatus.EXISTING: 0,
    }
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == number:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                total += (
                    signs[entry.status] * entry.data_file.record_count
                    if entry.snapshot_id == number
                    else 0
                )
    return total
