"""Compaction: fewer files, logs and runs, and the same answers.

Below the floor only what is needed stays.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opal_lake import layout
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.maintenance.compaction import plan_floor
from opal_lake.operations.compact import Compact
from opal_lake.result import JobResult
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.executors import Interrupted
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import SCHEMA, Row, content, copied, create, latest, reopen, rows

DAYS: list[list[Row]] = [
    [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30), ("dye", 5, 40)],
    [("ax", 2, 11), ("bow", 3, None), ("cup", 0, 29), ("elk", 2, 50)],
    [("bow", 4, None), ("ax", 6, 12), ("fan", 6, 60)],
    [("bow", 2, 21), ("dye", 7, 41), ("ax", 6, 13)],
]
MINOR, MAJOR = {}, {"floor": 5}
MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def upsert(table: Table, batch: Sequence[Row]) -> JobResult:
    return table.ingest(*rows(batch), metadata="inline")


def filled(storage: Storage, file_format: str = "parquet", **properties: int | str) -> Table:
    table = create(storage, file_format=file_format, **properties)
    for day in DAYS:
        upsert(table, day)
    return table


def store(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://compaction-{request.node.name}")


def held_rows(table: Table) -> int:
    return sum(file.rows for file in table.snapshot_at().files.values())


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_minor_compaction_loses_no_history(
    request: pytest.FixtureRequest, file_format: str
) -> None:
    table = filled(store(request), file_format)
    before = {
        (version, moment): content(table, version=version, event_time=moment)
        for version in range(5)
        for moment in range(9)
    }
    result = compact(table, **MINOR)
    assert result.counts["files_read"] == 4
    assert len(table.snapshot_at().files) == 1
    assert content(table) == latest(DAYS)
    for (version, moment), was in before.items():
        assert content(table, version=version, event_time=moment) == was
        assert content(table, event_time=moment) == latest(DAYS, moment)
    assert check_table(table) == []
    assert compact(table, **MINOR).version is None  # there is nothing left to do


def test_files_of_different_partitions_groups_and_pending_segments_stay_apart(
    request: pytest.FixtureRequest,
) -> None:
    table = filled(store(request), group_rows=8)
    table.ingest(*rows([("gnu", 1, 1)]))
    pending = table.snapshot_at().pending
    groups = {file.group for file in table.snapshot_at().files.values()}
    compact(table, **MINOR)
    files = table.snapshot_at().files.values()
    assert {file.group for file in files} == groups
    assert [file.segments for file in files if not pending.isdisjoint(file.segments)] == [
        tuple(pending)
    ]
    table.metagen()
    assert content(table) == latest([*DAYS, [("gnu", 1, 1)]])
    assert check_table(table) == []


def test_a_major_compaction_drops_rows_that_no_readable_event_time_shows(
    request: pytest.FixtureRequest,
) -> None:
    table = filled(store(request))
    result = compact(table, **MAJOR)
    assert result.counts["rows_dropped"] > 0
    assert held_rows(table) == sum(map(len, DAYS)) - result.counts["rows_dropped"]
    for moment in (5, 6, 7, 100):
        assert content(table, event_time=moment) == latest(DAYS, moment)
    with pytest.raises(NotFoundError, match="is before 5, the oldest readable event time"):
        content(table, event_time=4)
    assert content(table, version=4, event_time=1) == latest(
        DAYS, 1
    )  # an older version keeps its own floor
    assert check_table(table) == []


def test_late_rows_below_the_floor_are_judged_as_before(request: pytest.FixtureRequest) -> None:
    table = filled(store(request))
    compact(table, **MAJOR)
    late: list[Row] = [("bow", 3, 22), ("ax", 4, 9), ("cup", 2, 31), ("dye", 4, 39), ("elk", 1, 49)]
    upsert(table, late)
    for moment in (5, 6, 7, 100):
        assert content(table, event_time=moment) == latest([*DAYS, late], moment)
    assert check_table(table) == []
    compact(table, floor=7)
    assert content(table) == latest([*DAYS, late])
    assert check_table(table) == []


def test_only_the_latest_delete_of_a_key_is_kept(request: pytest.FixtureRequest) -> None:
    table = create(store(request))
    for moment in range(1, 9):
        upsert(table, [("ax", moment, None), ("bow", moment, None if moment % 2 else moment)])
    compact(table, floor=100)
    assert content(table) == [("bow", 8, 8)]
    assert held_rows(table) == 2
    upsert(table, [("ax", 7, 1)])  # it came late: the delete at 8 still counts
    assert content(table) == [("bow", 8, 8)]
    assert check_table(table) == []


def test_storage_after_many_full_updates_is_that_of_a_fresh_copy(
    request: pytest.FixtureRequest,
) -> None:
    table = create(store(request), checkpoint_commits=4)
    keys = [f"k{number:03d}" for number in range(300)]
    for moment in range(1, 21):
        upsert(table, [(key, moment, moment) for key in keys])
    compact(table, floor=21)
    state = table.snapshot_at()
    assert (state.root.rows, state.root.events, len(state.files), len(state.segments)) == (
        300,
        0,
        1,
        1,
    )
    assert sum(run.entries for run in state.runs.values()) == 300
    assert not state.logs
    assert check_table(table) == []


def test_a_rewrite_that_loses_files_to_another_rewrites_the_other_files(
    request: pytest.FixtureRequest,
) -> None:
    table = filled(store(request), group_rows=8)
    rival = reopen(table.storage, "rival")

    def rewrite() -> None:
        compact(rival, **MINOR)
        upsert(rival, [("hat", 8, 1)])

    result = compact(replace(table, executor=Interrupted(after=rewrite)), **MAJOR)
    assert result.counts["rows_dropped"] > 0
    hats = result.counts["commits"]
    assert hats
    assert content(table) == latest([*DAYS, [("hat", 8, 1)]])
    assert content(table, event_time=5) == latest(DAYS, 5)
    assert check_table(table) == []


def test_upserts_go_on_during_a_rewrite_and_neither_repeats_its_work(
    request: pytest.FixtureRequest,
) -> None:
    table, calls = filled(store(request)), []
    more: list[Row] = [("ax", 9, 1), ("cup", 9, None), ("new", 9, 2)]

    def upsert_once() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            assert upsert(reopen(table.storage, "other"), more).counts["rows"] == 3

    compact(replace(table, executor=Interrupted(before=upsert_once)), **MAJOR)
    assert content(table) == latest([*DAYS, more])
    assert check_table(table) == []


def test_a_rewrite_of_many_files_lists_them_in_a_side_file(request: pytest.FixtureRequest) -> None:
    table = create(store(request), segment_rows=1)
    values: list[Row] = [(f"k{number}", 1, number) for number in range(300)]
    upsert(table, values)
    compact(table, **MINOR)
    assert table.log.read_commit(table.snapshot_at().version).actions.rewrite is not None
    assert len(table.snapshot_at().files) == 1
    assert content(table) == sorted(values)
    assert check_table(table) == []


def test_cold_partitions_are_compressed_harder_once(request: pytest.FixtureRequest) -> None:
    layout = TableLayout(keys=["sku"], delta="at", deletes="price IS NULL", partition_by=["price"])
    table = create_on(store(request), plan_spec(SCHEMA, layout))
    values: list[Row] = [(f"k{number:04d}", number, number // 1000) for number in range(3000)]
    for start in range(0, 3000, 500):
        upsert(table, values[start : start + 500])
    options = {"archive_after": 999}  # before the greatest, which is 2999
    assert compact(table, **options).counts["files_written"] == 3
    assert sorted((file.rows, file.codec) for file in table.snapshot_at().files.values()) == [
        (1000, ""),
        (1000, "zstd:19"),
        (1000, "zstd:19"),
    ]
    assert compact(table, **options).version is None
    assert content(table) == values
    assert check_table(table) == []


@pytest.mark.parametrize("only_if_due", [False, True])
@pytest.mark.parametrize("given, codec", [(None, "zstd:3"), ("zstd:22", "zstd:22")])
def test_cold_partitions_are_compressed_by_the_table_s_codec(
    request: pytest.FixtureRequest, given: str | None, codec: str, only_if_due: bool
) -> None:
    layout = TableLayout(
        keys=["sku"],
        delta="at",
        deletes="price IS NULL",
        partition_by=["price"],
        properties={"archive_codec": "zstd:3"},
    )
    table = create_on(store(request), plan_spec(SCHEMA, layout))
    upsert(table, [("a", 1, 1), ("b", 99, 2)])
    job = Compact(archive_after=50, archive_codec=given, only_if_due=only_if_due)
    assert job.run(table).version is not None
    assert sorted(file.codec for file in table.snapshot_at().files.values()) == ["", codec]


def test_an_impossible_compaction_names_the_reason() -> None:
    with pytest.raises(InvalidInputError, match="use one of minor, major"):
        Compact(mode="full")
    with pytest.raises(InvalidInputError, match="needs look_back, the span that stays readable"):
        Compact(mode="major")
    with pytest.raises(InvalidInputError, match="has no effect on a minor compaction"):
        Compact(look_back="30d")
    with pytest.raises(InvalidInputError, match="has no effect without archive_after"):
        Compact(archive_codec="zstd:19")


def test_a_look_back_counts_in_the_unit_of_the_delta(request: pytest.FixtureRequest) -> None:
    head = filled(store(request)).snapshot_at()
    assert plan_floor(head, 3, 0) == 4
    assert plan_floor(head, None, 0) is None
    with pytest.raises(
        InvalidInputError, match="not a number such as 1000, which the delta column 'at' needs"
    ):
        plan_floor(head, "30d", 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options, stride", [(MINOR, 19), (MAJOR, 17)], ids=["minor", "major"])
def test_a_failure_at_any_call_costs_nothing_but_a_rerun(
    options: dict[str, Any], stride: int, mode: Mode, request: pytest.FixtureRequest
) -> None:
    walk(
        options,
        mode,
        lambda name: open_storage(f"memory://compaction-{request.node.name}-{name}"),
        stride,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["before", "done_but_failed"])
def test_a_failure_at_every_second_call_costs_nothing_but_a_rerun(
    mode: Mode, request: pytest.FixtureRequest
) -> None:
    walk(
        MAJOR, mode, lambda name: open_storage(f"memory://compaction-{request.node.name}-{name}"), 2
    )


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("mode", ["after", "failed"])
def test_a_failure_at_any_call_on_s3(
    mode: Mode, s3_options: dict[str, str], request: pytest.FixtureRequest
) -> None:
    walk(
        MAJOR,
        mode,
        lambda name: open_storage(f"s3://lake/{request.node.name}-{name}", s3_options),
        23,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_at_any_call_on_local_files(mode: Mode, tmp_path: Path) -> None:
    walk(MAJOR, mode, lambda name: open_storage(str(tmp_path / name)), 41)


def walk(options: dict[str, Any], mode: Mode, fresh: Callable[[str], Storage], stride: int) -> None:
    begun = prepared(fresh("begun"))
    dry = FailingStore(copied(begun, fresh("dry")))
    compact(reopen(dry, "dry"), **options)
    for fail_at in range(1, len(dry.trace) + 1, stride):
        storage = copied(begun, fresh(str(fail_at)))
        with suppress(Crash, StorageError, CommitUnknownError, ConflictError):
            compact(reopen(FailingStore(storage, fail_at, mode), "first"), **options)
        table = reopen(storage, "reader")
        where = (mode, fail_at, dry.trace[fail_at - 1])
        assert content(table) == latest(DAYS), where
        assert check_table(table) == [], where
        upsert(reopen(storage, "between"), [("late", 3, 1)])
        compact(reopen(storage, "second"), **options)
        for moment in (5, 6, 100):
            assert content(table, event_time=moment) == latest([*DAYS, [("late", 3, 1)]], moment), (
                where
            )
        assert check_table(table) == [], where


def prepared(storage: Storage) -> Storage:
    table = create(storage, checkpoint_commits=2, segment_rows=3)
    for number, day in enumerate(DAYS):
        reopen(storage, f"day-{number}").ingest(*rows(day), metadata="inline")
    assert table.snapshot_at().version == len(DAYS)
    return storage


class NoCheckpoints(MemoryStorage):
    """A name that leads through a link, as a store in a folder returns it."""

    closed = False

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if self.closed and path.startswith(layout.CHECKPOINTS):
            raise InvalidInputError(f"{path} leads through a symbolic link")
        return super().put_if_absent(path, data)


def test_a_compaction_succeeds_though_its_checkpoint_fails() -> None:
    storage = NoCheckpoints()
    table = filled(storage, checkpoint_commits=1000)
    storage.closed = True
    errors: list[Exception] = []
    watched = replace(table, log=replace(table.log, on_derived_failure=errors.append))
    assert compact(watched, **MINOR).version == table.snapshot_at().version
    assert [type(error) for error in errors] == [InvalidInputError]
    assert content(table) == latest(DAYS)
