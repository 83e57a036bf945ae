"""Promises of every executor to the operations: the one in this process, and Spark's."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import Atomic
from opal_lake.engine.executor import Attempt, Executor, Ordering, Stage
from opal_lake.engine.in_process import InProcess, slots_of
from opal_lake.key_store.entries import Entries
from opal_lake.table import Table
from opal_spark.spark_engine import SparkEngine

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("city", pa.string())])
SLOTS, ROWS = 4, 1000


@pytest.fixture(params=["in process", pytest.param("spark", marks=pytest.mark.spark)])
def on(request: pytest.FixtureRequest) -> tuple[Executor, Callable[[pa.Table], Any]]:
    """Return an executor, and a function that gives it rows."""
    if request.param == "in process":
        return InProcess(tasks=3), lambda rows: rows
    spark: SparkSession = request.getfixturevalue("spark")
    return SparkEngine(spark=spark), lambda rows: spark.createDataFrame(rows).repartition(3)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files, of even and of odd keys."""
    made = Table.create(str(tmp_path / "t"), SCHEMA, keys=["id"], delta="at")
    for first in (0, 1):
        made.ingest(some_rows(range(first, ROWS, 2)), metadata="inline")
    return made


def some_rows(keys: Iterable[int]) -> pa.Table:
    ids = [*keys]
    return pa.table([ids, [1] * len(ids), [f"c{key % 7}" for key in ids]], schema=SCHEMA)


def note_rows(batches: Iterable[pa.RecordBatch], attempt: Attempt) -> tuple[int, str, list[int]]:
    return (
        attempt.part,
        attempt.name,
        [key for batch in batches for key in batch.column(0).to_pylist()],
    )


def note_entries(entries: Entries, attempt: Attempt) -> tuple[int, list[int]]:
    return attempt.part, sorted(entries.high.tolist())


def high_hashes(keys: Iterable[int]) -> npt.NDArray[np.uint64]:
    return hash_keys([pa.chunked_array([pa.array([*keys], pa.int64())])], [Atomic(name="long")])[
        :, 0
    ]


def test_results_have_the_order_of_the_works(on: tuple[Executor, Any]) -> None:
    executor, _ = on
    done = executor.run(lambda work, attempt: (work * work, attempt), range(20))
    assert [result for result, _ in done] == [work * work for work in range(20)]
    assert all(attempt for _, attempt in done)
    assert executor.run(lambda work, _: work, []) == []


def test_a_task_that_fails_fails_the_call_with_its_own_words(on: tuple[Executor, Any]) -> None:
    executor, _ = on

    def fail(work: int, _: str) -> int:
        if work == 3:
            raise ValueError("work 3 cannot be done")
        return work

    with pytest.raises(Exception, match="work 3 cannot be done"):
        executor.run(fail, range(5))


def test_each_row_of_a_source_is_in_one_partition(on: tuple[Executor, Any], table: Table) -> None:
    executor, given = on
    done = executor.by_partition(given(some_rows(range(ROWS))), table.snapshot_at(), note_rows)
    assert [part for part, _, _ in done] == [*range(len(done))]
    assert sorted(key for _, _, keys in done for key in keys) == [*range(ROWS)]


def test_a_task_gets_the_rows_whose_key_hash_is_in_its_slot(
    on: tuple[Executor, Any], table: Table
) -> None:
    executor, given = on
    twice = some_rows([*range(ROWS), *range(0, ROWS, 3)])
    done = executor.by_key_hash(given(twice), table.snapshot_at(), SLOTS, note_rows)
    assert len({(part, name) for part, name, _ in done}) == len(done) == SLOTS
    assert Counter(key for _, _, keys in done for key in keys) == Counter(twice["id"].to_pylist())
    for part, _, keys in done:
        assert {*slots_of(high_hashes(keys), SLOTS).tolist()} == {part}


def test_stored_rows_come_to_the_task_of_their_key_s_hash(
    on: tuple[Executor, Any], table: Table
) -> None:
    executor, _ = on
    state, hashes = table.snapshot_at(), high_hashes(range(ROWS))
    expected = [
        (slot, sorted(hashes[slots_of(hashes, SLOTS) == slot].tolist())) for slot in range(SLOTS)
    ]
    for only in (None, [2], [0, 3], []):
        done = executor.stored_by_key_hash(
            state, [*state.files.values()], SLOTS, note_entries, only=only
        )
        assert done == [expected[slot] for slot in (range(SLOTS) if only is None else only)]


def test_rows_in_an_order_are_cut_along_it_and_bins_stay_apart(
    on: tuple[Executor, Any], table: Table
) -> None:
    executor, _ = on
    state = table.snapshot_at()
    even, odd = state.files.values()
    ordering = Ordering(
        base=state,
        bins=((even,), (odd,)),
        columns=(state.spec.schema.field("id"),),
        files=(3.0, 2.0),
    )
    done = executor.in_order(
        ordering, lambda batches, attempt: (attempt.bin, note_rows(batches, attempt))
    )
    assert len(done) == 2
    for number, parts in enumerate(done):
        assert {bin_number for bin_number, _ in parts} == {number}
        keys = [keys for _, (_, _, keys) in parts if keys]
        assert sorted(chain.from_iterable(keys)) == [*range(number, ROWS, 2)]
        assert len(keys) > 1
        assert all(max(before) < min(after) for before, after in pairwise(keys))


COUNTED = pa.schema([pa.field("slot", pa.int32(), False), pa.field("number", pa.int64(), False)])


def deal(works: Iterable[int]) -> Iterator[pa.RecordBatch]:
    for work in works:
        yield pa.record_batch(
            [pa.array([work % SLOTS], pa.int32()), pa.array([work], pa.int64())], schema=COUNTED
        )


def add_up(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return sorted(number for batch in batches for number in batch.column(1).to_pylist())


def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a hundred times as much, for the next slot."""
    for number in add_up(batches):
        yield pa.record_batch(
            [pa.array([(number + 1) % SLOTS], pa.int32()), pa.array([100 * number], pa.int64())],
            schema=COUNTED,
        )


def test_rows_go_from_stage_to_stage(on: tuple[Executor, Any]) -> None:
    executor, _ = on
    stages = [
        Stage(works=range(10), size=10, read=deal, schema=COUNTED, task=pass_on),
        Stage(works=range(3), size=3, read=deal, schema=COUNTED, task=add_up),
    ]
    expected = []
    for slot in range(SLOTS):
        passed_on = [100 * work for work in range(10) if (work + 1) % SLOTS == slot]
        own = [work for work in range(3) if work == slot]
        expected.append(sorted(passed_on + own))
    assert executor.by_stages(stages, SLOTS) == expected
