"""Rewrites with and without the columns by which the outside knows rows: bytes a row, and seconds.

python -m tests.bench.row_ids [--rows 1000000] [--rounds 7]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from opal_lake import Table
from opal_lake.data.outside_ids import RowBases
from opal_lake.data.segment import DataFile
from opal_lake.data.z_value import z_fields
from opal_lake.engine.executor import Attempt, Ordering
from opal_lake.engine.in_process import InProcess
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin
from opal_lake.maintenance.rewrite_task import (
    BinWork,
    RewriteTask,
    Target,
    rewrite_bin,
    row_bases_of,
    write_files,
)

INGESTS = 10
TARGET_BYTES = 256 << 20
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("at", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.int32()),
        ("colour", pa.string()),
    ]
)
Work = Callable[[RewriteTask, RowBases | None], Sequence[DataFile]]


def fill(uri: str, rows: int) -> Snapshot:
    """Ingest rows of scattered keys in some segments, and make them visible."""
    table = Table.create(uri, SCHEMA, keys=["key"], delta="at")
    dice = np.random.default_rng(7)
    keys = dice.permutation(rows)
    for part in np.array_split(np.arange(rows), INGESTS):
        count = len(part)
        columns = {
            "key": [f"key-{key:010d}" for key in keys[part]],
            "at": part + 1_700_000_000_000_000,
            "x": dice.random(count),
            "y": dice.integers(0, 10_000, count).astype(np.int32),
            "colour": dice.choice(["red", "green", "blue", "black", "white"], count),
        }
        table.ingest(pa.table(columns, schema=SCHEMA))
    table.metagen()
    return table.snapshot_at()


def compact(base: Snapshot, task: RewriteTask, row_bases: RowBases | None) -> Sequence[DataFile]:
    files = tuple(base.files.values())
    work = BinWork(position=0, bin=Bin(files=files), row_bases=row_bases)
    return rewrite_bin(task, work, "0").files


def zorder(base: Snapshot, task: RewriteTask, row_bases: RowBases | None) -> Sequence[DataFile]:
    files = tuple(base.files.values())
    target = Target(neighbour=files[0], sequence=0, attempt="0", row_bases=row_bases)
    ordering = Ordering(
        base=base, bins=(files,), columns=z_fields(base.spec, ["x", "y"]), files=(1,)
    )

    def write(batches: Iterable[pa.RecordBatch], _: Attempt) -> Sequence[DataFile]:
        return write_files((pa.Table.from_batches([batch]) for batch in batches), task, target)

    [parts] = InProcess(tasks=1).in_order(ordering, write)
    return [file for part in parts for file in part]


def compare(name: str, work: Work, base: Snapshot, rounds: int) -> None:
    """Do the work with and without the columns by turns, and print what they cost."""
    rows = sum(file.rows for file in base.files.values())
    row_bases = row_bases_of(base, base.files.values())
    bytes_a_row: dict[bool, float] = {}
    took_s: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for has_columns in (turn % 2 == 0, turn % 2 != 0):
            task = RewriteTask(
                storage=base.storage,
                spec=base.spec,
                number=1_000 + 2 * turn + has_columns,
                target_bytes=TARGET_BYTES,
            )
            began = time.process_time()
            files = work(task, row_bases if has_columns else None)
            took_s[has_columns].append(time.process_time() - began)
            bytes_a_row[has_columns] = sum(file.size for file in files) / rows
            for file in files:
                base.storage.delete([file.path])
    ratios = [after / before for before, after in zip(*took_s.values(), strict=True)]
    error = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    before_s, after_s = (statistics.median(seconds) for seconds in took_s.values())
    print(
        f"{name:>10}: {bytes_a_row[False]:.2f} -> {bytes_a_row[True]:.2f} bytes a row, "
        f"{before_s:.3f} -> {after_s:.3f} s of CPU, "
        f"{statistics.mean(ratios):.3f} +- {error:.3f} times",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = fill(f"{folder}/table", given.rows)
        compare("compaction", partial(compact, base), base, given.rounds)
        compare("z-order", partial(zorder, base), base, given.rounds)


if __name__ == "__main__":
    main()
