"""The rule on one core: new rows against a partition of many keys, and what memory that takes.

python tests/bench/rule.py [--keys 10000000] [--rows 1000000] [--rounds 5] [--backend
mapped|rocksdb]
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from opal_lake.data.segment import RunFile
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.key_store.entries import Entries
from opal_lake.rule.metagen import apply_rule
from opal_lake.rule.outputs import segment_groups
from opal_lake.rule.slot import SlotWriter, write_run
from opal_lake.storage import open_storage
from tests.opal_lake.shop import create

AIM = 1_000_000


def entries_of(hashes: np.ndarray, number: int) -> Entries:  # type: ignore[type-arg]  # two words a row
    count = len(hashes)
    return Entries(
        high=np.ascontiguousarray(hashes[:, 0]),
        low=np.ascontiguousarray(hashes[:, 1]),
        delta=np.full(count, number, np.int64),
        ties=(),
        segment=np.full(count, number << 32, np.int64),
        offset=np.arange(count, dtype=np.int32),
        deleted=np.zeros(count, np.bool_),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="mapped")
    args = parser.parse_args()
    dice = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(f"{folder}/table")
        snapshot = create(storage).snapshot_at()
        cache = NearRuns(
            storage=storage,
            settings=CacheSettings(backend=args.backend, folder=str(Path(folder) / "near")),
        )
        writer = SlotWriter(
            number=1, storage=storage, cache=cache, runs=(), groups=segment_groups(snapshot)
        )
        hashes = dice.integers(0, 1 << 64, (args.keys, 2), dtype=np.uint64)
        hashes = hashes[np.argsort(hashes[:, 0])]
        run = write_run(writer, entries_of(hashes, 1), "0000000001-00000000-0")
        print(
            f"a run of {run.entries:,} keys: {run.size / run.entries:.1f} bytes an entry",
            flush=True,
        )
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
            speeds, memory_mb = worker.submit(probe, run, writer, args.rows, args.rounds).result()
    speed = statistics.median(speeds)
    outcome = "ok" if speed >= AIM else "MISSED"
    print(
        f"{args.rows:,} rows against it: {speed / 1e6:.2f} M rows a second and core   aim >= 1  "
        f"{outcome}"
    )
    print(f"peak memory of the worker, mapped files aside: {memory_mb:.0f} MB")


def probe(run: RunFile, writer: SlotWriter, count: int, rounds: int) -> tuple[list[float], float]:
    """Measure what a task does between its shuffle and its files.

    Half of the rows update keys of the run.
    """
    dice, speeds = np.random.default_rng(8), []
    for turn in range(rounds + 1):
        new = entries_of(dice.integers(0, 1 << 64, (count, 2), dtype=np.uint64), turn + 2)
        updated = next(writer.cache.slices(run, run.entries)).take(
            np.sort(dice.choice(run.entries, count // 2, replace=False))
        )
        new.high[::2], new.low[::2] = updated.high, updated.low
        began = time.process_time()
        probes = new.take(np.argsort(new.high))
        ruling = apply_rule(probes, writer.cache.neighbours([run], probes))
        speeds.append(count / (time.process_time() - began))
        assert len(ruling.events) >= count // 2
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, mapped = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssFile"))
    return speeds[1:], peak - mapped


if __name__ == "__main__":
    main()
