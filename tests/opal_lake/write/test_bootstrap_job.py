"""A bootstrap without Spark.

Each batch is ingested once, whatever fails in between, with one MetaGen and only files of the
source.
"""

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from opal_lake.data.rejects import BAD
from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import FormatError, InvalidInputError, StorageError
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from opal_lake.write import bootstrap_job
from opal_lake.write.bootstrap import BootstrapPlan, SourceFile, SourceTable, done_batches
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, latest, rows

SOURCE = SourceTable(location="/old", format="parquet")
BATCHES: list[list[Row]] = [
    [("a", 1, 1), ("b", 1, 2)],
    [("a", 2, 3)],
    [("b", 3, None), ("c", 1, 4)],
]


@dataclass(kw_only=True)
class Reader:
    """A source in memory; its reading fails at the batches named."""

    source: SourceTable = SOURCE
    batches: list[list[Row]] = field(default_factory=lambda: BATCHES)
    fails_at: set[int] = field(default_factory=set)
    folder: str = "/old"
    plans: int = 0
    read: list[int] = field(default_factory=list)

    def columns(self, _: BootstrapPlan) -> pa.Schema:
        return rows([])[0].schema

    def plan(self) -> BootstrapPlan:
        self.plans += 1
        files = [
            SourceFile(path=f"{self.folder}/{number}", size=9, rows=len(batch))
            for number, batch in enumerate(self.batches)
        ]
        return BootstrapPlan(
            source=self.source, schema={}, folders=(), batches=tuple((file,) for file in files)
        )

    def rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> pa.Table:
        if batch in self.fails_at:
            raise StorageError("the source is away")
        self.read.append(batch)
        table, deleted = rows(self.batches[batch])
        return table.append_column(DELETED, pa.array(deleted))


def bootstrap(table: Table, reader: bootstrap_job.SourceReader, **arguments: str) -> JobResult:
    return bootstrap_job.bootstrap(table, reader, Ingest(reader.source, **arguments))


def test_all_batches_are_in_the_table_and_visible() -> None:
    table, reader = create(MemoryStorage()), Reader()
    result = bootstrap(table, reader)
    assert content(table) == latest(BATCHES)
    assert (result.counts["batches_done"], result.counts["rows"], result.version) == (
        3,
        5,
        table.snapshot_at().version,
    )
    assert [commit.operation for commit in table.commits()] == [
        "metagen",
        "ingest",
        "ingest",
        "ingest",
        "create",
    ]
    assert check_table(table) == []


def test_the_next_attempt_after_a_failure_ingests_the_missing_batches() -> None:
    table, reader = create(MemoryStorage()), Reader(fails_at={1})
    with pytest.raises(StorageError, match="is away"):
        bootstrap(table, reader)
    assert list(done_batches(table.storage, SOURCE.name)) == [0]
    assert content(table) == []  # no MetaGen before all is there
    reader.fails_at.clear()
    result = bootstrap(table, reader)
    assert reader.read == [0, 1, 2]
    assert reader.plans == 1
    assert (
        result.counts["batches_skipped"],
        result.counts["batches_done"],
        result.counts["rows"],
    ) == (1, 2, 5)
    assert content(table) == latest(BATCHES)


def test_a_finished_bootstrap_returns_its_result_and_reads_nothing() -> None:
    table = create(MemoryStorage())
    done, reader = bootstrap(table, Reader()), Reader(batches=[[("z", 9, 9)]])
    assert bootstrap(table, reader) == replace(done, repeated=True)
    assert (reader.plans, reader.read, table.snapshot_at().version) == (0, [], done.version)


def test_a_source_without_files_gives_an_empty_table() -> None:
    table = create(MemoryStorage())
    assert bootstrap(table, Reader(batches=[])).version == table.snapshot_at().version == 0


def test_a_batch_with_other_rows_than_listed_is_refused() -> None:
    table, reader = create(MemoryStorage()), Reader(fails_at={0})
    with pytest.raises(StorageError):
        bootstrap(table, reader)
    with pytest.raises(InvalidInputError, match="the source gave 1 row, but lists 2"):
        bootstrap(table, Reader(batches=[BATCHES[0][:1], *BATCHES[1:]]))
    assert table.snapshot_at().version == 0


def test_a_plan_with_files_from_elsewhere_is_refused() -> None:
    table = create(MemoryStorage())
    with pytest.raises(FormatError, match="not below /old; delete the table"):
        bootstrap(table, Reader(folder="/secret"))
    assert table.snapshot_at().version == 0


def test_bad_rows_fail_a_batch_or_are_put_aside() -> None:
    class Bad(Reader):
        def rows(self, plan: BootstrapPlan, batch: int, spec: TableSpec) -> pa.Table:
            good = super().rows(plan, batch, spec)
            return good.append_column(
                BAD, pa.array(["no price", *[None] * (good.num_rows - 1)], pa.string())
            )

    table = create(MemoryStorage())
    with pytest.raises(InvalidInputError, match="no price"):
        bootstrap(table, Bad())
    assert bootstrap(table, Bad(), on_bad_rows="quarantine").counts["rejected"] == 3
    assert content(table) == latest([batch[1:] for batch in BATCHES])
    assert any(commit.result["examples"] for commit in table.commits())
    # An erasure does not reach the records, so they hold no rows
    records = done_batches(table.storage, SOURCE.name)
    assert [record.examples for record in records.values()] == [()] * 3
