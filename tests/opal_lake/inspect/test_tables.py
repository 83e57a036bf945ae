"""The tables and folders below a folder of any store."""

import pytest

from opal_lake import layout
from opal_lake.inspect.tables import folders_of, is_table
from opal_lake.storage.memory import MemoryStorage
from tests.kit.failing_store import FailingStore

PATHS = [
    "a-b/_opal/log/0.json",
    "a/_opal/log/0.json",
    "a/data/1.parquet",
    "a/data/2.parquet",
    "notes.txt",
    "shop/orders/_opal/log/0.json",
    "shop/orders/data/1.parquet",
    "shop/users/_opal/checkpoints/9.json",
    "\u00fcber/x",
]


@pytest.fixture
def storage() -> MemoryStorage:
    memory = MemoryStorage()
    for path in PATHS:
        memory.put_if_absent(path, b"x")
    return memory


def test_folders_are_each_named_once(storage: MemoryStorage) -> None:
    assert sorted(folders_of(storage)) == ["a", "a-b", "shop", "\u00fcber"]
    assert [*folders_of(storage, "shop/")] == ["orders", "users"]
    assert [*folders_of(storage, "missing/")] == []


def test_tables_are_folders_with_a_log_or_a_checkpoint(storage: MemoryStorage) -> None:
    tables = [name for name in folders_of(storage) if is_table(storage, f"{name}/")]
    assert sorted(tables) == ["a", "a-b"]
    assert all(is_table(storage, f"shop/{name}/") for name in folders_of(storage, "shop/"))


def test_a_folder_costs_one_listing_however_many_files_it_has() -> None:
    memory = MemoryStorage()
    for number in range(500):
        memory.put_if_absent(f"t/{layout.DATA}{number}", b"x")
    store = FailingStore(memory)
    assert [*folders_of(store)] == ["t"]
    assert len(store.trace) <= 4
