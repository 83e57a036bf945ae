"""A Hive-style table of many partitions.

The figures are the cost of the first look, a look without news, and one with a new partition.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from lakechime import LakeChime
from lakechime.producers.hive import HiveSource
from lakechime.producers.outbox import Target, sync

OLD_S = 1_700_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hive", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        LakeChime.open(f"sqlite:///{home}/lakechime.db") as client,
    ):
        for number in range(args.partitions):
            _put(Path(home) / f"logs/dt={number // 100:05}/part={number % 100:02}/a")
        source = HiveSource(path=f"{home}/logs", target=Target(table="logs"))
        for name in ("first look", "nothing new", "one new partition"):
            if name == "one new partition":
                _put(Path(home) / "logs/dt=new/part=00/a")
            begun = time.perf_counter()
            count = sync(client, source).events
            state = client.table_state("logs")
            assert state is not None
            size = len(json.dumps(state.position))
            print(
                f"{name:<20}{time.perf_counter() - begun:>8.1f} s  {count:>8,} events, a position "
                f"of {size} bytes",
                flush=True,
            )


def _put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (OLD_S, OLD_S))


if __name__ == "__main__":
    main()
