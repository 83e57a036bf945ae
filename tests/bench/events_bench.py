"""What registering costs: a look at a table with nothing new, and the first look at one with many commits, of each format.

python -m tests.bench.events_bench --commits 1000 --url sqlite:////tmp/events.db
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from lakechime import LakeChime
from lakechime.producers.delta import DeltaSource
from lakechime.producers.iceberg import IcebergPlace, IcebergSource
from lakechime.producers.opal import OpalPlace
from lakechime.producers.outbox import Source, Target, sync
from opal_lake.table import Table

LOOKS = 50


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self.store, self.asked = store, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.asked += 1
        asked: Callable[..., Any] = getattr(self.store, name)
        return asked


def opal(folder: str, commits: int) -> Source:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    table = Table.create(f"{folder}/opal", schema, keys=["id"], delta="at")
    for number in range(commits):
        table.ingest(
            pa.table({"id": [number], "at": [number]}, schema),
            metadata="inline",
            partition_key=f"k{number % 7}",
        )
    return OpalPlace(path=f"{folder}/opal", name="bench.opal")


def delta(folder: str, commits: int) -> Source:
    for number in range(commits):
        write_deltalake(
            f"{folder}/delta",
            pa.table({"id": [number], "day": [f"{number % 7}"]}),
            mode="append",
            partition_by=["day"],
        )
    return DeltaSource(path=f"{folder}/delta", target=Target(table="bench.delta"))


def iceberg(folder: str, commits: int) -> Source:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/iceberg",
    }
    catalog = load_catalog("bench", **properties)
    catalog.create_namespace("bench")
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    table = catalog.create_table(
        "bench.iceberg",
        Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType())),
        partition_spec=spec,
    )
    for number in range(commits):
        table.append(pa.table({"id": [number], "day": pa.array([date(2026, 11, 1 + number % 7)])}))
    place = IcebergPlace(identifier="bench.iceberg", catalog="bench", properties=properties)
    return IcebergSource(place=place, target=Target(table="bench.iceberg"))


def measure(client: LakeChime, counted: Counted, source: Source) -> Iterator[str]:
    started_s, cpu_s, asked = time.perf_counter(), time.process_time(), counted.asked
    synced = sync(client, source)
    took_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - cpu_s
    requests = counted.asked - asked
    yield f"{synced.events:,} events in {took_s:.2f} s ({cpu_s:.2f} s CPU): {synced.events / took_s:,.0f}/s, {requests} requests"
    times_ms, asked = [], counted.asked
    cpu_s = time.process_time()
    for _ in range(LOOKS):
        started_s = time.perf_counter()
        assert sync(client, source).events == 0
        times_ms.append((time.perf_counter() - started_s) * 1000)
    cpu_ms = (time.process_time() - cpu_s) * 1000 / LOOKS
    yield f"nothing new: {statistics.median(times_ms):.1f} ms (median), {cpu_ms:.1f} ms CPU, {(counted.asked - asked) / LOOKS:g} requests"


def main() -> None:
    parser = argparse.ArgumentParser(description="What registering costs.")
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--url", help="of the events (default: SQLite in a temporary folder)")
    parser.add_argument("--only", default="opal,delta,iceberg")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="events-bench-") as folder,
        LakeChime.open(args.url or f"sqlite:///{folder}/events.db") as opened,
    ):
        counted = Counted(opened.store)
        client = LakeChime(counted)  # type: ignore[arg-type]  # it answers whatever the store does
        client.head()
        for name in args.only.split(","):
            source = {"opal": opal, "delta": delta, "iceberg": iceberg}[name](folder, args.commits)
            for line in measure(client, counted, source):
                print(f"{name:8}{line}", flush=True)


if __name__ == "__main__":
    main()
