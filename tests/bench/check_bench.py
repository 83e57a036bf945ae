"""What `opal check` takes: memory at its highest and CPU seconds, in a process of its own.

python -m tests.bench.check_bench [--rows 1000000,10000000] [--memory 1g] [--sample 1%]

A table of that many rows, a twelfth of them updates and deletes, by opal_lake alone; each check is a process that says its VmHWM.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from opal_lake.inspect.check import check_table
from opal_lake.table import Table

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("at", pa.int64()),
        ("v1", pa.int64()),
        ("v2", pa.float64()),
        ("city", pa.string()),
    ]
)
BATCH_ROWS = 500_000
UPDATED_EVERY = 12
_CITIES = pa.array(["Basel", "Berne", "Chur", "Geneva", "Zurich"])


def batches(rows: int) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """First all keys, then updates of a twelfth, scattered, of which a tenth deletes."""
    fresh = rows - rows // UPDATED_EVERY
    dice = np.random.default_rng(11)
    for start in range(0, fresh, BATCH_ROWS):
        yield _batch(np.arange(start, min(start + BATCH_ROWS, fresh)), 1, dice)
    changed = dice.choice(fresh, rows - fresh, replace=False)
    for turn, start in enumerate(range(0, len(changed), BATCH_ROWS // 4), 2):
        yield _batch(changed[start : start + BATCH_ROWS // 4], turn, dice)


def _batch(keys: np.ndarray, turn: int, dice: np.random.Generator) -> tuple[pa.Table, np.ndarray]:
    count = len(keys)
    columns = [
        pa.array([f"user-{key:09d}" for key in keys.tolist()]),
        pa.array(turn * 1_000_000_000 + keys),
        pa.array(dice.integers(0, 1 << 40, count)),
        pa.array(dice.random(count)),
        _CITIES.take(pa.array(dice.integers(0, len(_CITIES), count))),
    ]
    return pa.table(columns, schema=SCHEMA), (dice.random(count) < 0.1) & (turn > 1)


def build(folder: str, rows: int) -> None:
    table = Table.create(folder, SCHEMA, keys=["id"], delta="at", deletes="v1 IS NULL")
    for turn, (part, deleted) in enumerate(batches(rows)):
        table.ingest(part, deleted.tolist(), metadata="inline", token=f"batch {turn}")


def check(folder: str, options: dict[str, str]) -> None:
    began = time.process_time()
    findings = check_table(Table.open(folder), **options)
    seconds = time.process_time() - began
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    )
    peak_mb = int(status["VmHWM"].split()[0]) / 1024
    print(
        f"    {len(findings)} findings, {seconds:.1f} CPU s, {peak_mb:,.0f} MB at its highest",
        flush=True,
    )
    sys.exit(bool(findings))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--memory")
    parser.add_argument("--sample")
    parser.add_argument(
        "--keep", type=Path, help="build the tables here, and use those that are there"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    options = {
        name: value for name in ("memory", "sample") if (value := getattr(args, name)) is not None
    }
    if args.one:
        step, folder = args.one
        build(folder, int(args.rows)) if step == "build" else check(folder, options)
        return 0
    place = args.keep or Path(tempfile.mkdtemp(prefix="opal-check-"))
    own = [sys.executable, "-m", "tests.bench.check_bench"]
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    try:
        for rows in map(int, args.rows.split(",")):
            folder = place / f"rows-{rows}"
            if not folder.exists():
                subprocess.run(
                    [*own, "--rows", str(rows), "--one", "build", str(folder)], check=True
                )
            size_mb = (
                sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()) / 1e6
            )
            print(f"{rows:,} rows, {size_mb:,.0f} MB {' '.join(given)}", flush=True)
            subprocess.run(
                [*own, *given, "--one", "check", str(folder)], check=True, env=os.environ
            )
    finally:
        if not args.keep:
            shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
