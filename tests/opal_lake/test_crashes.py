"""A writer may die, or get a wrong answer, at every call to the store.

A rerun with the same tokens leads to the same table.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from opal_lake.errors import CommitUnknownError, ConflictError, StorageError
from opal_lake.storage import Storage, open_storage
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_lake import shop
from tests.opal_lake.shop import LISTS_IN_FILES, Row, content, copied, latest, rows

create = partial(shop.create, tuning=LISTS_IN_FILES)
reopen = partial(shop.reopen, tuning=LISTS_IN_FILES)

FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30), ("dye", 5, 40)]
SECOND: list[Row] = [("ax", 2, 11), ("bow", 3, None), ("cup", 0, 29), ("elk", 2, 50)]
THIRD: list[Row] = [("ax", 2, 12), ("fig", 2, 60)]
# Every second version has a checkpoint, and every second run is a merge, so that crashes meet
# these, too. Tiny segments make more than one file
PROPERTIES = {"checkpoint_commits": 2, "segment_rows": 3, "key_store_fan_in": 2}

Job = Callable[[Storage, str], None]


def ingest(storage: Storage, writer: str) -> None:
    table, deleted = rows(SECOND)
    reopen(storage, writer).ingest(table, deleted, token="ingest-2")


def metagen(storage: Storage, writer: str) -> None:
    reopen(storage, writer).metagen(token="metagen-2")


def inline(storage: Storage, writer: str) -> None:
    table, deleted = rows(SECOND)
    reopen(storage, writer).ingest(table, deleted, token="ingest-2", metadata="inline")


def prepared(storage: Storage, *, pending: bool) -> Storage:
    table = create(storage, **PROPERTIES)
    table.ingest(*rows(FIRST), token="ingest-1")
    table.metagen(token="metagen-1")
    if pending:
        ingest(storage, "before")
    return storage


def run_until_done(job: Job, store: FailingStore, storage: Storage) -> int:
    """Run a job on a store that fails once, then again as a scheduler would.

    Returns how often it had to be started.
    """
    for start, target in enumerate([store, storage, storage], 1):
        try:
            job(target, f"writer-{start}")
        except (Crash, StorageError, CommitUnknownError, ConflictError):
            continue
        return start
    raise AssertionError("the job did not come through on a sound store")


def walk(job: Job, fresh: Callable[[], Storage], mode: Mode, stride: int = 1) -> int:
    """Fail at each call in turn; how many there are."""
    begun = prepared(fresh(), pending=job is metagen)
    dry = FailingStore(copied(begun, fresh()))
    job(dry, "dry")
    calls = len(dry.trace)
    for fail_at in range(1, calls + 1, stride):
        storage = copied(begun, fresh())
        store = FailingStore(storage, fail_at, mode)
        run_until_done(job, store, storage)
        job(storage, "again")  # a third run changes nothing: the token is known
        where = (mode, fail_at, dry.trace[fail_at - 1])
        visible = [FIRST] if job is ingest else [FIRST, SECOND]
        table = reopen(storage, "reader")
        assert content(table) == latest(visible), where
        metagen(storage, "after")
        assert content(table) == latest([FIRST, SECOND]), where
        assert [commit.operation for commit in table.commits()].count("ingest") == 2, where
        for moment in range(7):
            assert content(table, event_time=moment) == latest([FIRST, SECOND], moment), (
                where,
                moment,
            )
        assert check_table(table) == [], where
    return calls


def discard(storage: Storage, writer: str) -> None:
    reopen(storage, writer).discard(token="ingest-2", job_token="discard-2")


def retry(storage: Storage, writer: str) -> None:
    table = reopen(storage, writer)
    table.ingest(*rows(THIRD), token="ingest-3", replaces=["ingest-2"])


def walk_withdrawal(job: Job, fresh: Callable[[], Storage], mode: Mode) -> int:
    """Fail at each call of a job that withdraws rows, in turn; return their number."""
    begun = prepared(fresh(), pending=True)
    dry = FailingStore(copied(begun, fresh()))
    job(dry, "dry")
    expected = [FIRST] if job is discard else [FIRST, THIRD]
    for fail_at in range(1, len(dry.trace) + 1):
        storage = copied(begun, fresh())
        run_until_done(job, FailingStore(storage, fail_at, mode), storage)
        job(storage, "again")  # a third run changes nothing: the token is known
        where = (mode, fail_at, dry.trace[fail_at - 1])
        table = reopen(storage, "reader")
        metagen(storage, "after")
        assert content(table) == latest(expected), where
        discards = [commit for commit in table.commits() if commit.actions.discarded]
        assert len(discards) == 1, where
        assert check_table(table) == [], where
    return len(dry.trace)


MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", [ingest, metagen, inline])
def test_a_failure_at_any_call_in_memory_costs_nothing_but_a_rerun(
    job: Job, mode: Mode, request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(10_000))
    calls = walk(job, lambda: open_storage(f"memory://{request.node.name}-{next(numbers)}"), mode)
    assert calls > 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", [discard, retry])
def test_a_failure_at_any_call_leaves_rows_pending_or_withdrawn(
    job: Job, mode: Mode, request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(10_000))
    name = request.node.name
    calls = walk_withdrawal(job, lambda: open_storage(f"memory://{name}-{next(numbers)}"), mode)
    assert calls > 5


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", [ingest, metagen, inline])
def test_a_failure_at_any_call_on_local_files(
    job: Job, mode: Mode, stride: int, tmp_path: Path
) -> None:
    numbers = iter(range(10_000))
    walk(job, lambda: open_storage(str(tmp_path / f"table-{next(numbers)}")), mode, stride)


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", [ingest, metagen, inline])
def test_a_failure_at_any_call_on_s3(
    job: Job, mode: Mode, s3_options: dict[str, str], request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(10_000))
    walk(
        job,
        lambda: open_storage(f"s3://lake/crash/{request.node.name}-{next(numbers)}", s3_options),
        mode,
        stride=13,
    )
