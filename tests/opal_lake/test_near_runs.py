"""The worker's folder of copies, and whole tables over it. The contract of caches is in tests/contracts/test_run_cache.py."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opal_lake.errors import StorageError
from opal_lake.key_store.cache import folder as cache_folder
from opal_lake.key_store.cache.folder import CacheFolder
from opal_lake.storage.local.store import LocalStorage
from tests.kit.check import check_table
from tests.opal_lake.shop import content, create, rows

AGES = {"a": 300, "b": 200, "c": 100}


def folder_at(path: Path, max_bytes: int) -> CacheFolder:
    return CacheFolder(path=path / "near", max_bytes=max_bytes)


def write_file(size: int, folder: CacheFolder, name: str) -> Path | None:
    def write(path: Path) -> None:
        path.write_bytes(b"x" * size)

    return folder.put(name, size, write)


def write_folder(size: int, folder: CacheFolder, name: str) -> Path | None:
    def write(path: Path) -> None:
        path.mkdir()
        (path / "one").write_bytes(b"x" * (size // 2))
        (path / "two").write_bytes(b"x" * (size - size // 2))

    return folder.put(name, size, write)


def names(folder: CacheFolder) -> list[str]:
    return sorted(entry.name for entry in folder.path.iterdir())


def age(folder: CacheFolder, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.path / name, (then, then))


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_was_used_longest_ago_goes_first(
    write: Callable[[int, CacheFolder, str], Path | None], tmp_path: Path
) -> None:
    folder = folder_at(tmp_path, 350)
    for name, seconds in AGES.items():
        write(100, folder, name)
        age(folder, name, seconds)
    assert folder.find("a") == folder.path / "a"
    write(100, folder, "d")
    assert names(folder) == ["a", "c", "d"]
    write(340, folder, "e")
    assert names(folder) == ["e"]
    assert write(351, folder, "f") is None
    assert names(folder) == ["e"]


def test_what_others_put_counts_when_the_folder_is_looked_through_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "LOOK_AGAIN_SHARE", 1)
    folder = folder_at(tmp_path, 1000)
    write_file(100, folder, "a")
    (folder.path / "other").write_bytes(b"x" * 950)
    age(folder, "other", 100)
    write_file(100, folder, "b")
    assert names(folder) == ["a", "b", "other"]
    monkeypatch.setattr(cache_folder, "LOOK_AGAIN_S", 0.0)
    write_file(100, folder, "c")
    assert names(folder) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "size, most", [(60, 10_000), (1, 192)]
)  # a 64th of the bytes is 100; of the entries 3
def test_who_put_much_looks_through_the_folder_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    monkeypatch.setattr(cache_folder, "MOST_ENTRIES", most)
    folder = folder_at(tmp_path, 6400)
    write_file(size, folder, "a")
    (folder.path / "other").write_bytes(b"x" * (6400 - size))
    age(folder, "other", 100)
    write_file(size, folder, "b")
    assert "other" in names(folder)
    for name in "cdef":
        write_file(size, folder, name)
    assert "other" not in names(folder)


def test_of_very_many_the_oldest_go_whatever_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "MOST_ENTRIES", 20)
    folder = folder_at(tmp_path, 1 << 20)
    for number in range(20):
        write_file(1, folder, f"{number:02}")
        age(folder, f"{number:02}", 1000 - number)
    assert len(names(folder)) == 20
    write_file(1, folder, "20")
    assert names(folder) == [f"{number:02}" for number in range(2, 21)]


def test_a_large_entry_that_was_used_last_does_not_make_room_for_puts_to_come(
    tmp_path: Path,
) -> None:
    folder = folder_at(tmp_path, 1000)
    for number in range(5):
        write_file(10, folder, f"small {number}")
        age(folder, f"small {number}", 100 - number)
    write_file(900, folder, "large")
    write_file(60, folder, "new")
    assert names(folder) == ["large", "new"]


def test_what_was_not_added_counts_nothing(tmp_path: Path) -> None:
    """The same run again, failed writes, and runs larger than the disk: nothing is evicted for these."""
    folder = folder_at(tmp_path, 1000)
    write_file(100, folder, "a")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    for _ in range(20):
        write_file(100, folder, "a")
        folder.put("b", 100, full)
    write_file(700, folder, "c")
    assert names(folder) == ["a", "c"]
    endless = CacheFolder(path=folder.path, max_bytes=1 << 62)
    assert endless.put("d", 1 << 61, full) is None
    assert names(folder) == ["a", "c"]


def test_a_folder_that_turns_into_a_file_is_named(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 1000)
    write_file(10, folder, "a")

    def vandal(path: Path) -> None:
        shutil.rmtree(folder.path)
        folder.path.write_text("rubbish")
        path.write_bytes(b"x")

    for call in (lambda: folder.put("b", 10, vandal), lambda: folder.find("a")):
        with pytest.raises(StorageError, match="near is no folder"):
            call()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 1000)

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "no space left")

    assert folder.put("a", 10, full) is None
    assert names(folder) == []

    def other(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyError("the store's")

    with pytest.raises(KeyError):
        folder.put("a", 10, other)
    assert names(folder) == []


def test_of_two_that_put_the_same_the_entry_stays_whole(tmp_path: Path) -> None:
    """A file is replaced by its equal; a folder stays, and the second writer is given it; an empty one gives way."""
    folder = folder_at(tmp_path, 1000)
    for write, name in ((write_file, "file"), (write_folder, "folder")):
        assert write(100, folder, name) == write(100, folder, name) == folder.path / name
    (folder.path / "empty").mkdir()
    assert write_folder(100, folder, "empty") == folder.path / "empty"
    assert sorted(os.listdir(folder.path / "empty")) == ["one", "two"]
    assert names(folder) == ["empty", "file", "folder"]


def test_whoever_looks_while_entries_come_and_go_sees_whole_ones(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 250)
    stop = threading.Event()
    halves: list[int] = []

    def look() -> None:
        while not stop.is_set():
            for name in "abc":
                try:
                    descriptor = os.open(folder.path / name, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                inside = len(os.listdir(descriptor))
                gone = not os.path.samestat(
                    os.fstat(descriptor), _stat(folder.path / name) or os.stat("/")
                )
                os.close(descriptor)
                halves.extend([inside] if inside != 2 and not gone else [])

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(300):
        write_folder(100, folder, "abc"[number % 3])
    stop.set()
    watcher.join()
    assert halves == []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def test_parts_of_a_process_that_died_are_cleared_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "LOOK_AGAIN_S", 0.0)
    folder = folder_at(tmp_path, 1000)
    write_file(10, folder, "a")
    for name, seconds in ((".part-old", 4000), (".part-young", 3000)):
        (folder.path / name).mkdir()
        (folder.path / name / "entry").write_bytes(b"x" * 5000)
        age(folder, name, seconds)
    (folder.path / ".part-1-file").write_bytes(b"x")
    age(folder, ".part-1-file", 4000)
    write_file(10, folder, "b")
    assert names(folder) == [".part-young", "a", "b"]


def test_dropping_what_is_gone_is_no_error(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 1000)
    folder.drop("a")
    write_folder(10, folder, "a")
    folder.drop("a")
    folder.drop("a")
    assert names(folder) == []
    assert folder.find("a") is None


def test_a_table_made_anew_at_the_same_path_has_other_runs(tmp_path: Path) -> None:
    storage = LocalStorage.open(f"{tmp_path}/t")
    old = create(storage)
    old.ingest(*rows([("x", 5, 1)]))
    old.metagen()
    old.ingest(*rows([("x", 6, 1)]))
    old.metagen()
    shutil.rmtree(tmp_path / "t")
    new = create(storage)
    new.ingest(*rows([("y", 5, 1)]))
    new.metagen()
    old.ingest(*rows([("y", 7, 2)]))
    old.metagen()
    assert content(new) == [("y", 7, 2)]
    assert check_table(new) == []
