"""The contract of a cache of runs: each form answers the same over each store."""

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import uuid
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opal_lake.data.segment import RunFile
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.key_store import run as run_module
from opal_lake.key_store.cache import near_runs
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns, near_form
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    greatest_of_equal,
    no_entries,
    sorted_entries,
)
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.s3 import S3Storage
from tests.contracts.run_caches import (
    SMALL_BLOCKS,
    Row,
    brute_force,
    cache_of,
    caches,
    drawn,
    entries_of,
    found_rows,
    near_files,
    probes_of,
    put_run,
    rows_of,
    size_on_disk,
    sliced,
    stored_entries,
)

EDGES = [0, 1, 7, 1 << 32, (1 << 63) - 1, 1 << 63, GREATEST_WORD - 1, GREATEST_WORD]
LATEST = (1 << 63) - 1  # as a delta's order word
TIMES = [-(1 << 63), -1, 0, 1, 5, (1 << 63) - 1]


# What is found


WORDS = st.sampled_from(EDGES)
TIE = st.sampled_from([(0, 0), (1, -(1 << 63)), (1, 0), (1, 3)])


@st.composite
def some_rows(draw: st.DrawFn, ties: int, most: int) -> list[Row]:
    count = draw(st.integers(0, most))
    rows: list[Row] = []
    for serial in range(count):
        tied = [value for _ in range(ties) for value in draw(TIE)]
        segment = draw(st.sampled_from([-(1 << 63), 0, 1, (1 << 63) - 1]))
        offset = draw(st.sampled_from([0, (1 << 31) - 1, serial]))
        rows.append(
            (
                draw(WORDS),
                draw(WORDS),
                draw(st.sampled_from(TIMES)),
                *tied,
                segment,
                offset,
                draw(st.booleans()),
            )
        )
    return rows


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), ties=st.integers(0, 2), block=st.sampled_from([1, 2, 3, 16]))
def test_every_cache_finds_the_entries_of_a_brute_force_search(
    backend: str,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    ties: int,
    block: int,
) -> None:
    stored = stored_entries(data.draw(some_rows(ties, 60)), ties)
    new = sorted_entries(entries_of(data.draw(some_rows(ties, 30)), ties))
    low, high = sorted([data.draw(WORDS), data.draw(WORDS)])
    folder, storage = tmp_path_factory.mktemp("near"), open_storage(f"memory://{uuid.uuid4().hex}")
    filter_from = data.draw(st.sampled_from([1, 1 << 19]))
    run = put_run(storage, stored, block_entries=block, filter_from=filter_from)
    wanted, inside = (
        brute_force(stored, new),
        [row for row in rows_of(stored) if low <= row[0] <= high],
    )
    for way, cache in caches(storage, backend, run, stored, folder):
        assert found_rows(cache, run, new) == wanted, way
        assert sliced(cache, run, 7) == rows_of(stored), way
        assert sliced(cache, run, 3, low, high) == inside, way
    shutil.rmtree(folder)


@pytest.mark.parametrize("count", [0, 1, 8_191, 8_192, 8_193, 40_000])
def test_runs_of_every_size_over_every_store(
    storage: Storage, backend: str, count: int, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(count, count, max(1, count // 3)))
    run, new = put_run(storage, stored), probes_of(stored, 1, 500)
    expected = brute_force(stored, new)
    middle = int(stored.high[len(stored) // 2]) if count else 0
    inside = [row for row in rows_of(stored) if row[0] <= middle]
    for way, cache in caches(storage, backend, run, stored, tmp_path):
        assert found_rows(cache, run, new) == expected, way
        assert sliced(cache, run, 1_000, high=middle) == inside, way
        assert len(near_files(cache)) == (way == "kept" or (way == "brought" and count > 0))


def test_a_key_in_many_blocks_is_found_whole(local: Storage, backend: str, tmp_path: Path) -> None:
    """Find a key with 1,000 versions, whose first word is the fence of many blocks."""
    rows: list[Row] = [(5, 9, delta, 0, delta, False) for delta in range(1_000)]
    rows += [(5, 10, 0, 1, 1, False), (4, 0, 0, 1, 2, False), (6, 0, 0, 1, 3, True)]
    stored = stored_entries(rows, 0)
    new = sorted_entries(
        entries_of(
            [(5, 9, delta, 3, 0, False) for delta in (-1, 0, 64, 500, 999, 5_000)]
            + [(5, 10, 0, 3, 0, False)],
            0,
        )
    )
    run = put_run(local, stored, **SMALL_BLOCKS)
    for way, cache in caches(local, backend, run, stored, tmp_path):
        assert found_rows(cache, run, new) == brute_force(stored, new), way
        assert sliced(cache, run, 100, 5, 5) == [row for row in rows_of(stored) if row[0] == 5], way


def test_bounds_are_compared_as_words(local: Storage, backend: str, tmp_path: Path) -> None:
    """Compare words that are one as floats, which hold 53 bits."""
    bound = 1 << 62
    stored = stored_entries([(bound + step, 0, 0, 0, 0, False) for step in range(-40, 40)], 0)
    run = put_run(local, stored, **SMALL_BLOCKS)
    for way, cache in caches(local, backend, run, stored, tmp_path):
        below, above = sliced(cache, run, 10, high=bound - 1), sliced(cache, run, 10, low=bound)
        assert (len(below), len(above)) == (40, 40), way


def test_new_rows_need_no_order_but_that_of_the_first_word(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = stored_entries(
        [(1, low, delta, 0, 0, False) for low in (3, 5, 9) for delta in range(4)], 0
    )
    new = entries_of([(1, low, 2, 1, 0, False) for low in (9, 3, 5, 3)], 0)
    run = put_run(local, stored)
    for way, cache in caches(local, backend, run, stored, tmp_path):
        assert found_rows(cache, run, new) == brute_force(stored, new), way


def test_several_runs_are_asked_each_for_its_own_range(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(3, 3_000, 900))
    thirds = [stored.take(slice(start, start + 1_000)) for start in range(0, 3_000, 1_000)]
    runs = [replace(put_run(local, part), greatest_delta=LATEST) for part in thirds]
    cache = cache_of(local, backend, tmp_path / "near")
    new = probes_of(stored, 4, 800)
    answers = [rows_of(entries) for entries in cache.neighbours(runs, new)]
    assert answers == [brute_force(part, new) for part in thirds]
    outside = new.take(slice(0, 0))
    assert cache.neighbours(runs, outside) == []


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), ties=st.integers(0, 1))
def test_nearest_entries_of_all_runs_are_found(
    backend: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ties: int
) -> None:
    """Spread keys and deltas over runs, some with a recorded delta that is too great."""
    folder, storage = tmp_path_factory.mktemp("near"), open_storage(f"memory://{uuid.uuid4().hex}")
    parts = [
        part for _ in range(4) if len(part := stored_entries(data.draw(some_rows(ties, 30)), ties))
    ]
    new = sorted_entries(entries_of(data.draw(some_rows(ties, 30)), ties))
    stored_runs = [put_run(storage, part) for part in parts]
    runs = [
        run if data.draw(st.integers(0, 3)) else replace(run, greatest_delta=LATEST)
        for run in stored_runs
    ]
    near, far = cache_of(storage, backend, folder), cache_of(storage, backend, folder, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_runs, "TINY_ENTRIES", 0)
        for run, part in zip(runs, parts, strict=True):
            near.keep(run, part)
    wanted = brute_force(sorted_entries(concat_entries([no_entries(ties), *parts])), new)
    known = {row for part in parts for row in brute_force(part, new)}
    for cache in (near, far):
        neighbours = {row for entries in cache.neighbours(runs, new) for row in rows_of(entries)}
        assert {*wanted} <= neighbours <= known
    shutil.rmtree(folder)


@pytest.mark.parametrize("oldest_first", [True, False])
def test_of_equal_deltas_in_two_runs_both_are_found(
    local: Storage, backend: str, oldest_first: bool, tmp_path: Path
) -> None:
    """The greater row of them is the one that a new row ends."""
    parts = [stored_entries([(7, 7, 10, segment, 0, False)], 0) for segment in (1, 2)]
    runs = [put_run(local, part) for part in (parts if oldest_first else parts[::-1])]
    neighbours = cache_of(local, backend, tmp_path).neighbours(
        runs, entries_of([(7, 7, 11, 3, 0, False)], 0)
    )
    assert {row for entries in neighbours for row in rows_of(entries)} == {
        row for part in parts for row in rows_of(part)
    }


def test_too_small_greatest_delta_of_a_run_is_an_error(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = stored_entries([(7, 7, 10, 1, 0, False)], 0)
    run = replace(put_run(local, stored), greatest_delta=9)
    with pytest.raises(FormatError, match="holds a delta of 10, the table says at most 9; "):
        cache_of(local, backend, tmp_path).neighbours(
            [run], entries_of([(7, 7, 11, 3, 0, False)], 0)
        )


@pytest.mark.parametrize("order", ["the oldest run first", "the newest run first"])
def test_a_run_is_not_probed_for_keys_with_a_later_version(
    local: Storage, backend: str, order: str, tmp_path: Path
) -> None:
    """Probe ten runs, each with the next version of all keys."""
    keys = [(number << 40, number) for number in range(3_000)]

    def version_of_all_keys(delta: int) -> Entries:
        return stored_entries([(*key, delta, 0, delta, False) for key in keys], 0)

    parts = [version_of_all_keys(delta) for delta in range(10)]
    runs = [put_run(local, part) for part in parts]
    for delta, probed in ((9, {9}), (6, {9, 8, 7, 6})):
        cache = cache_of(local, backend, tmp_path / f"near-{delta}")
        new = entries_of([(*key, delta, 1, 0, False) for key in keys], 0)
        neighbours = cache.neighbours(runs if order == "the oldest run first" else runs[::-1], new)
        assert {runs.index(run) for run in (*cache.opened, *cache.indexes)} == probed
        assert {row for entries in neighbours for row in rows_of(entries)} >= {
            row for part in parts[delta : delta + 2] for row in rows_of(part)
        }


# Near and far


class Counted:
    """A store that adds up what is read of it."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.read = 0

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.inner.get(path, start, length)
        self.read += len(data)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_a_small_batch_reads_little_of_a_far_run(
    local: Storage, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_runs, "FEW_BLOCKS", 0.25)
    monkeypatch.setattr(run_module, "HEAD_GUESS", 256)
    stored = greatest_of_equal(drawn(5, 20_000, 20_000))
    run = put_run(local, stored, **SMALL_BLOCKS)
    counted = Counted(local)
    cache = cache_of(counted, backend, tmp_path / "near")  # type: ignore[arg-type]  # the rest is the inner store's
    new = probes_of(stored, 6, 6)
    assert found_rows(cache, run, new) == brute_force(stored, new)
    assert counted.read < run.size / 10
    assert near_files(cache) == []
    new = probes_of(stored, 6, 2_000)
    assert found_rows(cache, run, new) == brute_force(stored, new)
    assert len(near_files(cache)) == 1


def test_many_keys_that_are_not_there_bring_no_run_near(
    local: Storage, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask for missing keys, which the filter answers without any block."""
    monkeypatch.setattr(near_runs, "FEW_BLOCKS", 0.25)
    stored = greatest_of_equal(drawn(5, 20_000, 20_000))
    run = put_run(local, stored, **SMALL_BLOCKS)
    counted = Counted(local)
    cache = cache_of(counted, backend, tmp_path / "near")  # type: ignore[arg-type]  # the rest is the inner store's
    new = drawn(77, 300, 300)
    assert found_rows(cache, run, new) == []
    assert near_files(cache) == []
    assert counted.read < run.size / 3


def test_what_was_brought_near_is_read_no_more(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(5, 5_000, 2_000))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    expected = brute_force(stored, new)
    assert found_rows(cache_of(local, backend, tmp_path / "near"), run, new) == expected
    local.delete([run.path])
    assert found_rows(cache_of(local, backend, tmp_path / "near"), run, new) == expected


def test_a_run_larger_than_the_cache_stays_far(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(5, 5_000, 2_000))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    cache = cache_of(local, backend, tmp_path / "near", max_bytes=100_000)
    cache.keep(run, stored)
    assert found_rows(cache, run, new) == brute_force(stored, new)
    assert sliced(cache, run, 1_000) == rows_of(stored)
    assert size_on_disk(cache) == 0


def test_a_cache_of_no_bytes_touches_no_folder(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(5, 500, 200))
    run = put_run(local, stored)
    cache = cache_of(local, backend, tmp_path / "near", max_bytes=0)
    cache.keep(run, stored)
    assert sliced(cache, run, 100) == rows_of(stored)
    assert not (tmp_path / "near").exists()


def test_eviction_keeps_the_bound_and_what_is_open(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    """Keep three of ten runs, while a reader of the first one goes on."""
    parts = [greatest_of_equal(drawn(seed, 3_000, 1_000)) for seed in range(10)]
    runs = [put_run(local, part) for part in parts]
    room = int(3.5 * near_form(backend).size_of(3_000, 1))
    cache = cache_of(local, backend, tmp_path / "near", max_bytes=room)
    cache.keep(runs[0], parts[0])
    reader = cache.slices(runs[0], 500)
    first = rows_of(next(reader))
    for run, part in zip(runs, parts, strict=True):
        new = probes_of(part, 1, 100)
        assert found_rows(cache, run, new) == brute_force(part, new)
        assert size_on_disk(cache) <= room
    assert 2 <= len(near_files(cache)) <= 4
    assert not [
        path
        for path in near_files(cache)
        if runs[0].path.split("/")[-1].removesuffix(".run") in path.name
    ]
    assert first + [row for part in reader for row in rows_of(part)] == rows_of(parts[0])
    other = cache_of(local, backend, tmp_path / "near", max_bytes=room)
    for run, part in zip(runs, parts, strict=True):
        for asked in (cache, other):
            new = probes_of(part, 2, 100)
            assert found_rows(asked, run, new) == brute_force(part, new)


def test_few_runs_are_open_at_once(
    local: Storage, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_runs, "OPEN_RUNS", 3)
    parts = [greatest_of_equal(drawn(seed, 50, 20)) for seed in range(12)]
    runs = [put_run(local, part) for part in parts]
    cache = cache_of(local, backend, tmp_path / "near")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(2):
        for run, part in zip(runs, parts, strict=True):
            assert found_rows(cache, run, part) == brute_force(part, part)
    assert (len(cache.opened), len(cache.indexes)) == (3, 3)
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 3


# Processes


def _found_elsewhere(
    cache: NearRuns, run: RunFile, new: Entries, barrier: Barrier | None = None
) -> list[Row]:
    if barrier is not None:
        barrier.wait(60)
    return found_rows(cache, run, new)


def _racer(
    parts: tuple[NearRuns, RunFile, Entries, Barrier, "multiprocessing.Queue[list[Row]]"],
) -> None:
    cache, run, new, barrier, answers = parts
    answers.put(_found_elsewhere(cache, run, new, barrier))


def test_another_process_finds_what_was_kept(local: Storage, backend: str, tmp_path: Path) -> None:
    stored = greatest_of_equal(drawn(5, 5_000, 2_000))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    cache = cache_of(local, backend, tmp_path / "near")
    cache.keep(run, stored)
    local.delete([run.path])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_found_elsewhere, (cache, run, new)) == brute_force(stored, new)
    assert found_rows(cache, run, new) == brute_force(stored, new)


def test_processes_that_bring_a_run_at_once_share_one_copy(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(5, 20_000, 9_000))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    cache = cache_of(local, backend, tmp_path / "near")
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(3), spawn.Queue()
    racers = [
        spawn.Process(target=_racer, args=((cache, run, new, barrier, answers),)) for _ in range(3)
    ]
    for racer in racers:
        racer.start()
    outcomes = [answers.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert outcomes == [brute_force(stored, new)] * 3
    assert len(near_files(cache)) == 1


def test_a_pickled_cache_is_the_processs_own(tmp_path: Path, backend: str) -> None:
    """Key a cache by the store with its options, as renewed credentials are another."""
    options = [{"aws_access_key_id": "a", "aws_secret_access_key": key} for key in ("old", "new")]
    old, renewed = (
        cache_of(S3Storage.open("s3://bucket/t", given), backend, tmp_path) for given in options
    )
    copy = pickle.loads(pickle.dumps(old))
    assert copy is pickle.loads(pickle.dumps(old))
    assert (copy.storage, copy.settings) == (old.storage, old.settings)
    assert pickle.loads(pickle.dumps(renewed)).storage == renewed.storage


# Settings


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="mapped, rocksdb"):
        CacheSettings(backend="redis")
    with pytest.raises(InvalidInputError, match="negative"):
        CacheSettings(max_bytes=-1)


REFUSING = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "rocksdict":
            raise ModuleNotFoundError("no rocksdict", name=name)
sys.meta_path.insert(0, Refuse())
from opal_lake.key_store.cache.near_runs import near_form
for _ in range(2):
    try:
        near_form("rocksdb")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_rocksdict_the_message_says_what_to_install() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", REFUSING],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(
        line.startswith("InvalidInputError") and "pip install 'opal-lake[rocksdb]'" in line
        for line in lines
    )
