"""A process that builds a large table by opal_lake, or checks one.

python -m tests.scale.checked build FOLDER [--rows 1000000]
python -m tests.scale.checked check FOLDER

A twelfth of the rows are updates and deletes.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from opal_lake.table import Table
from tests.kit.check import check_table

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


def check(folder: str) -> None:
    began = time.process_time()
    findings = check_table(Table.open(folder))
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("build", "check"))
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a table that is built")
    args = parser.parse_args()
    if args.step == "build":
        build(args.folder, args.rows)
    else:
        check(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
