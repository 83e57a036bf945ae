"""Iceberg's own sink for Kafka Connect, on the load of `stream_freshness`.

One worker with one task, and a Hadoop catalog on the disk.

The sink appends: it resolves no updates and no deletions. What it names in a snapshot's summary are
offsets of its control topic. So the reader notes when it first saw which snapshot; which rows each
has added is read from its files afterwards.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import StaticTable

from tests.bench.peers.catalog import ICEBERG
from tests.bench.stream_freshness import (
    LAST_S,
    POLL_S,
    Load,
    ended,
    print_ages,
    print_lag,
    print_producer,
)
from tests.bench.stream_load import Beside, Stamps, cpu_seconds, cpu_text, produce
from tests.demo.stream.broker import ARTIFACT, fetch_jars, java, spark_jars
from tests.fixtures_kafka import Kafka, free_port
from tests.opal_stream.orders import order

VERSION = ICEBERG.rpartition(":")[2]
PARTS = [
    ("org.apache.iceberg", name, VERSION)
    for name in ("iceberg-kafka-connect", "iceberg-orc", "iceberg-parquet")
]
PARTS += [("org.apache.kafka", name, ARTIFACT[2]) for name in ("connect-runtime", "connect-json")]
SHARED = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "jcl-over-slf4j",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
START_S = 120.0


@dataclass(slots=True, kw_only=True)
class Reader:
    """A thread that polls the table's metadata.

    It notes when it first saw which snapshot, and the number of rows.
    """

    table: Path
    version: int = 0
    seen: list[tuple[float, int, int]] = field(default_factory=list)

    def metadata(self, version: int) -> Path:
        return self.table / "metadata" / f"v{version}.metadata.json"

    @property
    def rows(self) -> int:
        return self.seen[-1][2] if self.seen else 0

    def poll(self, seconds: float, is_over: Callable[[int], bool] = lambda _: False) -> bool:
        """Poll until `is_over` holds of the rows; return False when the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while self.metadata(self.version + 1).exists():
                self.version += 1
                self._note(json.loads(self.metadata(self.version).read_bytes()))
            if is_over(self.rows):
                return True
            time.sleep(POLL_S)
        return False

    def _note(self, metadata: dict[str, Any]) -> None:
        [snapshot] = [
            known
            for known in metadata.get("snapshots", [])
            if known["snapshot-id"] == metadata["current-snapshot-id"]
        ] or [None]
        if snapshot and (not self.seen or self.seen[-1][1] != snapshot["snapshot-id"]):
            self.seen.append(
                (time.time(), snapshot["snapshot-id"], int(snapshot["summary"]["total-records"]))
            )

    def ages(self, stamps: Stamps, began: float, until: float) -> np.ndarray:
        """Return the ages of rows that were produced between two moments.

        A row has the number of its step's first message.
        """
        produced = np.array([moment for moment, _, _ in stamps])
        firsts = np.cumsum([0, *(count for _, _, count in stamps)])[:-1]
        table, ages = StaticTable.from_metadata(str(self.metadata(self.version))), []
        for moment, number, _ in self.seen:
            for path in _added(table, number):
                at = pq.read_table(path, columns=["at"])["at"].to_numpy()
                own = produced[np.searchsorted(firsts, at - order(0)["at"])]
                ages.append((moment - own)[(own >= began) & (own < until)])
        return np.concatenate(ages)


def _added(table: StaticTable, number: int) -> Iterator[str]:
    """Return the data files that a snapshot has added."""
    snapshot = table.snapshot_by_id(number)
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == number:
            added = (
                entry
                for entry in manifest.fetch_manifest_entry(table.io)
                if entry.status == ManifestEntryStatus.ADDED
            )
            yield from (entry.data_file.file_path.removeprefix("file:") for entry in added)


def _connect(
    broker: Kafka, topic: str, folder: Path, interval_ms: int
) -> "subprocess.Popen[bytes]":
    worker = {
        "bootstrap.servers": broker.servers,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(folder / "offsets"),
        # A task that waits for messages joins a commit only then
        "offset.flush.interval.ms": "1000",
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    sink = {
        "name": topic,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "1",
        "topics": topic,
        "iceberg.tables": "bench.orders",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.catalog.type": "hadoop",
        "iceberg.catalog.warehouse": str(folder),
        "iceberg.control.topic": broker.create_topic(f"{topic}-control"),
        "iceberg.control.commit.interval-ms": str(interval_ms),
    }
    files = []
    for name, settings in {"worker": worker, "sink": sink}.items():
        files.append(folder / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    classes = os.pathsep.join(
        [f"{fetch_jars(f'iceberg-sink-{VERSION}', *PARTS)}/*", *map(str, spark_jars(*SHARED))]
    )
    command = [
        java(),
        "-Xmx1g",
        "-cp",
        classes,
        "org.apache.kafka.connect.cli.ConnectStandalone",
        *map(str, files),
    ]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def freshness(broker: Kafka, folder: Path, load: Load, interval_ms: int) -> None:
    folder.mkdir()
    topic, reader = (
        broker.create_topic(folder.name, load.partitions),
        Reader(table=folder / "bench" / "orders"),
    )
    for number in range(load.partitions):
        broker.produce(topic, [order(number)], partition=number)
    with ended([_connect(broker, topic, folder, interval_ms)]) as [sink]:
        if not reader.poll(START_S, lambda rows: rows == load.partitions):
            raise AssertionError(
                f"the sink did not begin: {(folder / 'log').read_text(errors='replace')[-5000:]}"
            )
        producer = Beside(produce, broker.servers, topic, load.partitions, load.rate, load.keys)
        assert broker.process is not None
        pids = {"sink": [sink.pid], "broker": [broker.process.pid], "producer": [producer.pid]}
        assert reader.poll(LAST_S, lambda rows: rows > load.partitions), (
            "the producer did not begin"
        )
        reader.poll(load.warm_s)
        begin = _mark(reader, pids)
        reader.poll(load.seconds)
        end = _mark(reader, pids)
        stamps: Stamps = producer.end()
        total = load.partitions + sum(count for _, _, count in stamps)
        is_all = reader.poll(LAST_S, lambda rows: rows >= total)
    assert reader.rows <= total, f"{reader.rows:,} rows of {total:,} messages"
    print_ages(reader.ages(stamps, begin.at, end.at))
    print_producer(stamps, load.rate, begin.at, end.at)
    print_lag(total - end.rows, reader.seen[-1][0] - end.at if is_all else None, load.rate)
    hours, data, others = (
        (end.at - begin.at) / 3600,
        end.data_files - begin.data_files,
        end.other_files - begin.other_files,
    )
    print(f"  {(end.commits - begin.commits) / hours / 60:.0f} commits a minute;", end=" ")
    print(f"an hour: {data / hours:,.0f} data files, {(data + others) / hours:,.0f} files in all")
    print(f"  {reader.rows:,} rows of {total:,} messages: the sink appends, it resolves no updates")
    print(f"  {cpu_text(begin.cpu, end.cpu, end.at - begin.at)}", flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Counts of files, commits and rows, and the CPU seconds, at a moment."""

    at: float
    cpu: dict[str, float]
    commits: int
    rows: int
    data_files: int
    other_files: int


def _mark(reader: Reader, pids: dict[str, list[int]]) -> Mark:
    """Return the counts of now, without Hadoop's checksum files of a local disk."""
    table = reader.table
    names = [
        Path(folder, name).relative_to(table)
        for folder, _, names in os.walk(table)
        for name in names
        if not name.endswith(".crc")
    ]
    data = sum(name.parts[0] == "data" for name in names)
    return Mark(
        at=time.time(),
        cpu=cpu_seconds(pids),
        commits=len(reader.seen),
        rows=reader.rows,
        data_files=data,
        other_files=len(names) - data,
    )
