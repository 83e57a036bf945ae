"""Rows by their keys, at the edges; random histories are in test_histories.py."""

from typing import Any

import pytest

from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.read.get import get_rows
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, reopen, rows


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://get-{request.node.name}")


@pytest.fixture
def shop(storage: Storage) -> Table:
    """Version 1: a and b; 2: a changes, b goes; 3: c is pending."""
    table = create(storage)
    table.ingest(*rows([("a", 1, 10), ("b", 1, 20)]), metadata="inline")
    table.ingest(*rows([("a", 5, 11), ("b", 5, None)]), metadata="inline")
    table.ingest(*rows([("c", 6, 30)]))
    return table


def prices(table: Table, *keys: str, **moment: Any) -> list[tuple[str, int]]:
    shown = table.get([{"sku": key} for key in keys], **moment).to_pylist()
    return [(row["sku"], row["price"]) for row in shown]


def test_rows_come_in_the_order_of_the_keys(shop: Table) -> None:
    shop.metagen()
    assert prices(shop, "c", "x", "a", "b", "c") == [("c", 30), ("a", 11)]
    assert prices(shop) == []
    assert shop.get([{"sku": "a"}], columns=["price"]).to_pylist() == [{"price": 11}]


def test_key_columns_are_not_read_from_files(shop: Table) -> None:
    """A hash of 128 bits shows that a text is the stored one."""
    assert shop.get([{"sku": key} for key in "bxa"], columns=["sku"], event_time=4).to_pylist() == [
        {"sku": "b"},
        {"sku": "a"},
    ]
    assert shop.get([], columns=["sku"]).to_pylist() == []


def test_keys_may_come_from_an_iterator_or_alone(shop: Table) -> None:
    assert shop.get({"sku": key} for key in "ab").num_rows == 1
    assert shop.get({"sku": "a"}).num_rows == 1  # type: ignore[arg-type]  # one key is meant
    with pytest.raises(InvalidInputError, match="columns='price' is a text; give a list"):
        shop.get([{"sku": "a"}], columns="price")


def test_rows_are_read_at_a_version_or_at_an_event_time(shop: Table) -> None:
    assert prices(shop, "a", "b", "c", version=1) == [("a", 10), ("b", 20)]
    assert prices(shop, "a", "b", "c", event_time=4) == [("a", 10), ("b", 20)]
    assert prices(shop, "a", "b", "c", event_time=0) == []
    assert prices(shop, "a", "b", "c", version=1, event_time=9) == [("a", 10), ("b", 20)]
    assert prices(shop, "a", "b", "c") == [("a", 11)]


def test_rows_are_found_after_rewrites(shop: Table, storage: Storage) -> None:
    compact(shop)
    assert prices(reopen(storage), "a", "b", "c") == [("a", 11)]


@pytest.mark.parametrize(
    "keys, words",
    [
        (
            [{"id": 1}],
            r"keys must be mappings with the key columns sku, in a list: \[\{'sku': \.\.\.\}\]",
        ),
        ([{"sku": "a", "at": 1}], "keys must be mappings"),
        ([{"SKU": "a"}], "keys must be mappings with .*; 'SKU' differs in case only"),
        ([{}], "keys must be mappings"),
        (["a"], "keys must be mappings"),
        (7, "keys must be mappings"),
        ([{"sku": 7}], "key column sku: 7 is not a valid STRING; give a value of type str"),
        (
            [{"sku": "\udcff"}],
            r"key column sku: '\\udcff' is not valid UTF-8, so no row has this key",
        ),
        ([{"sku": None}], "key column sku: None is not a valid STRING; give a value of type str"),
    ],
)
def test_keys_of_a_wrong_form_are_refused(shop: Table, keys: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        shop.get(keys)


def test_a_row_that_no_file_holds_raises_a_format_error(shop: Table) -> None:
    snapshot = shop.snapshot_at()
    snapshot.files.pop(next(path for path, file in snapshot.files.items() if file.rows == 2))
    with pytest.raises(
        FormatError, match="the key store names rows that no data file holds; run `opal check`"
    ):
        get_rows(snapshot, shop.cache, [{"sku": "a"}], 1, None)
