"""What only a store in a folder has to keep."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.storage import open_storage
from opal_lake.storage.local import LocalStorage
from opal_lake.storage.local_publish import HIDDEN


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path / "table"))


def test_files_below_an_outward_symlink_are_out_of_reach(store: LocalStorage, tmp_path: Path) -> None:
    store.put_if_absent("a/x", b"1")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "f").write_text("secret")
    (store.root / "link").symlink_to(tmp_path / "secret")
    (store.root / "a" / "file-link").symlink_to(tmp_path / "secret" / "f")
    for path in ("link/f", "a/file-link"):
        for call in (
            lambda path=path: store.get(path),
            lambda path=path: store.put_if_absent(path, b""),
            lambda path=path: store.delete([path]),
        ):
            with pytest.raises(InvalidInputError, match="symbolic link"):
                call()
    with pytest.raises(InvalidInputError, match="symbolic link"):
        store.list("link/")
    assert [entry.path for entry in store.list("")] == ["a/x"]
    assert (tmp_path / "secret" / "f").read_text() == "secret"


def test_the_root_itself_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "table").symlink_to(tmp_path / "disk")
    store = open_storage(str(tmp_path / "table"))
    store.put_if_absent("a/x", b"1")
    assert store.uri == str(tmp_path / "table")
    assert (tmp_path / "disk" / "a" / "x").read_bytes() == b"1"


def test_temporary_files_are_gone_after_a_put_and_never_listed(store: LocalStorage) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("a", b"2")
    hidden = store.root / HIDDEN
    assert list(hidden.iterdir()) == []
    (hidden / "left-over").write_bytes(b"part")
    assert [entry.path for entry in store.list("")] == ["a"]
    assert list(store.list(HIDDEN + "/")) == []
    lake = open_storage(str(store.root.parent))
    assert [entry.path for entry in lake.list("")] == ["table/a"]
    with pytest.raises(InvalidInputError, match="hidden"):
        store.get(f"{HIDDEN}/left-over")


def test_a_listing_reads_only_the_folders_and_stats_only_the_files_that_it_needs(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.root / "log"
    folder.mkdir(parents=True)
    for n in range(2000):
        (folder / f"{n:020d}.json").touch()
    (store.root / "other").mkdir()
    scanned: list[str] = []
    stats: list[str] = []
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(str(path)) or CountingScan(path, stats))
    listed = [entry.path[-9:] for entry in store.list("log/", f"log/{1996:020d}.json")]
    assert listed == ["1997.json", "1998.json", "1999.json"]
    assert scanned == [str(folder)]
    assert [name[-9:] for name in stats] == listed


SCANDIR = os.scandir


class CountingScan:
    """os.scandir, with entries that note when they are asked for their status."""

    def __init__(self, path: Path, stats: list[str]) -> None:
        self._entries = SCANDIR(path)
        self._stats = stats

    def __enter__(self) -> "CountingScan":
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def __iter__(self) -> Iterator["CountingEntry"]:
        return (CountingEntry(entry, self._stats) for entry in self._entries)


class CountingEntry:
    def __init__(self, entry: "os.DirEntry[str]", stats: list[str]) -> None:
        self.name = entry.name
        self.is_dir = entry.is_dir
        self.is_symlink = entry.is_symlink
        self._entry = entry
        self._stats = stats

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        self._stats.append(self.name)
        return self._entry.stat(follow_symlinks=follow_symlinks)


def test_a_file_cannot_be_a_folder_nor_a_folder_a_file(store: LocalStorage) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("f/b", b"1")
    with pytest.raises(InvalidInputError, match="is a file"):
        store.put_if_absent("a/b", b"2")
    with pytest.raises(InvalidInputError, match="is a folder"):
        store.put_if_absent("f", b"2")


def test_a_refusal_of_the_file_system_is_a_storage_error(store: LocalStorage) -> None:
    with pytest.raises(StorageError, match="too long"):
        store.put_if_absent("x" * 300, b"")
    with pytest.raises(StorageError, match="too long"):
        store.get("x" * 300)


def test_a_dead_writers_lock_makes_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opal_lake.storage.local_publish._LOCK_TRIES", 3)
    monkeypatch.setattr(os, "rename", _power_failure)
    monkeypatch.setattr(Path, "unlink", _power_failure)
    store = LocalStorage.open(str(tmp_path), {"hard_links": "false"})
    with pytest.raises(KeyboardInterrupt):
        store.put_if_absent("a", b"1")
    monkeypatch.undo()
    monkeypatch.setattr("opal_lake.storage.local_publish._LOCK_TRIES", 3)
    with pytest.raises(StorageError, match=r"lock-[0-9a-f]+.*remove the lock"):
        store.put_if_absent("a", b"2")
    assert list(store.list("")) == []
    for lock in (tmp_path / HIDDEN).glob("lock-*"):
        lock.unlink()
    assert store.put_if_absent("a", b"3")


def _power_failure(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_without_hard_links_the_store_finds_another_way_by_itself(store: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what Linux says on file systems without hard links

    monkeypatch.setattr(os, "link", refused)
    assert store.put_if_absent("a/b", b"1")
    assert not store.put_if_absent("a/b", b"2")
    assert store.get("a/b") == b"1"
    assert list((store.root / HIDDEN).iterdir()) == []
