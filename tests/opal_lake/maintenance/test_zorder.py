"""Z-order: files hold close values of all columns, and every version reads as before.

A second run rewrites only what is new.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from opal_lake.data.bounds import Bounds
from opal_lake.data.prune import And, Compare
from opal_lake.data.segment import Cluster, DataFile
from opal_lake.errors import InvalidInputError
from opal_lake.maintenance.zorder_plan import plan_batches, plan_zorder
from opal_lake.read.read import plan_read
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.maintenance.build import X, Y, batch, make, order


def content(table: Table, **view: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.read(**view).to_pylist())


def clusters(table: Table) -> list[Cluster | None]:
    return [file.cluster for file in table.snapshot_at().files.values()]


def read_share(table: Table) -> float:
    """Return the average share of files that reads with filters on x and y open."""
    snapshot = table.snapshot_at()
    shares = []
    for low in np.arange(0, 1, 0.1):
        boxes = [
            And(
                parts=(
                    Compare(field_id=n, op=">=", value=low),
                    Compare(field_id=n, op="<", value=low + 0.02),
                )
            )
            for n in (X, Y)
        ]
        shares += [
            len(plan_read(snapshot, None, box).files) / len(snapshot.files)
            for box in (*boxes, And(parts=tuple(boxes)))
        ]
    return float(np.mean(shares))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_reads_after_a_zorder_open_few_files_and_return_the_same_rows(
    request: pytest.FixtureRequest, file_format: str
) -> None:
    table = make(request.node.name, file_format=file_format)
    table.ingest(batch(0, 8_000, 1), metadata="inline")
    table.ingest(batch(4_000, 8_000, 2), metadata="inline")
    table.ingest(batch(20_000, 10, 3))  # pending
    before = {
        (version, moment): content(table, version=version, event_time=moment)
        for version in range(4)
        for moment in (0, 1, 2, None)
    }
    result = order(table)
    files = table.snapshot_at().files.values()
    assert result.counts["files_read"] == 2
    assert result.counts["rows"] == 16_000, "also the rows that are visible no more"
    assert result.counts["files_written"] == len(files) - 1 >= 12
    assert result.counts["commits"] == 1
    assert any(len(file.segments) == 2 for file in files), "rows of both segments in one file"
    assert read_share(table) < 0.3
    for (version, moment), was in before.items():
        assert content(table, version=version, event_time=moment) == was
        if version == 3:
            assert content(table, event_time=moment) == was
    table.metagen()
    assert len(content(table)) == 12_010
    assert check_table(table) == []


def test_a_second_zorder_rewrites_new_files_and_smaller_runs(
    request: pytest.FixtureRequest,
) -> None:
    table = make(request.node.name)
    table.ingest(batch(0, 16_000, 1), metadata="inline")
    first = order(table)
    assert order(table).version is None, "nothing is left to do"
    table.ingest(batch(0, 1_000, 2), metadata="inline")
    assert order(table).version is None, "one small file is in no better order than it was"
    table.ingest(batch(1_000, 1_000, 3), metadata="inline")
    second = order(table)
    assert second.counts["files_read"] == 2, "the large run stays"
    assert len({cluster.number for cluster in clusters(table) if cluster}) == 2
    table.ingest(batch(2_000, 3_000, 4), metadata="inline")
    table.ingest(batch(5_000, 3_000, 5), metadata="inline")
    third = order(table)
    assert third.counts["files_read"] == 2 + second.counts["files_written"], (
        "the run of the second is smaller than what came"
    )
    assert third.counts["rows"] == 8_000
    assert order(table, whole=True).counts["rows"] == 24_000
    assert len(set(clusters(table))) == 1
    assert first.counts["rows"] == 16_000
    assert check_table(table) == []


def test_a_zorder_by_other_columns_rewrites_all_files(request: pytest.FixtureRequest) -> None:
    table = make(request.node.name)
    table.ingest(batch(0, 8_000, 1), metadata="inline")
    order(table, "x", "y")
    assert order(table, "y", "x").counts["rows"] == 8_000
    assert {cluster.columns for cluster in clusters(table) if cluster} == {(Y, X)}


def test_partitions_are_clustered_separately_in_several_commits(
    request: pytest.FixtureRequest,
) -> None:
    table = make(request.node.name, partition_by=("day",), group_rows=9_000)
    table.ingest(batch(0, 8_000, 1, days=3), metadata="inline")
    table.ingest(batch(8_000, 8_000, 1, days=3), metadata="inline")
    before = content(table)
    plan = plan_zorder(table.snapshot_at(), (X, Y), 20_000)
    assert len(plan.bins) >= 3
    assert len(list(plan_batches(plan.bins, 1))) == len(plan.bins)
    assert len(list(plan_batches(plan.bins))) == 1
    result = order(table)
    assert result.counts["commits"] == 1
    for file in table.snapshot_at().files.values():
        days = file.bounds[5]
        assert days.low == days.high, "folders are not mixed"
        assert {table.snapshot_at().segments[segment].group for segment in file.segments} == {
            file.group
        }
    assert content(table) == before
    assert check_table(table) == []


def test_an_upsert_commits_while_a_zorder_runs_and_neither_conflicts(
    request: pytest.FixtureRequest,
) -> None:
    table = make(request.node.name)
    table.ingest(batch(0, 8_000, 1), metadata="inline")

    result = order(table, meanwhile=lambda: table.ingest(batch(4_000, 8_000, 2), metadata="inline"))
    assert result.version == 3
    assert len(content(table)) == 12_000
    assert content(table, event_time=1) == content(table, version=1)
    assert check_table(table) == []


def test_files_that_a_compaction_takes_meanwhile_are_left_out(
    request: pytest.FixtureRequest,
) -> None:
    table = make(request.node.name)
    for first in (0, 4_000):
        table.ingest(batch(first, 4_000, 1), metadata="inline")
    before = content(table)

    result = order(table, meanwhile=lambda: compact(table))
    assert result.version is None
    [note] = result.notes
    assert note == (
        "other jobs rewrote files of 1 bin meanwhile; the next Z-order rewrites the other files of "
        "these bins"
    )
    assert content(table) == before
    assert order(table).counts["rows"] == 8_000
    assert check_table(table) == []


def test_a_compaction_keeps_the_order(request: pytest.FixtureRequest) -> None:
    table = make(request.node.name)
    table.ingest(batch(0, 8_000, 1), metadata="inline")
    order(table)
    files = len(table.snapshot_at().files)
    table.ingest(batch(0, 4_000, 2), metadata="inline")
    compact(table)
    assert len(table.snapshot_at().files) == files + 1, "files in order are not small ones"
    compact(table, floor=5)
    clustered = clusters(table)
    assert clustered.count(None) == 1
    assert len(clustered) == files + 1
    assert sum(file.rows for file in table.snapshot_at().files.values()) == 8_000
    assert read_share(table) < 0.4
    assert check_table(table) == []


def test_zorder_that_is_not_due_names_the_reason(request: pytest.FixtureRequest) -> None:
    table = make(request.node.name, unclustered_share=30)
    assert order(table, only_if_due=True).version is None
    for first in (0, 8_000):
        table.ingest(batch(first, 8_000, 1), metadata="inline")
    assert order(table, only_if_due=True).version is not None
    for first in (0, 1_000):
        table.ingest(batch(first, 1_000, 2), metadata="inline")
    result = order(table, only_if_due=True)
    assert result.version is None
    assert result.notes[0].startswith("not due: 8% of ")
    assert "not clustered by x, y; due from unclustered_share=30%" in result.notes[0]
    assert order(table).version is not None
    with pytest.raises(InvalidInputError, match="leave out whole or only_if_due"):
        table.zorder(["x", "y"], whole=True, only_if_due=True)


def test_rows_that_are_all_alike_make_files_of_bounded_size(request: pytest.FixtureRequest) -> None:
    table = make(request.node.name)
    rows = batch(0, 30_000, 1)
    rows = rows.set_column(
        2,
        "x",
        pa.array(np.where(np.arange(30_000) % 10, 0.5, np.random.default_rng(0).random(30_000))),
    )
    rows = rows.set_column(
        3,
        "y",
        pa.array(np.where(np.arange(30_000) % 10, 0.5, np.random.default_rng(1).random(30_000))),
    )
    table.ingest(rows, metadata="inline")
    order(table)
    sizes = [file.rows for file in table.snapshot_at().files.values()]
    assert max(sizes) < 3 * 30_000 / len(sizes)


def test_columns_of_nulls_and_columns_that_files_do_not_have_yet(
    request: pytest.FixtureRequest,
) -> None:
    table = make(request.node.name)
    rows = batch(0, 4_000, 1)
    for first in (0, 4_000):
        nulls = pa.nulls(4_000, pa.float64())
        table.ingest(
            rows.set_column(0, "id", pa.array(np.arange(first, first + 4_000))).set_column(
                2, "x", nulls
            ),
            metadata="inline",
        )
    assert order(table, "x", "day").counts["rows"] == 8_000
    assert len(content(table)) == 8_000
    assert check_table(table) == []


def test_zorder_plans_rewrite_runs_as_they_grow() -> None:
    """Sizes alone decide: 3 + 2 new, and runs of 4, 8, 20.

    The first two runs are smaller than the selection before them.
    """

    def file(size: int, number: int | None) -> DataFile:
        cluster = None if number is None else Cluster(number=number, columns=(X,))
        path = f"data/{number}-{size}.parquet"
        none: dict[int, Bounds] = {}
        return DataFile(
            path=path,
            size=size,
            crc32=0,
            footer_bytes=1,
            footer_crc32=0,
            rows=size,
            group=0,
            segments=(1,),
            bounds=none,
            cluster=cluster,
        )

    from opal_lake.maintenance.zorder_plan import _select

    files = [file(3, None), file(2, None), file(4, 1), file(5, 2), file(3, 2), file(20, 3)]
    selected = _select(files, (X,))
    assert sorted(file.size for file in selected) == [2, 3, 3, 4, 5]
    assert _select(files[2:], (X,)) == []
    assert len(_select(files, (Y,))) == len(files)
