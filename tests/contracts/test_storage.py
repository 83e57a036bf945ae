"""The contract of a store: every backend keeps it in the same way."""

import json
import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.storage import Storage, StoredObject, open_storage
from tests.fixtures_s3 import put_objects

ODD_NAMES = [
    "sp ace",
    "per%20cent",
    "h#ash",
    "eq=1",
    "br[x]",
    "st*ar",
    "cu{a}",
    "q?m",
    "ünï-日本",
    "back\\slash",
    "pl+us",
    "co:lon",
    "am&p",
    "😀",
]
BAD_PATHS = [
    "",
    "/abs",
    "a//b",
    "a/",
    "../up",
    "a/../b",
    "a/..",
    ".",
    "a/./b",
    "new\nline",
    "nul\0",
    "lone\udc80",
]

Opener = Callable[[], Storage]


@pytest.fixture(
    params=["memory", "local", "local_without_links", pytest.param("s3", marks=pytest.mark.s3)]
)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Each call opens the same store again; it is empty at first."""
    name = uuid.uuid4().hex
    if request.param == "memory":
        return lambda: open_storage(f"memory://{name}")
    if request.param == "s3":
        options = request.getfixturevalue("s3_options")
        return lambda: open_storage(f"s3://lake/tables/{name}", options)
    links = {"hard_links": "false"} if request.param == "local_without_links" else {}
    return lambda: open_storage(str(tmp_path / "table"), links)


@pytest.fixture
def store(opener: Opener) -> Storage:
    return opener()


def paths_of(store: Storage, prefix: str = "", start_after: str = "") -> list[str]:
    return [entry.path for entry in store.list(prefix, start_after)]


def fill(store: Storage, paths: list[str]) -> None:
    for path in paths:
        assert store.put_if_absent(path, path.encode())


def test_get_returns_the_bytes_that_were_put(store: Storage) -> None:
    assert store.put_if_absent("a/b/c.bin", b"one")
    assert store.get("a/b/c.bin") == b"one"


def test_a_second_put_is_refused_and_changes_nothing(store: Storage) -> None:
    assert store.put_if_absent("a", b"one")
    assert not store.put_if_absent("a", b"two")
    assert store.get("a") == b"one"


def test_a_deleted_path_is_free_again(store: Storage) -> None:
    fill(store, ["a/x", "a/y"])
    store.delete(["a/x"])
    assert paths_of(store) == ["a/y"]
    assert store.put_if_absent("a/x", b"again")
    assert store.get("a/x") == b"again"


def test_an_absent_object_is_not_found_and_the_message_names_it(store: Storage) -> None:
    fill(store, ["folder/x"])
    for path in ("nowhere/at/all", "folder", "folder/x/below"):
        with pytest.raises(NotFoundError, match=path):
            store.get(path)


def test_deleting_a_missing_path_is_not_an_error(store: Storage) -> None:
    fill(store, ["a", "f/b"])
    store.delete(["a", "x", "f", "a/below", "y/z", "a"])
    store.delete([])
    assert paths_of(store) == ["f/b"]


def test_more_objects_than_one_page_or_batch_are_listed_and_deleted(
    store: Storage, request: pytest.FixtureRequest
) -> None:
    paths = [f"log/{n:020d}.json" for n in range(1203)]
    if store.uri.startswith("s3://"):
        put_objects(
            request.getfixturevalue("s3_options"), store.uri, dict.fromkeys(paths[3:], b"x")
        )
    with ThreadPoolExecutor(8) as pool:
        assert all(
            pool.map(
                lambda path: store.put_if_absent(path, b"x"),
                paths[:3] if store.uri.startswith("s3://") else paths,
            )
        )
    assert paths_of(store, "log/") == paths
    store.delete(iter(paths[1:]))
    assert paths_of(store) == paths[:1]


@pytest.mark.parametrize(
    "start,length",
    [
        (0, None),
        (0, 0),
        (0, 4),
        (3, 4),
        (3, None),
        (9, 100),
        (10, None),
        (10, 1),
        (99, 5),
        (99, None),
    ],
)
def test_a_range_is_a_slice(store: Storage, start: int, length: int | None) -> None:
    for size in (0, 1, 10):
        data = bytes(range(size))
        store.put_if_absent(f"r{size}", data)
        assert store.get(f"r{size}", start, length) == (
            data[start:] if length is None else data[start : start + length]
        )


@pytest.mark.parametrize(
    "start,length,expected",
    [(-3, None, b"hij"), (-3, 2, b"hi"), (-3, 9, b"hij"), (-99, 2, b"ab"), (-1, 0, b"")],
)
def test_a_negative_start_counts_from_the_end(
    store: Storage, start: int, length: int | None, expected: bytes
) -> None:
    store.put_if_absent("r", b"abcdefghij")
    store.put_if_absent("empty", b"")
    assert store.get("r", start, length) == expected
    assert store.get("empty", start, length) == b""


def test_a_range_of_an_absent_object_is_not_found(store: Storage) -> None:
    for start, length in ((0, 0), (5, None), (-4, 4)):
        with pytest.raises(NotFoundError):
            store.get("absent", start, length)


def test_a_negative_length_is_refused(store: Storage) -> None:
    store.put_if_absent("r", b"abc")
    with pytest.raises(InvalidInputError, match="-1"):
        store.get("r", 0, -1)


def test_a_memoryview_is_stored_as_its_bytes(store: Storage) -> None:
    words = memoryview(b"0123456789abcdef").cast("Q")
    store.put_if_absent("whole", words)
    store.put_if_absent("part", memoryview(b"0123456789")[2:5])
    buffer = bytearray(b"before")
    store.put_if_absent("copy", memoryview(buffer))
    buffer[:] = b"behind"
    assert (store.get("whole"), store.get("part"), store.get("copy")) == (
        b"0123456789abcdef",
        b"234",
        b"before",
    )


def test_listing_is_in_code_point_order_across_folders(store: Storage) -> None:
    paths = [
        "a/b",
        "a-b",
        "a/c/d",
        "a.b",
        "a0",
        "b",
        "B/z",
        "a/b0",
        "é",
        "z/1",
        "a/b-/x",
        "\uffee",
        "😀/x",
        "_opal/log/1",
        "a/c-",
    ]
    fill(store, paths)
    assert paths_of(store) == sorted(paths)
    assert paths_of(store, "a") == sorted(path for path in paths if path.startswith("a"))


@pytest.mark.parametrize(
    "prefix",
    ["", "a", "a/", "a/b", "a/b/", "a/b/c", "b", "zz", "nofolder/", "a/b/c/d/e", "a-", "a/b-"],
)
def test_a_listing_has_the_paths_of_the_prefix_that_sort_after_start_after(
    store: Storage, prefix: str
) -> None:
    paths = sorted(["a/b/c", "a/b/c1", "a/b/d/e", "a/b-", "a-x", "a/bb", "b/c", "c", "a/c"])
    fill(store, paths)
    for start_after in ["", "a", "a/", "a/b/c", "a/b", "a-", "a/b/", "zzz", "a/b/c0", "0", "../x"]:
        assert paths_of(store, prefix, start_after) == [
            path for path in paths if path.startswith(prefix) and path > start_after
        ]


def test_a_listing_has_size_and_time_of_each_object(store: Storage) -> None:
    fill(store, ["a/12345"])
    (entry,) = store.list("a/")
    assert entry == StoredObject(path="a/12345", size=7, modified_us=entry.modified_us)
    assert entry.modified_us > 1_600_000_000_000_000


def test_a_listing_of_nothing_is_empty(store: Storage) -> None:
    assert paths_of(store) == []
    assert paths_of(store, "nothing/here") == []


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_names_like_any_other(store: Storage, name: str) -> None:
    paths = sorted([f"d/{name}/f", f"d/{name}0", f"d/x{name}"])
    fill(store, paths)
    assert paths_of(store, "d/") == paths
    assert paths_of(store, f"d/{name}/") == [f"d/{name}/f"]
    assert [store.get(path) for path in paths] == [path.encode() for path in paths]
    store.delete(paths)
    assert paths_of(store) == []


@pytest.mark.parametrize("path", BAD_PATHS)
def test_bad_paths_are_refused(store: Storage, path: str) -> None:
    for call in (
        lambda: store.get(path),
        lambda: store.put_if_absent(path, b""),
        lambda: store.delete([path]),
    ):
        with pytest.raises(InvalidInputError, match="path"):
            call()


@pytest.mark.parametrize("prefix", ["/", "/abs", "../", "a/../b", "a//", "./", "a\n"])
def test_bad_prefixes_are_refused(store: Storage, prefix: str) -> None:
    with pytest.raises(InvalidInputError, match="prefix"):
        list(store.list(prefix))


def test_of_32_racing_threads_exactly_one_creates_the_object(store: Storage) -> None:
    barrier = threading.Barrier(32)

    def race(path: str, me: int) -> bool:
        barrier.wait()
        return store.put_if_absent(path, b"%d" % me * 1000)

    with ThreadPoolExecutor(32) as pool:
        for n in range(5):
            path = f"race/{n}"
            created = list(pool.map(race, [path] * 32, range(32)))
            assert created.count(True) == 1
            assert store.get(path) == b"%d" % created.index(True) * 1000


RACER = """
import json, sys
from opal_lake.storage import open_storage
store = open_storage(sys.argv[1], json.loads(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
data = sys.argv[3].encode() * 5000
print(json.dumps([n for n in range(10) if store.put_if_absent(f"race/{n}", data)]))
"""


@pytest.mark.parametrize(
    "kind", ["local", "local_without_links", pytest.param("s3", marks=pytest.mark.s3)]
)
def test_of_8_racing_processes_exactly_one_creates_each_object(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "s3":
        uri, options = f"s3://lake/{uuid.uuid4().hex}", request.getfixturevalue("s3_options")
    else:
        uri, options = str(tmp_path), {} if kind == "local" else {"hard_links": "false"}
    won = race_processes(uri, options)
    assert sorted(n for numbers in won.values() for n in numbers) == list(range(10))
    store = open_storage(uri, options)
    for me, numbers in won.items():
        assert all(store.get(f"race/{n}") == me.encode() * 5000 for n in numbers)


def race_processes(uri: str, options: dict[str, str]) -> dict[str, list[int]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:
        racers = {
            me: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RACER, uri, json.dumps(options), me],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for me in "abcdefgh"
        }
        assert [racer.stdout.readline() for racer in racers.values() if racer.stdout] == [
            "ready\n"
        ] * 8
        for racer in racers.values():
            assert racer.stdin
            racer.stdin.write("\n")
            racer.stdin.flush()
        return {me: json.loads(racer.communicate(timeout=120)[0]) for me, racer in racers.items()}


def test_no_reader_ever_sees_a_partly_written_object(store: Storage) -> None:
    whole = os.urandom(1 << 20) * 4
    stop = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            for entry in store.list("big/"):
                seen.append(entry.size)
                seen.append(len(store.get(entry.path)))

    with ThreadPoolExecutor(2) as pool:
        watchers = [pool.submit(watch) for _ in range(2)]
        for n in range(6):
            store.put_if_absent(f"big/{n}", whole)
        stop.set()
        for watcher in watchers:
            watcher.result()
    assert set(seen) <= {len(whole)}


def test_a_pickled_store_is_the_same_store(store: Storage) -> None:
    fill(store, ["before"])
    copy: Storage = pickle.loads(pickle.dumps(store))
    fill(copy, ["after"])
    assert copy.uri == store.uri
    assert paths_of(store) == ["after", "before"]
    assert paths_of(pickle.loads(pickle.dumps(copy))) == ["after", "before"]


def test_a_store_opened_again_has_the_same_objects(opener: Opener) -> None:
    first, second = opener(), opener()
    fill(first, ["x"])
    assert second.get("x") == b"x"
    assert not first.uri.endswith("/")


def test_the_parent_s_listing_holds_the_store_s_objects(store: Storage) -> None:
    fill(store, ["_opal/x"])
    parent = store.parent()
    if parent is None:
        assert store.uri.startswith("memory://")
        return
    name = store.uri.rpartition("/")[2]
    assert [entry.path for entry in parent.list(f"{name}/_opal/")] == [f"{name}/_opal/x"]


NAMES = st.text(st.sampled_from("ab-./0=% é😀"), min_size=1, max_size=3).map(
    lambda name: name.replace("/", "_").replace(".", "x")
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(
    lambda names: "/".join([*names[:-1], names[-1] + ".f"])
)  # no file is also a folder
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "list", "delete"]), PATHS, st.binary(max_size=8)),
    max_size=25,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, data=st.data())
def test_a_store_behaves_like_a_dictionary(
    store: Storage, steps: list[tuple[str, str, bytes]], data: st.DataObject
) -> None:
    store.delete(paths_of(store))
    model: dict[str, bytes] = {}
    for verb, path, content in steps:
        if verb == "put":
            assert store.put_if_absent(path, content) == (path not in model)
            model.setdefault(path, content)
        elif verb == "delete":
            store.delete([path])
            model.pop(path, None)
        elif verb == "list":
            prefix = path[: data.draw(st.integers(0, len(path)))]
            start_after = data.draw(st.one_of(st.just(""), PATHS))
            assert paths_of(store, prefix, start_after) == sorted(
                p for p in model if p.startswith(prefix) and p > start_after
            )
        elif path in model:
            assert store.get(path) == model[path]
        else:
            with pytest.raises(NotFoundError):
                store.get(path)


def test_now_is_by_the_clock_of_the_store_and_leaves_no_object_behind(
    store: Storage,
) -> None:
    """Compare times to about a second, as S3 reports them."""
    fill(store, ["a"])
    told_us = store.now_us()
    assert paths_of(store) == ["a"]
    if store.uri.startswith("memory://"):
        assert told_us is None
        return
    assert told_us is not None
    assert -2_000_000 < told_us - next(iter(store.list(""))).modified_us < 60_000_000
    assert (store.now_us() or 0) >= told_us
