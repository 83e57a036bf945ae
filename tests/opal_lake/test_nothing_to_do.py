"""Jobs with nothing to do: no version, no number, and a result.

A repeat finds the result, until the window has passed.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.errors import InvalidInputError
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.metagen_job import commit_metagen
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore
from tests.opal_lake.shop import Row, content, create, rows
from tests.opal_lake.writer import prepare_metagen

DAY = 86_400_000_000
FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20)]
SECOND: list[Row] = [("ax", 2, 11)]

Job = Callable[[Table, str | None], JobResult]


def metagen(table: Table, token: str | None) -> JobResult:
    return table.metagen(token=token)


def same_properties(table: Table, token: str | None) -> JobResult:
    return table.set_properties({"window": "3d"}, token=token)


@pytest.fixture
def clock() -> ManualClock:
    """One for the store and for who writes to it."""
    return ManualClock(step_us=1)


@pytest.fixture
def table(clock: ManualClock) -> Table:
    """All rows are visible."""
    storage = MemoryStorage(clock=clock)
    created = create_on(storage, create(MemoryStorage(), window="3d").snapshot_at().spec, clock)
    created.ingest(*rows(FIRST))
    created.metagen()
    return created


def paths(table: Table) -> set[str]:
    return {stored.path for stored in table.storage.list("")}


@pytest.mark.parametrize("job", [metagen, same_properties])
def test_operation_with_nothing_to_do_commits_no_version_and_claims_no_number(
    table: Table, job: Job
) -> None:
    before = paths(table)
    assert not job(table, None).repeated
    assert paths(table) == before
    job(table, "t")
    assert paths(table) == before | {layout.result_path("t")}


def test_a_metagen_names_the_version_at_which_all_is_visible(table: Table) -> None:
    result = table.metagen()
    assert (result.version, result.counts["rows"], result.repeated) == (2, 0, False)
    table.set_properties({"window": "4d"})
    assert table.metagen(token="t").version == 3
    assert content(table, version=3) == sorted(FIRST)


@pytest.mark.parametrize("job", [metagen, same_properties])
def test_a_repeat_returns_the_first_result_after_later_commits(table: Table, job: Job) -> None:
    first = job(table, "t")
    table.ingest(*rows(SECOND))
    again = job(table, "t")
    assert again.repeated
    assert (again.version, dict(again.counts)) == (first.version, dict(first.counts))
    with pytest.raises(InvalidInputError, match=f"token 't' was used by a {first.operation}"):
        table.retain(token="t")


def test_metagen_that_lost_all_rows_to_another_stores_a_result(
    table: Table,
) -> None:
    table.ingest(*rows(SECOND))
    first, second = prepare_metagen(table), prepare_metagen(table)
    won = commit_metagen(table.log, *first, "first")
    lost = commit_metagen(table.log, *second, "second")
    assert (won.version, lost.version, lost.counts["rows"], lost.repeated) == (4, 4, 0, False)
    assert table.log.head().version == 4
    assert table.metagen(token="second").repeated
    assert check_table(table) == []


def test_two_runs_with_one_token_return_one_result(table: Table) -> None:
    """One job saw nothing pending, the other the rows that came in between.

    The first result is final.
    """
    table.ingest(*rows(SECOND))
    late = prepare_metagen(table)
    table.metagen()
    idle = table.metagen(token="t")
    result = commit_metagen(table.log, *late, "t")
    assert result.repeated
    assert (result.version, dict(result.counts)) == (idle.version, dict(idle.counts))


def test_a_job_that_died_while_it_stored_its_result_runs_again(
    clock: ManualClock, table: Table
) -> None:
    dry = FailingStore(table.storage)
    table_on(dry, clock).metagen(token="dry")
    for fail_at in range(1, len(dry.trace) + 1):
        for mode in ("before", "after"):
            token = f"{mode}-{fail_at}"
            with suppress(Crash):  # a listing that is not read to its end does not die behind it
                table_on(FailingStore(table.storage, fail_at, mode), clock).metagen(token=token)
            assert table.metagen(token=token).version == 2
            assert table.metagen(token=token).repeated


def test_runs_without_work_leave_no_more_than_a_window_of_results(
    clock: ManualClock, table: Table
) -> None:
    """A table where nothing happens: its newest version never expires."""
    for day in range(20):
        clock.at_us += DAY
        table.metagen(token=f"metagen-{day}")
        table.set_properties({"window": "3d"}, token=f"set-{day}")
        table.retain(token=f"retain-{day}")
        assert len([*table.storage.list(layout.RESULTS)]) <= 3 * 4
    assert table.snapshot_at().version - table.snapshot_at().root.oldest_version <= 4
    assert content(table) == sorted(FIRST)
    assert check_table(table) == []
