"""The worker's folder of copies, and whole tables over it.

The contract of caches is in tests/contracts/test_run_cache.py.
"""

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opal_lake.errors import StorageError
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
def test_entry_used_longest_ago_is_evicted_first(
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


def test_entries_of_other_processes_count_when_the_folder_is_read_again(tmp_path: Path) -> None:
    folder = CacheFolder(path=tmp_path / "near", max_bytes=1000, look_again_share=1)
    write_file(100, folder, "a")
    (folder.path / "other").write_bytes(b"x" * 950)
    age(folder, "other", 100)
    write_file(100, folder, "b")
    assert names(folder) == ["a", "b", "other"]
    write_file(100, replace(folder, look_again_s=0.0), "c")
    assert names(folder) == ["a", "b", "c"]


# A 64th of the bytes is 100, and of the entries 3.
@pytest.mark.parametrize("size, max_entries", [(60, 10_000), (1, 192)])
def test_process_that_put_much_reads_the_folder_again(
    tmp_path: Path, size: int, max_entries: int
) -> None:
    folder = CacheFolder(path=tmp_path / "near", max_bytes=6400, max_entries=max_entries)
    write_file(size, folder, "a")
    (folder.path / "other").write_bytes(b"x" * (6400 - size))
    age(folder, "other", 100)
    write_file(size, folder, "b")
    assert "other" in names(folder)
    for name in "cdef":
        write_file(size, folder, name)
    assert "other" not in names(folder)


def test_full_disk_leaves_the_cache_without_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = CacheFolder(path=tmp_path / "near", max_bytes=6400)
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert folder.put("a", 60, lambda path: pytest.fail(f"{path} was written")) is None


def test_the_oldest_tenth_is_evicted_when_max_entries_is_reached_though_bytes_are_left(
    tmp_path: Path,
) -> None:
    folder = CacheFolder(path=tmp_path / "near", max_bytes=1 << 20, max_entries=20)
    for number in range(20):
        write_file(1, folder, f"{number:02}")
        age(folder, f"{number:02}", 1000 - number)
    assert len(names(folder)) == 20
    write_file(1, folder, "20")
    # A tenth of the 20 entries is gone
    assert names(folder) == [f"{number:02}" for number in range(2, 21)]


def test_large_entry_used_last_is_not_evicted_as_spare_room(
    tmp_path: Path,
) -> None:
    folder = folder_at(tmp_path, 1000)
    for number in range(5):
        write_file(10, folder, f"small {number}")
        age(folder, f"small {number}", 100 - number)
    write_file(900, folder, "large")
    write_file(60, folder, "new")
    assert names(folder) == ["large", "new"]


def test_puts_that_add_nothing_evict_nothing(tmp_path: Path) -> None:
    """Put the same run again, fail to write, and put a run larger than the disk."""
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


def test_folder_that_was_replaced_by_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 1000)
    write_file(10, folder, "a")

    def replace_folder(path: Path) -> None:
        shutil.rmtree(folder.path)
        folder.path.write_text("rubbish")
        path.write_bytes(b"x")

    for call in (lambda: folder.put("b", 10, replace_folder), lambda: folder.find("a")):
        with pytest.raises(StorageError, match="near is not a folder"):
            call()


def test_failed_write_leaves_no_files(tmp_path: Path) -> None:
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


def test_two_puts_of_the_same_entry_leave_it_whole(tmp_path: Path) -> None:
    """An equal file replaces a file; a folder stays, and the second writer gets it.

    An empty folder gives way.
    """
    folder = folder_at(tmp_path, 1000)
    for write, name in ((write_file, "file"), (write_folder, "folder")):
        assert write(100, folder, name) == write(100, folder, name) == folder.path / name
    (folder.path / "empty").mkdir()
    assert write_folder(100, folder, "empty") == folder.path / "empty"
    assert sorted(os.listdir(folder.path / "empty")) == ["one", "two"]
    assert names(folder) == ["empty", "file", "folder"]


def test_readers_see_only_whole_entries_while_others_are_put_and_evicted(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 250)
    stop = threading.Event()
    halves: list[int] = []

    def read_entries() -> None:
        while not stop.is_set():
            for name in "abc":
                try:
                    descriptor = os.open(folder.path / name, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                inside = len(os.listdir(descriptor))
                current = _stat(folder.path / name) or os.stat("/")
                was_removed = not os.path.samestat(os.fstat(descriptor), current)
                os.close(descriptor)
                if inside != 2 and not was_removed:
                    halves.append(inside)

    watcher = threading.Thread(target=read_entries)
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


def test_parts_of_a_dead_process_are_removed_after_an_hour(tmp_path: Path) -> None:
    folder = CacheFolder(path=tmp_path / "near", max_bytes=1000, look_again_s=0.0)
    write_file(10, folder, "a")
    for name, seconds in ((".part-old", 4000), (".part-young", 3000)):
        (folder.path / name).mkdir()
        (folder.path / name / "entry").write_bytes(b"x" * 5000)
        age(folder, name, seconds)
    (folder.path / ".part-1-file").write_bytes(b"x")
    age(folder, ".part-1-file", 4000)
    write_file(10, folder, "b")
    assert names(folder) == [".part-young", "a", "b"]


def test_dropping_a_missing_entry_raises_nothing(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, 1000)
    folder.drop("a")
    write_folder(10, folder, "a")
    folder.drop("a")
    folder.drop("a")
    assert names(folder) == []
    assert folder.find("a") is None


def test_table_created_again_at_the_same_path_does_not_use_the_old_runs(tmp_path: Path) -> None:
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
