"""What an upsert of one row costs by `opal_lake` alone in tables of ever more segments, and what a read costs after many small upserts.

python -m tests.bench.commit_bench [--segments 1000,20000,100000] [--commits 128] [--small 1000] [--formats parquet,orc]

Prints CPU time of all threads: of a commit with its share of checkpoints, so that few commits tell nothing. The large tables are made up:
a state of so many segments, each with a log and a row that is not visible, is written as one checkpoint; what comes after it is real.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyroaring import BitMap

from opal_lake import layout
from opal_lake.data.bounds import Bounds
from opal_lake.data.segment import DataFile, LogFile
from opal_lake.events.bitmap import BitmapBase, encode_base
from opal_lake.ids import segment_id
from opal_lake.log.checkpoint import write_checkpoint
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.snapshot import Snapshot, fold_root
from opal_lake.table import Table

SCHEMA = pa.schema(
    [("key", pa.string()), ("at", pa.int64()), ("value", pa.float64()), ("note", pa.string())]
)
KEYS = 5_000
IN_FRESH_PROCESS = """
import sys, time
from tests.bench.commit_bench import batch
from opal_lake.table import Table
begin = time.process_time()
Table.open(sys.argv[1]).ingest(batch(int(sys.argv[2]), 1), metadata="inline")
print(time.process_time() - begin)
"""
OPENED = """
import resource, sys, time
from opal_lake.table import Table
begin, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Table.open(sys.argv[1])
print(time.process_time() - begin, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024)
"""


def batch(turn: int, rows: int) -> pa.Table:
    keys = [f"user-{(turn * 7_919 + position * 104_729) % KEYS:08d}" for position in range(rows)]
    return pa.table(
        [keys, [turn * 10 + position for position in range(rows)], [turn / 7] * rows, ["n"] * rows],
        schema=SCHEMA,
    )


def new_table(path: Path, file_format: str = "parquet") -> Table:
    shutil.rmtree(path, ignore_errors=True)
    return Table.create(str(path), SCHEMA, keys=["key"], delta="at", file_format=file_format)


def grown_table(path: Path, segments: int) -> None:
    """As after so many upserts of one row. Most of its files are not there: no upsert opens them."""
    table = new_table(path)
    table.ingest(batch(0, KEYS), metadata="inline")
    head = table.log.head()
    numbers = range(head.version + 1, head.version + 1 + segments)
    files = tuple(_file(number) for number in numbers)
    processed = tuple(file.segments[0] for file in files)
    actions = Actions(ingested=files, add_logs=tuple(map(_log, numbers)), processed=processed)
    name = {"version": numbers[-1], "write_id": "grown", "number": numbers[-1]}
    commit: Commit = replace(
        table.log.read_commit(head.version),
        previous_write_id=head.root.write_id,
        actions=actions,
        **name,
    )
    state = Snapshot(
        head.storage, fold_root(head.root, commit, files), head.sections, (*head.commits, commit)
    )
    state.__dict__["bases"] = (_base(state, processed),)
    for number in numbers:  # as a listing meets them
        (path / layout.commit_path(number)).write_bytes(b"{")
    write_checkpoint(head.storage, state, fold=False)


def _file(number: int) -> DataFile:
    segment, stem = segment_id(number, 0), layout.job_file_name(number, 0, "0")
    bounds = {
        1: Bounds(low="user-00000001", high="user-00004999", nulls=0),
        2: Bounds(low=number * 10, high=number * 10 + 9, nulls=0),
    }
    crc32 = zlib.crc32(stem.encode())
    path = layout.data_path([], stem, "parquet")
    return DataFile(
        path=path,
        size=2500,
        crc32=crc32,
        footer_bytes=1200,
        footer_crc32=crc32,
        rows=1,
        group=0,
        segments=(segment,),
        bounds=bounds,
    )


def _log(number: int) -> LogFile:
    stem = layout.job_file_name(number, 0, "0")
    where = {
        "path": layout.segment_log_path(stem),
        "size": 1100,
        "crc32": zlib.crc32(stem.encode()),
    }
    return LogFile(
        **where,
        events=1,
        groups=(0,),
        least_until=number * 10,
        greatest_until=number * 10,
        version=number,
    )


def _base(state: Snapshot, segments: Sequence[int]) -> BitmapBase:
    root = state.root
    origin = {
        "group": 0,
        "table_id": root.table_id,
        "version": root.version,
        "write_id": root.write_id,
    }
    data = encode_base({segment: BitMap([0]) for segment in segments}, origin)
    path = layout.bitmap_path(0, root.version, root.write_id)
    state.storage.put_if_absent(path, data)
    return BitmapBase(
        group=0,
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        version=root.version,
        write_id=root.write_id,
    )


def bench_commits(folder: Path, segments: int, commits: int) -> None:
    path = folder / f"grown-{segments}"
    grown_table(path, segments)
    opened = [_run(OPENED, path) for _ in range(3)]
    fresh = [_run(IN_FRESH_PROCESS, path, str(turn))[0] for turn in range(5)]
    table, spent = Table.open(str(path)), []
    for turn in range(commits):
        begin = time.process_time()
        table.ingest(batch(100 + turn, 1), metadata="inline")
        spent.append(time.process_time() - begin)
    reopened = []
    for turn in range(commits):
        begin = time.process_time()
        Table.open(str(path)).ingest(batch(1000 + turn, 1), metadata="inline")
        reopened.append(time.process_time() - begin)
    print(f"{segments:,} segments, CPU ms of an upsert of one row:")
    for name, values in (("table kept open", spent), ("opened each time", reopened)):
        mean, median, most = (
            1e3 * statistics.mean(values),
            1e3 * statistics.median(values),
            1e3 * max(values),
        )
        print(
            f"  {name:<22} mean {mean:8.1f}   median {median:8.1f}   most {most:8.1f}", flush=True
        )
    cpu_s, held_mb = (statistics.median(values) for values in zip(*opened, strict=True))
    print(f"  in a new process       median {1e3 * statistics.median(fresh):8.1f}")
    print(f"  Table.open alone       median {1e3 * cpu_s:8.1f}, {held_mb:.1f} MB more", flush=True)
    shutil.rmtree(path)


def _run(program: str, path: Path, *arguments: str) -> list[float]:
    finished = subprocess.run(
        [sys.executable, "-c", program, str(path), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in finished.stdout.split()]


def bench_read(folder: Path, small: int, file_format: str) -> None:
    path = folder / f"small-{file_format}"
    table = new_table(path, file_format)
    begin = time.process_time()
    for turn in range(small):
        table.ingest(batch(turn, 10), metadata="inline")
    print(
        f"{file_format}: {small:,} upserts of 10 rows: {1e3 * (time.process_time() - begin) / small:.1f} ms CPU each"
    )
    cpu, wall = _timed(lambda: Table.open(str(path)).read())
    rows = table.read()
    single = str(folder / f"one.{file_format}")
    write, read = (
        (pq.write_table, pq.read_table)
        if file_format == "parquet"
        else (orc.write_table, orc.read_table)
    )
    write(rows, single)
    least_cpu, least_wall = _timed(lambda: read(single))
    files = len(table.snapshot_at().files)
    print(
        f"{file_format}: read of {rows.num_rows:,} rows in {files} files: {cpu:.1f} ms CPU, {wall:.1f} ms wall",
        flush=True,
    )
    print(
        f"{file_format}: the same rows in one file: {least_cpu:.1f} ms CPU, {least_wall:.1f} ms wall",
        flush=True,
    )
    shutil.rmtree(path)


def _timed(work: object) -> tuple[float, float]:
    durations = []
    for _ in range(5):
        cpu, wall = time.process_time(), time.perf_counter()
        work()  # type: ignore[operator]  # a callable
        durations.append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
    return statistics.median(cpu for cpu, _ in durations), statistics.median(
        wall for _, wall in durations
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--segments", default="1000,20000,100000")
    parser.add_argument("--commits", type=int, default=128)
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--formats", default="parquet,orc")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for segments in filter(None, options.segments.split(",")):
            bench_commits(Path(name), int(segments), options.commits)
        for file_format in filter(None, options.formats.split(",") if options.small else ()):
            bench_read(Path(name), options.small, file_format)


if __name__ == "__main__":
    main()
