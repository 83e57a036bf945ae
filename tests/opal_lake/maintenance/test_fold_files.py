"""Upserts join small files in passing: readers meet few, and no answer changes."""

from collections.abc import Iterator, Sequence

import pytest

from opal_lake.errors import ClockError, InvalidInputError, StorageError
from opal_lake.maintenance.fold_files import plan_folds
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, content, create, latest, rows


def upserts(count: int, keys: int = 7) -> list[list[Row]]:
    return [[(f"k{turn % keys}", turn, None if turn % 11 == 5 else turn)] for turn in range(count)]


def fill(table: Table, batches: Sequence[Sequence[Row]], metadata: str = "inline") -> None:
    for batch in batches:
        table.ingest(*rows(batch), metadata=metadata)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_upserts_leave_few_files_and_every_version_reads_as_it_did(file_format: str) -> None:
    table = create(MemoryStorage(), file_format=file_format, fold_files=4)
    batches = upserts(70)
    expected: dict[int, list[Row]] = {}
    for turn, batch in enumerate(batches):
        result = table.ingest(*rows(batch), metadata="inline")
        assert result.version is not None
        expected[result.version] = latest(batches[: turn + 1])
        assert content(table) == expected[result.version]
    head = table.snapshot_at()
    assert len(head.files) <= 3 * 4 + 4, (
        "four tiers of at most three, and what came since somebody looked"
    )
    assert len(head.segments) == 70
    for version in [*expected][::9]:
        assert content(table, version=version) == expected[version]
    assert content(table, event_time=33) == latest(batches, until=33)
    assert check_table(table) == []


def test_a_row_is_written_again_about_once_a_tier() -> None:
    table = create(MemoryStorage(), fold_files=4)
    fill(table, upserts(128))
    moved = sum(
        int(str(commit.result["counts"]["rows"]))
        for commit in table.commits()
        if commit.operation == "compact"
    )
    assert moved <= 128 * 3.5, "128 is between the third and the fourth power of four"


def test_no_file_is_folded_with_fold_files_0() -> None:
    table = create(MemoryStorage(), fold_files=0)
    fill(table, upserts(40))
    assert len(table.snapshot_at().files) == 40
    assert table.snapshot_at().version == 40


def test_pending_segments_stay_as_they_are() -> None:
    table = create(MemoryStorage(), fold_files=4)
    fill(table, upserts(9), "batch")
    pending = {path for path, file in table.snapshot_at().files.items()}
    fill(table, upserts(30))
    assert pending <= table.snapshot_at().files.keys()
    table.metagen()
    assert content(table) == latest([*upserts(9), *upserts(30)])
    assert check_table(table) == []


def test_large_files_are_left_to_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opal_lake.maintenance.fold_files.FOLDED_BYTES", 100)
    table = create(MemoryStorage())
    fill(table, upserts(20))
    assert plan_folds(table.snapshot_at(), 4) == []


class ListedStore(MemoryStorage):
    """Remembers what was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        self.listed.append(prefix)
        return super().list(prefix, start_after)


def test_a_writer_that_goes_on_lists_no_folder_as_those_grow_with_every_commit() -> None:
    storage = ListedStore()
    table = create(storage, fold_files=4)
    fill(table, upserts(2))
    storage.listed.clear()
    fill(table, upserts(40))
    assert storage.listed == []
    assert len(table.snapshot_at().files) < 20, "files were put together"


class FullStore(MemoryStorage):
    """Takes no claim of a compaction."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if path.startswith("_opal/claims/") and b'"compact"' in bytes(data):
            raise self.error("no room")
        return super().put_if_absent(path, data)


@pytest.mark.parametrize("error", [StorageError, ClockError, InvalidInputError, OSError])
def test_an_upsert_succeeds_though_folding_fails(error: type[Exception]) -> None:
    table = create(FullStore(error), fold_files=2)
    batches = upserts(12)
    fill(table, batches)
    assert content(table) == latest(batches)
    assert len(table.snapshot_at().files) == 12
