"""The tables of a scale run."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on, table_on
from tests.crash.left_overs import left_overs
from tests.opal_lake.compacting import compact
from tests.scale.checked import batches
from tests.scale.measure import Outcome
from tests.soak.model import Model, difference
from tests.soak.rows import DELETES, SCHEMA, Batch, arrow_of, columns_from, columns_of

_PARTITIONED = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("part", pa.int32()), ("value", pa.int64())]
)
_CHECK_MB = 1_200


def many_commits(folder: Path, commits: int, outcome: Outcome) -> None:
    """Inline upserts, one after the other."""
    storage = open_storage(str(folder))
    create_on(storage, plan_spec(SCHEMA, TableLayout(keys=["sku"], delta="at", deletes=DELETES)))
    table, model = table_on(storage), Model()
    share = max(1, commits // 10)

    versions: list[
        int
    ] = []  # of the upserts: small files are put together in passing, by commits of their own

    def compare(event_time: int | None = None) -> str:
        return difference(
            columns_from(table.read(event_time=event_time)), model.visible(versions[-1], event_time)
        )

    for begin in range(0, commits, share):
        with outcome.step(f"commits {begin + 1:,} to {min(begin + share, commits):,}"):
            for turn in range(begin + 1, min(begin + share, commits) + 1):
                rows = columns_of(Batch(writer=1, turn=turn, tick=turn * 10))
                versions.append(
                    table.ingest(*arrow_of(rows), token=f"batch {turn}", metadata="inline").version
                )
                model.add(rows, versions[-1])
        with outcome.step("    a read of all"):
            problem = compare()
        outcome.require(not problem, f"after {begin + share} commits: {problem}")
    for version in (versions[commits // 7], versions[commits // 2]):
        problem = difference(columns_from(table.read(version=version)), model.visible(version))
        outcome.require(not problem, f"version {version}: {problem}")
    moment = int(np.median(model.visible(versions[-1])["at"]))
    outcome.require(not compare(moment), f"event time {moment}: {compare(moment)}")
    with outcome.step("check before compaction"):
        _require_sound(table, outcome)
    with outcome.step("compaction"):
        compact(table)
    with outcome.step("    a read of all"):
        outcome.require(not compare(), f"after compaction: {compare()}")
    outcome.finish(table, folder, compare)


def _require_sound(table: Table, outcome: Outcome) -> None:
    from tests.kit.check import check_table

    findings = check_table(table)
    outcome.require(not findings, f"check finds {len(findings)}: {findings[:2]}")


def many_partitions(folder: Path, partitions: int, outcome: Outcome) -> None:
    """Write three rows a partition, then a change in each, then in each hundredth."""
    storage = open_storage(str(folder))
    layout = TableLayout(keys=["id"], delta="at", deletes="value IS NULL", partition_by=["part"])
    create_on(storage, plan_spec(_PARTITIONED, layout))
    table = table_on(storage)
    values = np.arange(3 * partitions, dtype=np.int64)
    alive = np.ones(3 * partitions, np.bool_)
    steps = [
        (np.arange(3 * partitions), 1),
        (np.arange(0, 3 * partitions, 3), 2),
        (np.arange(1, 3 * partitions, 300), 3),
    ]
    for keys, turn in steps:
        deleted = (keys % 7 == 0) & (turn > 1)
        columns = [keys, np.full(len(keys), turn), (keys // 3).astype(np.int32), keys * turn]
        rows = pa.table([pa.array(column) for column in columns], schema=_PARTITIONED)
        with outcome.step(
            f"upsert of {len(keys):,} rows in {len(np.unique(keys // 3)):,} partitions"
        ):
            table.ingest(rows, deleted.tolist(), metadata="inline", token=f"turn {turn}")
        values[keys], alive[keys] = keys * turn, ~deleted

    def compare() -> str:
        rows = table.read().sort_by("id")
        selected = np.flatnonzero(alive)
        same = (
            rows["id"].to_pylist() == selected.tolist()
            and rows["value"].to_pylist() == values[selected].tolist()
        )
        return "" if same else f"{rows.num_rows} rows are not the {len(selected)} of the model"

    with outcome.step("a read of all"):
        outcome.require(not compare(), compare())
    with outcome.step("compaction"):
        compact(table)
    outcome.require(
        len(table.snapshot_at().files) == partitions,
        f"{len(table.snapshot_at().files)} files after compaction",
    )
    outcome.finish(table, folder, compare)


def many_rows(folder: Path, rows: int, outcome: Outcome) -> None:
    """Write generated rows, and compare counts and sums in bounded memory."""
    own = [sys.executable, "-m", "tests.scale.checked"]
    with outcome.step("ingest"):
        subprocess.run([*own, "build", str(folder), "--rows", str(rows)], check=True)
    table = Table.open(str(folder))
    with outcome.step("the model"):
        expected = _counted(rows)

    def compare() -> str:
        read = table.read(columns=["v1"])
        actual = read.num_rows, pc.sum(read["v1"]).as_py()
        return "" if actual == expected else f"(rows, sum) are {actual}, should be {expected}"

    with outcome.step("a read of all"):
        outcome.require(not compare(), compare())
    done = subprocess.run([*own, "check", str(folder)], capture_output=True, text=True, check=False)
    outcome.say(f"check: {done.stdout.strip()}")
    outcome.require(done.returncode == 0, f"check: {done.stdout.strip()} {done.stderr[-300:]}")
    peak = re.search(r"([\d,]+) MB", done.stdout)
    held_mb = int(peak[1].replace(",", "")) if peak else 0
    outcome.require(
        0 < held_mb <= _CHECK_MB, f"the check held {held_mb} MB, at most are {_CHECK_MB}"
    )
    with outcome.step("compaction"):
        compact(table)
    with outcome.step("retention"):
        table.retain(window="0s", grace="0s")
    paths = left_overs(table, folder)
    outcome.require(not paths, f"{len(paths)} left-overs: {paths[:3]}")
    outcome.require(not compare(), f"after retention: {compare()}")


def _counted(rows: int) -> tuple[int, int]:
    """Return the number of visible rows, and the sum of one of their columns."""
    values, alive = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    for part, deleted in batches(rows):
        keys = pc.utf8_slice_codeunits(part["id"], 5).cast(pa.int64()).to_numpy()
        values[keys], alive[keys] = part["v1"].to_numpy(), ~deleted
    return int(alive.sum()), int(values[alive].sum())
