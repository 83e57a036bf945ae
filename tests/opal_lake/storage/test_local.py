"""Guarantees of a store in a folder alone."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opal_lake.errors import InvalidInputError, StorageError
from opal_lake.storage import open_storage
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.storage.local.store import LocalStorage


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path / "table"))


def test_files_behind_a_symlink_are_refused(store: LocalStorage, tmp_path: Path) -> None:
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


def test_search_for_left_overs_makes_no_visible_file(store: LocalStorage) -> None:
    (store.root / HIDDEN).mkdir(parents=True)
    (store.root / HIDDEN / "left-over").write_bytes(b"part")
    os.utime(store.root / HIDDEN / "left-over", (0, 0))
    before_ns = (store.root / HIDDEN).stat().st_mtime_ns
    (left_over,) = store.left_overs()
    assert abs(left_over.age_us - (store.now_us() or 0)) < 60_000_000
    assert (store.root / HIDDEN).stat().st_mtime_ns == before_ns


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


def opener(opened: list[str]) -> Callable[..., int]:
    """Return an os.open that also records the paths."""
    was = os.open

    def noted(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append(str(path))
        return was(path, flags, mode)

    return noted


def test_nothing_is_written_behind_a_hidden_folder_that_is_a_link(
    store: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("a", b"1")
    hidden, elsewhere = store.root / HIDDEN, tmp_path / "elsewhere"
    elsewhere.mkdir()
    hidden.rmdir()
    for target in (elsewhere, tmp_path / "nothing"):
        hidden.symlink_to(target)
        opened: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opener(opened))
            assert store.now_us() is not None
        assert opened == [str(store.root)]
        before = elsewhere.stat().st_mtime_ns
        with pytest.raises(InvalidInputError, match="is not a folder, but a link"):
            store.put_if_absent("b", b"2")
        assert elsewhere.stat().st_mtime_ns == before
        hidden.unlink()
    assert not (tmp_path / "nothing").exists()
    assert store.put_if_absent("b", b"2")


def test_no_file_is_deleted_behind_a_turn_that_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file behind the link would be taken for that of a delayed writer."""
    monkeypatch.setattr("opal_lake.storage.local.publish._HELD_TOO_LONG_S", 0.01)
    store = LocalStorage.open(str(tmp_path / "table"), {"hard_links": "false"})
    store.put_if_absent("a", b"1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    turn = f"turn-{uuid.uuid5(uuid.NAMESPACE_URL, 'b').hex}"
    (store.root / HIDDEN / turn).symlink_to(elsewhere)
    with pytest.raises(InvalidInputError, match="is not a folder, but a link"):
        store.put_if_absent("b", b"2")
    assert (elsewhere / "precious").exists()
    assert [path.name for path in (store.root / HIDDEN).iterdir()] == [turn]


def test_listing_reads_only_needed_folders_and_files(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.root / "log"
    folder.mkdir(parents=True)
    for n in range(2000):
        (folder / f"{n:020d}.json").touch()
    (store.root / "other").mkdir()
    scanned: list[str] = []
    stats: list[str] = []
    monkeypatch.setattr(
        os, "scandir", lambda path: scanned.append(str(path)) or CountingScan(path, stats)
    )
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


def test_file_cannot_be_a_folder_nor_a_folder_a_file(store: LocalStorage) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("f/b", b"1")
    with pytest.raises(InvalidInputError, match="is a file"):
        store.put_if_absent("a/b", b"2")
    with pytest.raises(InvalidInputError, match="is a folder"):
        store.put_if_absent("f", b"2")


def test_refusal_of_the_file_system_is_a_storage_error(store: LocalStorage) -> None:
    with pytest.raises(StorageError, match="too long"):
        store.put_if_absent("x" * 300, b"")
    with pytest.raises(StorageError, match="too long"):
        store.get("x" * 300)


def test_store_works_without_hard_links(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(
            1, "Operation not permitted"
        )  # what Linux says on file systems without hard links

    monkeypatch.setattr(os, "link", refused)
    assert store.put_if_absent("a/b", b"1")
    assert not store.put_if_absent("a/b", b"2")
    assert store.get("a/b") == b"1"
    assert list((store.root / HIDDEN).iterdir()) == []
