"""The stores that fail on purpose do it where they say."""

import threading
from collections.abc import Callable

import pytest

from opal_lake.errors import StorageError
from opal_lake.storage.memory import MemoryStorage
from tests.kit.failing_store import Call, Crash, FailingStore, Mode, StallingStore


def work(store: FailingStore) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("b", b"2")
    store.get("a")
    list(store.list(""))
    store.delete(["a", "b"])


def paths(store: MemoryStorage) -> list[str]:
    return [entry.path for entry in store.list("")]


def test_a_dry_run_traces_every_call() -> None:
    store = FailingStore(MemoryStorage())
    work(store)
    assert [f"{call.verb} {call.path}" for call in store.trace] == [
        "put_if_absent a",
        "put_if_absent b",
        "get a",
        "list ",
        "delete a",
        "delete b",
    ]
    assert store.trace[0] == Call(verb="put_if_absent", path="a")


@pytest.mark.parametrize(
    "mode,fail_at,left",
    [
        ("before", 1, []),
        ("before", 2, ["a"]),
        ("after", 2, ["a", "b"]),
        ("before", 5, ["a", "b"]),
        ("after", 5, ["b"]),
        ("before", 6, ["b"]),
        ("after", 6, []),
    ],
)
def test_a_crash_leaves_exactly_the_effects_before_it(
    mode: Mode, fail_at: int, left: list[str]
) -> None:
    inner = MemoryStorage()
    with pytest.raises(Crash):
        work(FailingStore(inner, fail_at, mode))
    assert paths(inner) == left


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("fail_at", range(1, 7))
def test_every_call_can_be_the_last(mode: Mode, fail_at: int) -> None:
    store = FailingStore(MemoryStorage(), fail_at, mode)
    with pytest.raises(Crash):
        work(store)
    assert len(store.trace) == fail_at


def test_a_dead_process_does_nothing_more() -> None:
    inner = MemoryStorage()
    store = FailingStore(inner, 1, "after")
    with pytest.raises(Crash):
        store.put_if_absent("a", b"1")
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.put_if_absent("b", b""),
        lambda: store.delete(["a"]),
        lambda: store.list(""),
    ]
    for call in calls:
        with pytest.raises(Crash):
            call()
    assert paths(inner) == ["a"]


@pytest.mark.parametrize("mode,left", [("failed", []), ("done_but_failed", ["a"])])
def test_a_failure_is_reported_once_and_the_process_lives_on(mode: Mode, left: list[str]) -> None:
    inner = MemoryStorage()
    store = FailingStore(inner, 1, mode)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"1")
    assert paths(inner) == left
    store.put_if_absent("b", b"2")
    assert paths(inner) == [*left, "b"]


@pytest.mark.parametrize("mode,error", [("after", Crash), ("done_but_failed", StorageError)])
def test_a_listing_fails_behind_its_first_entry(mode: Mode, error: type[BaseException]) -> None:
    inner = MemoryStorage()
    for path in "abc":
        inner.put_if_absent(path, b"")
    listing = FailingStore(inner, 1, mode).list("")
    assert next(listing).path == "a"
    with pytest.raises(error):
        next(listing)


def test_a_crash_is_not_swallowed_by_handlers_of_exceptions() -> None:
    assert not issubclass(Crash, Exception)


def test_a_stalled_put_goes_on_when_released() -> None:
    inner = MemoryStorage()
    store = StallingStore(inner, "log/1")
    outcome: list[bool] = []
    writer = threading.Thread(target=lambda: outcome.append(store.put_if_absent("log/1", b"late")))
    writer.start()
    store.wait_until_stalled()
    assert store.put_if_absent("data/x", b"")
    assert store.put_if_absent("log/1", b"quick")  # only the first one stalls
    store.release()
    writer.join()
    assert outcome == [False]
    assert inner.get("log/1") == b"quick"


def test_a_stall_that_never_comes_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="log/1"):
        StallingStore(MemoryStorage(), "log/1", timeout_s=0.01).wait_until_stalled()
