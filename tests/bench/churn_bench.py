"""Storage and scans after every row was updated many times, then a major compaction and retention, beside a fresh copy of the table.

python -m tests.bench.churn_bench --rows 1000000 [--updates 20] [--rounds 5]
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from opal_spark import OpalTable
from tests.bench.table_bench import FIVE, TWO, Bench, new_table, open_session, size_of, timed


def churn(bench: Bench, updates: int) -> OpalTable:
    """A table whose every row was written so often; the greatest delta is of the last time."""
    table = new_table(bench, "churned", "parquet")
    seconds = [
        timed(lambda turn=turn: table.ingest(every_row(bench, turn), metadata="inline"))
        for turn in range(1, updates + 1)
    ]
    bench.note(
        f"the last of {updates} updates of {bench.rows:,} rows / the second",
        seconds[-1] / seconds[1],
        "x",
    )
    return table


def every_row(bench: Bench, turn: int) -> object:
    return bench.batch(bench.rows, turn, bootstrap=True)


def fresh_copy(bench: Bench, updates: int) -> OpalTable:
    table = new_table(bench, "fresh", "parquet")
    table.ingest(every_row(bench, updates), metadata="inline")
    return table


def compare(bench: Bench, churned: OpalTable, fresh: OpalTable) -> None:
    sizes = [size_of(Path(table.uri)) for table in (churned, fresh)]
    bench.note(
        "storage after compaction and retention / a fresh copy", sizes[0] / sizes[1], "x", 1.2
    )
    assert churned.read().count() == fresh.read().count() == bench.rows
    for name, wanted in (("5 columns", FIVE), ("2 columns", TWO)):
        times: dict[str, list[float]] = {"churned": [], "fresh": []}
        for _ in range(bench.rounds + 1):
            for key, table in (("churned", churned), ("fresh", fresh)):
                times[key].append(
                    timed(
                        lambda table=table, wanted=wanted: (
                            table.read().selectExpr(*wanted).collect()
                        )
                    )
                )
        ours, limit = (statistics.median(values[1:]) for values in times.values())
        bench.note(f"scan of {name} / a fresh copy's", ours / limit, "x", 1.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="opal-churn-"))
    spark = open_session()
    try:
        bench = Bench(spark=spark, folder=folder, rows=args.rows, rounds=args.rounds)
        table, fresh = churn(bench, args.updates), fresh_copy(bench, args.updates)
        before = size_of(Path(table.uri))
        bench.note("major compaction", timed(lambda: table.compact(mode="major", look_back=0)), "s")
        bench.note("retention", timed(lambda: table.retain(window="0s", grace="0s")), "s")
        bench.note("storage before / after", before / size_of(Path(table.uri)), "x")
        compare(bench, table, fresh)
        assert table.check() == []
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
