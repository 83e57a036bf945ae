"""Due maintenance: decided by the table's figures, explained, and done step by step."""

from collections.abc import Mapping
from typing import Any

import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.maintenance.due import (
    Due,
    plan_maintenance,
    policy_of,
    run_maintenance,
)
from opal_lake.operations.maintain import Maintain
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import SCHEMA, Row, content, create, latest, rows

DAY = 86_400_000_000
START = 1_700_000_000_000_000


def new_table(**properties: int | str) -> Table:
    spec = create(MemoryStorage(), **properties).snapshot_at().spec
    return create_on(MemoryStorage(), spec, ManualClock(at_us=START, step_us=1000), CountingIds())


def filled(batches: int, **properties: int | str) -> Table:
    table = new_table(**properties)
    for number in range(batches):
        table.ingest(*rows(batch(number)), metadata="inline")
    return table


def batch(number: int) -> list[Row]:
    return [("ax", number, number), (f"k{number}", number, 1)]


def due(table: Table, now_us: int = START, **given: Any) -> tuple[Due, ...]:
    snapshot = table.snapshot_at()
    return plan_maintenance(snapshot, policy_of(snapshot.spec, Maintain.of(given).policy), now_us)


def test_a_young_table_is_due_for_nothing() -> None:
    assert due(filled(3)) == ()
    assert due(new_table(zorder="sku", look_back=10)) == ()


def test_reason_for_compaction_counts_small_files_by_partition() -> None:
    table = filled(17)
    [step] = due(table)
    assert (step.operation, dict(step.arguments)) == (
        "compact",
        {"mode": "minor", "target_mb": 256},
    )
    assert step.why == "17 files below 192 MB in 1 partition, due from more than 16"
    assert due(table, small_files=17) == ()


def test_pending_files_are_left_alone() -> None:
    table = new_table(small_files=2)
    for number in range(9):
        table.ingest(*rows(batch(number)))
    assert due(table) == ()
    table.metagen()
    assert [step.operation for step in due(table)] == ["compact"]


def test_dead_rows_make_it_a_major_compaction_until_that_is_done() -> None:
    table = filled(12, look_back=3)
    [step] = due(table)
    assert step.arguments["mode"] == "major"
    assert step.why.startswith(
        "33% of the rows (8 of 24) are invisible at every event time of the last 3, due from 20%"
    )
    assert due(table, dead_share=40) == ()
    assert due(table, look_back="") == due(table, dead_share=0.4) == ()
    compact(table, look_back=step.arguments["look_back"])
    assert due(table) == ()
    assert content(table) == latest([batch(number) for number in range(12)])


def test_a_z_order_is_due_while_too_many_bytes_are_in_none() -> None:
    table = filled(2)
    [step] = due(table, zorder="sku,at")
    assert (step.operation, step.arguments["columns"]) == ("zorder", ["sku", "at"])
    assert step.why == "100% of the bytes (2 files) are not in Z-order by sku, at, due from 25%"
    assert due(table, zorder=["sku", "at"]) == (step,)
    with pytest.raises(InvalidInputError, match="no column 'nothing'"):
        due(table, zorder="nothing")


def test_retention_is_due_once_versions_are_older_than_the_window() -> None:
    table = filled(3)
    assert due(table, START + 6 * DAY) == ()
    [step] = due(table, START + 8 * DAY)
    assert (step.operation, dict(step.arguments), step.why) == (
        "retain",
        {"window": "7d", "grace": "1d"},
        "3 versions are older than 7d",
    )
    assert due(table, START + 8 * DAY, window="9d") == ()
    assert due(table, START + 8 * DAY, grace="9d") == (), "what a job of nine days began with stays"
    assert due(table, START + 8 * DAY, grace="12h")[0].arguments == {"window": "7d", "grace": "12h"}


def test_cold_partitions_are_compressed_once() -> None:
    spec = plan_spec(
        SCHEMA,
        TableLayout(
            keys=["sku"], delta="at", partition_by=["sku"], properties={"archive_after": 5}
        ),
    )
    table = create_on(MemoryStorage(), spec, ManualClock(at_us=START, step_us=1000), CountingIds())
    for number in (1, 10):
        table.ingest(rows(batch(number))[0], metadata="inline")
    [step] = due(table)
    assert (
        step.why
        == "1 file of partitions without a row of the last 5, not yet compressed by zstd:19"
    )
    assert dict(step.arguments) == {
        "mode": "minor",
        "target_mb": 256,
        "archive_after": "5",
        "archive_codec": "zstd:19",
    }
    compact(table, archive_after="5")
    assert due(table) == ()
    assert [step.operation for step in due(table, archive_codec="zstd:22")] == ["compact"]


def test_arguments_replace_the_properties() -> None:
    spec = new_table(window="3d", dead_share=50).snapshot_at().spec
    asked = Maintain(window="1d", zorder=["sku"], unclustered_share=0.5)
    policy = policy_of(spec, asked.policy)
    shares = [policy.spec.integer(name) for name in ("dead_share", "unclustered_share")]
    assert (policy.spec.word("window"), policy.zorder, shares) == ("1d", ["sku"], [50, 50])
    with pytest.raises(InvalidInputError, match="write a span of time"):
        policy_of(spec, {"window": "tomorrow"})


def done(operation: str) -> Any:
    def run(arguments: Mapping[str, Any]) -> JobResult:
        return JobResult(
            operation=operation,
            table="t",
            version=7,
            counts={"files": 3},
            notes=(f"by {sorted(arguments)}",),
        )

    return run


def failing(_: Mapping[str, Any]) -> JobResult:
    raise ConflictError("others were faster; run it again")


def test_steps_are_done_and_reported_together() -> None:
    table = filled(17, zorder="sku")
    result = run_maintenance(
        table,
        policy_of(table.snapshot_at().spec),
        {"compact": done("compact"), "zorder": done("zorder")},
    )
    assert (result.operation, result.version) == ("maintain", 7)
    assert dict(result.counts) == {"due": 2, "compact_files": 3, "zorder_files": 3}
    assert (
        result.notes[0]
        == "compact is due: 17 files below 192 MB in 1 partition, due from more than 16"
    )
    assert result.notes[-1].startswith("zorder: by ")


def test_a_dry_run_is_only_reported() -> None:
    table = filled(17, zorder="sku")
    policy = policy_of(table.snapshot_at().spec)
    result = run_maintenance(table, policy, {"compact": failing}, dry_run=True)
    assert (result.version, len(result.notes)) == (None, 2)


def test_retention_is_the_table_s_own_unless_it_is_left_out() -> None:
    table = filled(3)
    table.log.clock.at_us += 30 * DAY  # type: ignore[attr-defined]  # a ManualClock
    assert table.maintain(delete=False).notes == ("nothing is due",)
    result = table.maintain()
    assert (result.counts["retain_versions"], table.snapshot_at().root.oldest_version) == (3, 3)


def test_a_step_that_fails_is_named_and_hides_no_other() -> None:
    table = filled(17, zorder="sku")
    policy = policy_of(table.snapshot_at().spec)
    with pytest.raises(
        ConflictError, match="the step compact of the maintenance failed: others were faster"
    ) as caught:
        run_maintenance(table, policy, {"compact": failing, "zorder": done("zorder")})
    assert caught.value.__notes__ == ["the step zorder was done, as version 7"]

    def broken(_: Mapping[str, Any]) -> JobResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as other:
        run_maintenance(table, policy, {"compact": broken, "zorder": failing})
    assert other.value.__notes__[0] == "the step compact of the maintenance failed with this error"
    assert other.value.__notes__[1].startswith("the step zorder failed too")


def test_a_compaction_may_wait_until_it_is_due() -> None:
    table = create(
        MemoryStorage(), small_files=3, look_back="1", dead_share=1, archive_after="1"
    )  # the last three are not asked for
    for number in range(3):
        table.ingest(*rows([(f"k{number}", number, number)]), metadata="inline")
    waits = table.compact(only_if_due=True)
    assert (waits.version, waits.operation) == (None, "compact")
    assert waits.notes[0].startswith("not due: the table is within its limits, small_files=3")
    table.ingest(*rows([("k4", 4, 4)]), metadata="inline")
    done = table.compact(only_if_due=True)
    assert done.counts["files_read"] == 4
    assert "4 files below 192 MB in 1 partition, due from more than 3" in done.notes[0]
