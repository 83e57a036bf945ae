"""Drop a table: all its files go, and no reader sees a part of it."""

from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import InvalidInputError, NotFoundError, StorageError
from opal_lake.retention.drop import drop_table
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import begin_with_rows, create_on, table_on
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_lake.retention.build import history
from tests.opal_lake.shop import LISTS_IN_FILES, content, copied, create, rows

MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def drop(storage: Storage, *, purge: bool = False) -> None:
    drop_table(table_on(storage).log, purge=purge)


def test_drop_leaves_nothing_and_the_path_is_free(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "lake" / "t"))
    create(storage).ingest(*rows([("ax", 1, 10)]), metadata="inline")
    result = drop_table(table_on(storage).log)
    assert result.counts["files"] > 3
    assert [*(tmp_path / "lake").iterdir()] == []
    with pytest.raises(NotFoundError, match="not an Opal table"):
        drop(storage)
    assert content(create(storage)) == []


def test_files_of_others_stay(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    create(storage)
    (tmp_path / "t" / "notes.txt").write_text("mine")
    result = drop_table(table_on(storage).log)
    assert "notes.txt" in result.notes[1]
    assert [path.name for path in (tmp_path / "t").rglob("*")] == ["notes.txt"]


def test_savepoints_hold_the_table() -> None:
    storage = MemoryStorage()
    table = create(storage)
    table.savepoint("month")
    with pytest.raises(InvalidInputError, match=r"savepoints: month \(0\)"):
        drop(storage)
    assert content(table_on(storage)) == []
    table.release("month")
    drop(storage)
    assert [*storage.list("")] == []


def test_purge_drops_a_table_with_savepoints_and_a_damaged_one() -> None:
    storage = MemoryStorage()
    create(storage).savepoint("month")
    drop(storage, purge=True)
    create(storage).ingest(*rows([("ax", 1, 10)]))
    storage.delete([layout.commit_path(0)])
    with pytest.raises(InvalidInputError, match="PURGE"):
        drop(storage)
    drop(storage, purge=True)
    assert [*storage.list("")] == []


def test_unfinished_table_can_be_dropped() -> None:
    storage = MemoryStorage()
    begin_with_rows(storage, create(MemoryStorage()).snapshot_at().spec)
    drop(storage)
    assert [*storage.list("")] == []


@pytest.mark.slow_but_one
@pytest.mark.parametrize("mode", MODES)
def test_drop_killed_at_any_call_shows_the_whole_table_or_none(mode: Mode) -> None:
    begun = MemoryStorage()
    history(begun, 5, tuning=LISTS_IN_FILES)
    expected = content(table_on(begun))
    spec = table_on(begun).snapshot_at().spec
    dry = FailingStore(copied(begun, MemoryStorage()))
    drop(dry)
    for fail_at in range(1, len(dry.trace) + 1):
        storage = copied(begun, MemoryStorage())
        is_killed = False
        try:
            drop(FailingStore(storage, fail_at, mode))
        except (Crash, StorageError):
            is_killed = True
        try:
            assert content(table_on(storage)) == expected
        except NotFoundError:
            if is_killed and any(storage.list(layout.DROPPED)):
                with pytest.raises(InvalidInputError, match="drop"):
                    create_on(storage, spec)
        else:
            assert is_killed
        if any(storage.list("")):
            drop(storage)
        assert [*storage.list("")] == []
        create_on(storage, spec)
