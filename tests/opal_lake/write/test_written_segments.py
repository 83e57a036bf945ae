"""Rows that tasks wrote in their order, committed in one process.

The table is the same as after an inline ingest by key ranges.
"""

import random

import pytest

from opal_lake.definition.schema import DELETED
from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from opal_lake.write.ingest_job import IngestRun, start_ingest
from opal_lake.write.ingest_task import IngestOutput, IngestTask, ingest_rows
from opal_lake.write.written_segments import commit_inline
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, latest, rows


def started(table: Table, token: str | None = None) -> IngestRun:
    run = start_ingest(table, Ingest([], metadata="inline", token=token))
    assert isinstance(run, IngestRun)
    return run


def written(table: Table, run: IngestRun, batches: list[list[Row]]) -> list[IngestOutput]:
    """Write each batch in a task."""
    outputs = []
    for number, batch in enumerate(batches):
        part, deleted = rows(batch)
        task = IngestTask(
            storage=table.storage, spec=run.base.spec, number=run.number, task=number, attempt="a"
        )
        outputs.append(ingest_rows(part.append_column(DELETED, [deleted]).to_batches(), task))
    return outputs


def random_rows(dice: random.Random, deltas: list[int]) -> list[Row]:
    return [
        (f"k{dice.randrange(5)}", deltas.pop(), dice.randrange(9) if dice.random() < 0.8 else None)
        for _ in range(dice.randrange(1, 9))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_rule_is_applied_to_ranges_of_the_key_hash_that_fit_into_memory(seed: int) -> None:
    dice = random.Random(seed)
    deltas = dice.sample(
        range(1000), 200
    )  # no two rows agree in theirs: the order of arrival does not matter
    table = create(MemoryStorage(), key_store_fan_in=2, checkpoint_commits=2, segment_rows=3)
    batches: list[list[Row]] = []
    for _ in range(4):
        now = [random_rows(dice, deltas) for _ in range(dice.randrange(1, 4))]
        run = started(table)
        outputs = written(table, run, now)
        if dice.random() < 0.5:  # another writer is faster
            batches.append(random_rows(dice, deltas))
            table.ingest(*rows(batches[-1]), metadata="inline")
        version = table.snapshot_at().version
        result = commit_inline(table, run, outputs, rows_at_once=dice.randrange(1, 9))
        assert result.version == version + 1, "rows and what they hide come together"
        batches += now
    assert content(table) == latest(batches)
    assert check_table(table) == []


def test_a_bad_row_of_any_task_refuses_all_rows() -> None:
    table = create(MemoryStorage())
    run = started(table)
    outputs = written(table, run, [[("a", 1, 1)], [("b", None, 2)]])  # type: ignore[list-item]  # a bad row
    with pytest.raises(
        InvalidInputError, match="1 row cannot go into the table, so nothing was ingested"
    ):
        commit_inline(table, run, outputs)
    assert table.snapshot_at().version == 0


def test_an_ingest_without_rows_commits_only_with_a_token() -> None:
    table = create(MemoryStorage())
    assert commit_inline(table, started(table), []).version is None
    assert commit_inline(table, started(table, "t"), [IngestOutput()]).version == 1
    again = start_ingest(table, Ingest([], metadata="inline", token="t"))
    assert isinstance(again, JobResult)
    assert again.repeated
