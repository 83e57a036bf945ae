"""Every operation through the public API, without Spark.

Over any number of tasks the table is what the model says.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.engine.in_process import InProcess
from opal_lake.errors import InvalidInputError, NoRowsError, NotFoundError
from opal_lake.key_store.run import decode_run
from opal_lake.storage import open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import MAX_LOOKED_AT, Table
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, latest, reopen, rows

MOMENTS = 12
ROWS = st.tuples(
    st.sampled_from("abcdefgh"), st.integers(0, MOMENTS), st.none() | st.integers(0, 99)
)
MAINTENANCE: dict[str, Callable[[Table, int], object]] = {
    "compact": lambda table, _: table.compact(),
    "major": lambda table, look_back: table.compact(mode="major", look_back=look_back),
    "zorder": lambda table, _: table.zorder(["price", "sku"]),
    "whole": lambda table, _: table.zorder(["at"], whole=True),
    "rebuild": lambda table, _: table.rebuild_key_store(),
    "maintain": lambda table, look_back: table.maintain(
        small_files=1, zorder=["sku"], look_back=str(look_back)
    ),
    "retain": lambda table, _: table.retain(window="0s", grace="0s"),
}
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(["batch", "inline"]),
        st.lists(ROWS, min_size=1, max_size=12),
        st.integers(1, 4),
    ),
    st.tuples(st.sampled_from(["metagen", *MAINTENANCE]), st.just([]), st.integers(1, 4)),
)


@settings(max_examples=60)
@given(steps=st.lists(STEPS, min_size=2, max_size=9), look_back=st.integers(0, MOMENTS))
def test_a_table_reads_as_the_model_after_any_steps(
    steps: list[tuple[str, list[Row], int]], look_back: int
) -> None:
    table = create(MemoryStorage(), segment_rows=5, group_rows=50, key_store_fan_in=2)
    arrived: list[tuple[list[Row], bool]] = []  # with whether they are visible
    for verb, batch, tasks in steps:
        busy = replace(table, executor=InProcess(tasks=tasks))
        if verb in MAINTENANCE:
            MAINTENANCE[verb](busy, look_back)
        elif verb == "metagen":
            busy.metagen()
            arrived = [(rows_of, True) for rows_of, _ in arrived]
        else:
            busy.ingest(*rows(batch), metadata=verb)
            arrived.append((batch, verb == "inline"))
    assert check_table(table) == []
    visible = [batch for batch, is_visible in arrived if is_visible]
    floor = table.snapshot_at().root.floor
    for moment in (None, *range(MOMENTS + 1)):
        if moment is not None and floor is not None and moment < floor:
            with pytest.raises(NotFoundError, match="oldest readable"):
                table.read(event_time=moment)
        else:
            assert content(table, event_time=moment) == latest(visible, moment)


def test_an_upsert_by_key_hash_has_a_task_a_range() -> None:
    table = replace(create(MemoryStorage()), executor=InProcess(tasks=4))
    values: list[Row] = [(f"k{number}", 1, number) for number in range(50)]
    table.ingest(*rows(values), metadata="inline")
    state = table.snapshot_at()
    assert (len(state.files), len(state.runs)) == (4, 4)
    runs = sorted((run.hash_low, run.hash_high) for run in state.runs.values())
    assert [low >> 62 for low, _ in runs] == [high >> 62 for _, high in runs] == [0, 1, 2, 3]
    assert content(table) == sorted(values)


@pytest.mark.parametrize("verb", ["inline", "metagen", "rebuild_key_store", "compact"])
def test_every_operation_records_the_greatest_delta_of_its_runs(verb: str) -> None:
    table = replace(create(MemoryStorage(), key_store_fan_in=2), executor=InProcess(tasks=2))
    for delta in (5, 9, 3):
        batch = rows([(f"k{number}", delta + number, number) for number in range(20)])
        table.ingest(*batch, metadata="inline" if verb == "inline" else "batch")
        table.metagen()
    if verb == "rebuild_key_store":
        table.rebuild_key_store()
    elif verb == "compact":
        table.compact(mode="major", look_back=0)
    runs = table.snapshot_at().runs.values()
    assert runs
    for run in runs:
        entries = decode_run(table.log.storage.get(run.path), run.path)
        assert run.greatest_delta == entries.delta.max()


def test_rows_without_a_key_are_refused_with_any_number_of_tasks() -> None:
    table = replace(create(MemoryStorage()), executor=InProcess(tasks=3))
    batch = rows([("a", 1, 1), ("b", 2, 2)])[0]
    batch = batch.set_column(0, "sku", [["a", None]])
    with pytest.raises(InvalidInputError, match="1 row"):
        table.ingest(batch, [False, False], metadata="inline")
    result = table.ingest(batch, [False, False], metadata="inline", on_bad_rows="quarantine")
    assert (result.counts["rows"], result.counts["rejected"]) == (1, 1)
    assert content(table) == [("a", 1, 1)]


def test_a_token_does_an_operation_once() -> None:
    table = create(MemoryStorage(), small_files=1)
    for number in range(3):
        table.ingest(
            *rows([(f"k{number}", number, number)]), metadata="inline", application=("job", number)
        )
    assert table.ingest(*rows([("late", 1, 1)]), application=("job", 2)).repeated
    with pytest.raises(NoRowsError):
        table.ingest(*rows([]), on_empty="fail")
    assert table.maintain(dry_run=True).counts == {"due": 1}
    for job in (table.maintain, table.compact, table.rebuild_key_store):
        first, again = (job(token=job.__name__) for _ in range(2))
        assert (first.repeated, again.repeated, again.version) == (False, True, first.version)
    assert table.compact(only_if_due=True).notes[0].startswith("not due")
    assert check_table(table) == []


@pytest.mark.parametrize("inside", ["orders", "data/orders", "_opal/orders"])
def test_a_table_inside_another_one_s_folders_is_refused(tmp_path: Path, inside: str) -> None:
    outer = tmp_path / "shop"
    create(open_storage(str(outer)))
    with pytest.raises(InvalidInputError, match=r"lies inside the Opal table .*/shop"):
        create(open_storage(f"file://{outer}/{inside}"))
    create(open_storage(str(tmp_path / "shop.orders")))  # next to it
    assert check_table(reopen(open_storage(str(outer)))) == []


@pytest.mark.parametrize("inside", ["orders", "data", "data/orders", "_opal/orders", "data/a/b/c"])
def test_a_table_around_another_one_is_refused(tmp_path: Path, inside: str) -> None:
    outer = tmp_path / "shop"
    inner = create(open_storage(f"{outer}/{inside}"))
    inner.ingest(*rows([("ax", 1, 10)]), metadata="inline")
    with pytest.raises(InvalidInputError, match=rf"since it contains the table .*/shop/{inside};"):
        create(open_storage(str(outer)))
    assert not (outer / "_opal" / "log").exists()
    assert content(inner) == [("ax", 1, 10)]


def test_a_table_around_another_one_is_refused_behind_many_other_files(tmp_path: Path) -> None:
    create(open_storage(f"{tmp_path}/data/orders"))
    (tmp_path / "0").mkdir()
    for number in range(MAX_LOOKED_AT):
        (tmp_path / "0" / f"{number}.csv").touch()
    with pytest.raises(InvalidInputError, match=r"since it contains the table .*/data/orders;"):
        create(open_storage(str(tmp_path)))


def test_a_table_can_be_created_among_other_files(tmp_path: Path) -> None:
    for name in ("a.csv", "data/b.csv", "_opal/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert content(create(open_storage(str(tmp_path)))) == []


@pytest.mark.s3
def test_a_table_around_another_one_s_prefix_is_refused(s3_options: dict[str, str]) -> None:
    create(open_storage("s3://lake/around/shop/data/orders", s3_options))
    with pytest.raises(InvalidInputError, match=r"since it contains the table .*/data/orders;"):
        create(open_storage("s3://lake/around/shop", s3_options))


@pytest.mark.s3
def test_a_table_inside_another_one_s_prefix_is_refused(s3_options: dict[str, str]) -> None:
    create(open_storage("s3://lake/nested/shop", s3_options))
    for inside in ("s3://lake/nested/shop/orders", "s3a://lake/nested/shop/a/b"):
        with pytest.raises(InvalidInputError, match=r"lies inside the Opal table .*/nested/shop"):
            create(open_storage(inside, s3_options))
    create(open_storage("s3://lake/nested/shop-orders", s3_options))
