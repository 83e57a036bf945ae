"""The tasks of an erasure read what may hold the keys, and write large runs as several."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opal_lake.key_store.run import decode_run
from opal_lake.maintenance.erase_rows import (
    EraseRunTask,
    KeyTask,
    RowTask,
    erase_in_run,
    keys_in_file,
    rows_in_file,
    united,
)
from opal_lake.rule.outputs import slot_writer
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.failing_store import FailingStore
from tests.opal_lake import shop
from tests.opal_lake.shop import rows


def _table_of_three_files(file_format: str = "parquet") -> Table:
    table = shop.create(MemoryStorage(), file_format=file_format)
    for at, sku in enumerate(["ax", "bow", "cup"], 1):
        table.ingest(*rows([(sku, at, at * 10), (f"{sku}-2", at, at * 10 + 1)]), metadata="inline")
    return table


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize(
    "where, reads",
    [("price = 20", 2), ("sku = 'cup'", 2), ("price IS NULL", 0), ("price % 10 = 1", 6)],
)
def test_files_that_cannot_hold_the_keys_are_not_read(
    file_format: str, where: str, reads: int
) -> None:
    storage = FailingStore(_table_of_three_files(file_format).storage)
    table = shop.reopen(storage)
    planned = table.erase(where, dry_run=True)
    assert planned.counts["rows"] == reads // 2
    paths = [call.path for call in storage.trace if call.verb == "get"]
    assert sum(path.startswith("data/") for path in paths) == reads


def test_too_many_keys_prune_nothing_and_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opal_lake.maintenance.erase_rows.MAX_KEYS", 2)
    table = _table_of_three_files()
    base = table.snapshot_at()
    files = [*base.files.values()]
    task = KeyTask(storage=table.storage, spec=base.spec, where="price > 10")
    keys = united([keys_in_file(task, file, "a") for file in files], base.spec)
    assert (len(keys.hashes), keys.values) == (5, {})
    search = RowTask(storage=table.storage, spec=base.spec, where="price > 10", keys=keys)
    rows_of_files = [rows_in_file(search, file, "a") for file in files]
    assert [sum(map(len, segments.values())) for segments in rows_of_files] == [1, 2, 2]


def test_a_large_run_is_written_as_several() -> None:
    table = shop.create(MemoryStorage())
    names = [f"sku-{number}" for number in range(100)]
    given: list[Any] = [(name, 1, 1) for name in names]
    table.ingest(*rows(given), metadata="inline")
    base = table.snapshot_at()
    (run,) = base.runs.values()
    keys_task = KeyTask(storage=table.storage, spec=base.spec, where="sku = 'sku-7'")
    keys = united([keys_in_file(keys_task, file, "a") for file in base.files.values()], base.spec)
    writer = replace(slot_writer(base, 9, table.cache), runs=(run,), merged=())
    task = EraseRunTask(writer=writer, hashes=keys.hashes, slice_rows=10, piece_rows=30)
    erased = erase_in_run(task, run, "a")
    assert erased is not None
    assert (erased.replaced, erased.erased) == (run, 1)
    assert sum(made.entries for made in erased.made) == 99
    assert len(erased.made) == 3
    before = decode_run(table.storage.get(run.path), run.path)
    parts = [decode_run(table.storage.get(made.path), made.path) for made in erased.made]
    after = np.concatenate([part.low for part in parts])
    assert after.tolist() == [low for low in before.low.tolist() if low != keys.hashes["low"][0]]
    without = replace(task, hashes=np.array([(run.hash_low, 0)], keys.hashes.dtype))
    assert erase_in_run(without, run, "a") is None
