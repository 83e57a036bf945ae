"""Upserts of ten rows, one commit each, and a scan of the table after them.

They are compared with DuckLake's MERGE and pyiceberg's upsert.

python -m tests.bench.small_commits [--commits 1000] [--systems opal,ducklake,pyiceberg]

Each system runs in a process of its own, one after the other, in a table of up to 5,000 keys on
this disk. DuckLake and pyiceberg keep their catalogs in files next to the table. DuckLake has an
environment of its own, made once in the user's cache.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("moment", pa.int64()),
        ("value", pa.float64()),
        ("count", pa.int32()),
        ("note", pa.string()),
    ]
)
KEYS, ROWS, ENDS = 5_000, 10, 100
DUCK = ("duckdb==1.5.5", "duckdb-extension-ducklake==1.5.5", "pyarrow")
System = tuple[Callable[[pa.Table], object], Callable[[], pa.Table]]  # an upsert, a scan


def batch(turn: int) -> pa.Table:
    numbers = [(turn * 7_919 + position * 104_729) % KEYS for position in range(ROWS)]
    columns = [
        [f"user-{number:08d}" for number in numbers],
        [turn * ROWS + position for position in range(ROWS)],
    ]
    return pa.table(
        [*columns, [turn / 7] * ROWS, [turn % 100] * ROWS, [f"n{turn % 9}"] * ROWS], schema=SCHEMA
    )


def opal(folder: Path) -> System:
    from opal_lake.table import Table

    table = Table.create(str(folder / "table"), SCHEMA, keys=["key"], delta="moment")
    return lambda rows: table.ingest(rows, metadata="inline"), table.read


def ducklake(folder: Path) -> System:
    import duckdb
    import duckdb_extension_ducklake  # noqa: F401  # what installs it

    lake = duckdb.connect()
    install_extension(lake)
    lake.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake (DATA_PATH '{folder}/data')")
    lake.execute(
        "CREATE TABLE lake.t (key VARCHAR, moment BIGINT, value DOUBLE, count INTEGER, note "
        "VARCHAR)"
    )

    def upsert(rows: pa.Table) -> None:
        lake.register("batch", rows)
        lake.execute(
            "MERGE INTO lake.t USING batch ON t.key = batch.key WHEN MATCHED THEN UPDATE SET "
            "moment = batch.moment, value = batch.value, "
            "count = batch.count, note = batch.note WHEN NOT MATCHED THEN INSERT"
        )

    return upsert, lambda: lake.execute("SELECT * FROM lake.t").to_arrow_table()


def install_extension(lake: Any) -> None:
    """Install DuckLake from the file in its package, if it has one, else by name."""
    import duckdb_extension_ducklake as package

    extensions = sorted(Path(str(package.__file__)).parent.rglob("*.duckdb_extension"))
    lake.execute(f"LOAD '{extensions[0]}'" if extensions else "LOAD ducklake")


def pyiceberg(folder: Path) -> System:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

    catalog = SqlCatalog(
        "bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    catalog.create_namespace("bench")
    kinds = (StringType(), LongType(), DoubleType(), IntegerType(), StringType())
    fields = [
        NestedField(number, name, kind, required=False)
        for number, (name, kind) in enumerate(zip(SCHEMA.names, kinds, strict=True), 1)
    ]
    table = catalog.create_table("bench.t", Schema(*fields))
    return lambda rows: table.upsert(rows, join_cols=["key"]), lambda: table.scan().to_arrow()


SYSTEMS = {"opal": opal, "ducklake": ducklake, "pyiceberg": pyiceberg}


def measure(name: str, commits: int, most_s: float) -> dict[str, float]:
    """Measure as many commits as fit into the time."""
    with tempfile.TemporaryDirectory() as folder:
        upsert, scan = SYSTEMS[name](Path(folder))
        spent: list[float] = []
        scans: list[float] = []
        for turn in range(commits):
            if sum(spent) > most_s:
                break
            rows, begin = batch(turn), time.perf_counter()
            upsert(rows)
            spent.append(time.perf_counter() - begin)
        expected = len(
            {key for turn in range(len(spent)) for key in batch(turn)["key"].to_pylist()}
        )
        for _ in range(5):
            begin = time.perf_counter()
            shown = scan().num_rows
            scans.append(time.perf_counter() - begin)
        if shown != expected:
            raise SystemExit(f"{name} shows {shown} rows, {expected} keys were put")
    ends = {"first": spent[:ENDS], "last": spent[-ENDS:], "scan": scans}
    return {end: 1e3 * statistics.median(values) for end, values in ends.items()} | {
        "commits": len(spent)
    }


def python_of(name: str) -> str:
    if name != "ducklake":
        return sys.executable
    from tests.bench.peers.environments import environment_of

    return str(environment_of("duckdb-1.5.5", DUCK))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=1_000)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="a system that takes longer makes fewer commits"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.commits, options.seconds)))
        return
    print(
        f"{'':10} {'first':>9} {'last':>9} {'scan':>9}   ms; median of {ENDS} of "
        f"{options.commits:,} commits of {ROWS} rows, and of 5 scans"
    )
    baseline: dict[str, float] = {}
    for name in options.systems.split(","):
        command = [
            python_of(name),
            __file__,
            "--child",
            name,
            "--commits",
            str(options.commits),
            "--seconds",
            str(options.seconds),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        baseline = baseline or figures
        ratios = (
            ""
            if figures is baseline
            else "   x "
            + " ".join(f"{figures[end] / baseline[end]:.2f}" for end in ("first", "last", "scan"))
        )
        print(
            f"{name:10} {figures['first']:9.1f} {figures['last']:9.1f} {figures['scan']:9.1f} "
            f"{figures['commits']:9,}{ratios}",
            flush=True,
        )


if __name__ == "__main__":
    main()
