"""Reads of some columns of a large Parquet file fetch these, and verify all bytes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from opal_lake.data import data_file
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import FormatError, StorageError
from opal_lake.storage import open_storage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on, table_on
from tests.kit.failing_store import FailingStore

ROWS = 50_000
COLUMNS = ["note", "at", "id"]  # not in the table's order


class CountedStore(FailingStore):
    """A store that counts the bytes of data files that were fetched."""

    fetched = 0

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(path, start, length)
        self.fetched += len(data) if path.startswith("data/") else 0
        return data


def wide_rows() -> pa.Table:
    """Texts that do not compress make 3 MB."""
    random = np.random.default_rng(7)
    ids = np.arange(ROWS)
    texts = [random.bytes(30).hex() for _ in ids]
    return pa.table(
        {
            "id": ids,
            "at": ids + 1,
            "text": texts,
            "note": pa.array([f"n{number % 9}" for number in range(ROWS)]),
        }
    )


def made(storage: Storage, file_format: str) -> Table:
    layout = TableLayout(
        keys=["id"],
        delta="at",
        tie_break=(),
        deletes=None,
        partition_by=(),
        file_format=file_format,
        properties={},
    )
    rows = wide_rows()
    table = create_on(storage, plan_spec(rows.schema, layout))
    table.ingest(rows, None)
    table.ingest(rows.slice(5, 1).set_column(1, "at", pa.array([10**6])), None)
    table.metagen()
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(open_storage(str(tmp_path)), "parquet")
    return tmp_path


def large_file(folder: Path) -> Path:
    return max((folder / "data").rglob("*.parquet"), key=lambda file: file.stat().st_size)


def fetched(folder: Path, **view: object) -> tuple[int, pa.Table]:
    store = CountedStore(open_storage(str(folder)))
    rows = table_on(store).read(**view)  # type: ignore[arg-type]  # the views are the test's own
    return store.fetched, rows


def test_read_of_some_columns_fetches_only_these(folder: Path) -> None:
    size = large_file(folder).stat().st_size
    whole, rows = fetched(folder)
    assert whole >= size > 1_500_000
    part, some = fetched(folder, columns=COLUMNS)
    assert part < size / 4
    assert some == rows.select(COLUMNS)
    assert fetched(folder, columns=["note"], event_time=ROWS)[1].num_rows == ROWS, (
        "the delta column is fetched where a moment needs it"
    )


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("keys", [[3], [3, 4, 30_000], [49_999]])
def test_look_up_fetches_the_row_groups_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[int], rewritten: bool
) -> None:
    """Row groups of a file that Z-order wrote have rows of several segments."""
    monkeypatch.setattr(data_file, "GROUP_ROWS", 5000)
    table = made(open_storage(str(tmp_path)), "parquet")
    if rewritten:
        table.zorder(["id"])
    size, store = large_file(tmp_path).stat().st_size, CountedStore(open_storage(str(tmp_path)))
    rows = table_on(store).get([{"id": key} for key in keys])
    assert rows["id"].to_pylist() == keys
    is_chosen = pc.is_in(table.read()["id"], pa.array(keys))
    assert rows.sort_by("id") == table.read().filter(is_chosen).sort_by("id")
    groups = {key // 5000 for key in keys}
    assert store.fetched < size * (len(groups) + 1.5) / 10


def test_look_up_fetches_the_pages_of_its_rows(folder: Path) -> None:
    """The footer, by which pages are found, is fetched once."""
    size, store = large_file(folder).stat().st_size, CountedStore(open_storage(str(folder)))
    table = table_on(store)
    assert (
        table.get([{"id": 30_000}])["text"].to_pylist()
        == wide_rows()["text"].to_pylist()[30_000:30_001]
    )
    first, store.fetched = store.fetched, 0
    assert (
        table.get([{"id": 31_000}])["note"].to_pylist()
        == wide_rows()["note"].to_pylist()[31_000:31_001]
    )
    assert store.fetched < first < size / 4


def test_changes_of_a_version_are_read_from_its_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "GROUP_ROWS", 5000)
    table = made(open_storage(str(tmp_path)), "parquet")
    table.ingest(
        wide_rows().slice(20_000, 3).set_column(1, "at", pa.array([10**6] * 3)),
        None,
        metadata="inline",
    )
    size, store = large_file(tmp_path).stat().st_size, CountedStore(open_storage(str(tmp_path)))
    changes = table_on(store).changes(table.snapshot_at().version)
    assert changes["id"].to_pylist() == [20_000] * 2 + [20_001] * 2 + [20_002] * 2
    assert store.fetched < size / 5


def test_orc_file_is_read_whole_and_gives_the_same_rows(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("orc")
    made(open_storage(str(other)), "orc")
    assert fetched(other, columns=COLUMNS)[1] == fetched(folder, columns=COLUMNS)[1]


def test_errors_name_damaged_and_missing_files(folder: Path) -> None:
    file = large_file(folder)
    data = file.read_bytes()
    for position in (40, len(data) - 20):  # a page of the first column, the footer
        file.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
        with pytest.raises(FormatError, match=file.name):
            fetched(folder, columns=["id"])
    file.write_bytes(data[:-1])
    with pytest.raises(FormatError, match=file.name):
        fetched(folder, columns=["id"])
    file.unlink()
    with pytest.raises(FormatError, match=f"{file.name} is missing"):
        fetched(folder, columns=["id"])


def test_failure_of_the_store_is_not_reported_as_damage(folder: Path) -> None:
    """The error of a read within a file is the store's own."""
    dry = CountedStore(open_storage(str(folder)))
    table_on(dry).read(columns=["id"])
    reads = [
        call_number
        for call_number, call in enumerate(dry.trace, start=1)
        if call.path.endswith(".parquet")
    ]
    for call_number in reads[:3]:
        with pytest.raises(StorageError):
            table_on(FailingStore(open_storage(str(folder)), call_number, "failed")).read(
                columns=["id"]
            )
