"""Inputs that an ingest refuses, and inputs that it must accept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from opal_lake import layout
from opal_lake.definition.table_spec import MAX_KEY_BYTES, TableLayout, plan_spec
from opal_lake.errors import (
    CommitUnknownError,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    StorageError,
)
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import create_on
from opal_lake.write.ingest_job import start_ingest
from opal_lake.write.ingest_task import MAX_TASKS, IngestTask, ingest_rows
from tests.opal_lake.shop import content, create, reopen, rows

SCHEMA = pa.schema([("k", pa.string()), ("d", pa.int64()), ("p", pa.string())])
NO_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
)


def keyed(**more: object) -> TableLayout:
    return TableLayout(keys=["k"], delta="d", **more)  # type: ignore[arg-type]  # the tests' own


def test_a_task_whose_files_cannot_be_numbered_is_refused() -> None:
    """Segments of another task would take the numbers of another job's."""
    spec = plan_spec(SCHEMA, keyed())
    task = IngestTask(storage=MemoryStorage(), spec=spec, number=2, task=MAX_TASKS, attempt="0")
    with pytest.raises(InvalidInputError, match="reduce the partitions of the rows"):
        ingest_rows(SCHEMA.empty_table().to_batches(), task)


@pytest.mark.parametrize("on_bad_rows", ["fail", "quarantine"])
def test_a_bad_row_whose_text_is_not_utf8_is_reported_and_put_aside(on_bad_rows: str) -> None:
    table = create_on(MemoryStorage(), plan_spec(SCHEMA, keyed()))
    bad = pa.table(
        {"k": pa.array([None], pa.string()), "d": pa.array([1], pa.int64()), "p": NO_UTF8}
    )
    if on_bad_rows == "fail":
        with pytest.raises(InvalidInputError, match="key column 'k' is null"):
            table.ingest(bad)
    else:
        assert table.ingest(bad, on_bad_rows="quarantine").counts["rejected"] == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_long_key_is_refused_whatever_arrow_calls_its_type(kind: pa.DataType) -> None:
    table = create_on(MemoryStorage(), plan_spec(SCHEMA, keyed()))
    long = pa.table(
        {
            "k": pa.array(["x" * (MAX_KEY_BYTES + 1)], kind),
            "d": pa.array([1], pa.int64()),
            "p": pa.array(["p"]),
        }
    )
    with pytest.raises(InvalidInputError, match="key is longer than"):
        table.ingest(long)


@pytest.mark.parametrize("value", ["日本" * 100, "\U0001f600" * 60, "a%" * 90, "", "."])
def test_partition_values_of_any_script_and_length_have_a_folder(
    value: str, tmp_path: object
) -> None:
    table = create_on(
        LocalStorage.open(f"{tmp_path}/t"), plan_spec(SCHEMA, keyed(partition_by=["p"]))
    )
    table.ingest(pa.table({"k": ["a", "b"], "d": [1, 1], "p": [value, "other"]}, schema=SCHEMA))
    table.metagen()
    assert sorted(table.read()["p"].to_pylist()) == sorted([value, "other"])


@pytest.mark.parametrize("column", ["k", "p"])
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_a_row_with_text_that_is_not_utf8_is_refused_or_put_aside(
    metadata: str, column: str
) -> None:
    table = create_on(MemoryStorage(), plan_spec(SCHEMA, keyed()))
    good = pa.table({"k": ["a", "b"], "d": [1, 1], "p": ["x", "y"]}, schema=SCHEMA)
    index = SCHEMA.get_field_index(column)
    bad = good.slice(0, 1).set_column(index, column, NO_UTF8)
    rows = pa.concat_tables([bad, good.slice(1)])
    with pytest.raises(InvalidInputError, match=f"column '{column}' holds text that is not UTF-8"):
        table.ingest(rows, metadata=metadata)
    counts = table.ingest(rows, metadata=metadata, on_bad_rows="quarantine").counts
    assert (counts["rows"], counts["rejected"]) == (1, 1)
    table.metagen()
    assert table.read().to_pylist() == [{"k": "b", "d": 1, "p": "y"}]


def test_an_empty_token_is_refused() -> None:
    """The token would be forgotten, and a rerun would apply the rows twice."""
    table = create(MemoryStorage())
    for job in (
        lambda: table.ingest(*rows([("a", 1, 1)]), token=""),
        lambda: table.metagen(token=""),
    ):
        with pytest.raises(InvalidInputError, match="empty text"):
            job()
    assert content(table) == []


def test_a_negative_batch_number_of_an_application_is_refused() -> None:
    table = create(MemoryStorage())
    with pytest.raises(InvalidInputError, match="count from 0"):
        start_ingest(table, Ingest([], application=("stream", -1)))


class OvertakenStore:
    """Another writer commits right after our first commit is put.

    Reads of that commit, and of our commit's voucher, time out.
    """

    def __init__(self, inner: MemoryStorage) -> None:
        self.inner = inner
        self.after_put: Callable[[], object] | None = None
        self.lost: set[str] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if path in self.lost:
            raise StorageError(f"{path}: timed out")
        return self.inner.get(path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        done = self.inner.put_if_absent(path, data)
        version = layout.commit_version(path)
        if self.after_put is not None and version is not None:
            work, self.after_put = self.after_put, None
            work()
            self.lost = {
                layout.commit_path(version + 1),
                layout.commit_path(layout.vouching_version(version) or 0),
            }
        return done


def test_a_commit_that_cannot_be_confirmed_is_not_reported_as_failed() -> None:
    """A caller who followed an advice to try again would apply the rows twice."""
    storage = OvertakenStore(MemoryStorage())
    create(storage.inner)
    table, other = (
        reopen(store, name) for store, name in ((storage, "one"), (storage.inner, "other"))
    )  # type: ignore[arg-type]  # a store
    storage.after_put = lambda: other.ingest(*rows([("b", 1, 2)]))
    with pytest.raises(CommitUnknownError, match="run again with the same token"):
        table.ingest(*rows([("a", 1, 1)]), token="t")
    storage.lost = set()
    assert table.ingest(*rows([("a", 1, 1)]), token="t").repeated
    other.metagen()
    assert content(other) == [("a", 1, 1), ("b", 1, 2)]
    assert other.snapshot_at().root.rows == 2


def test_error_names_the_missing_permission_of_a_writer() -> None:
    """An error about an unknown outcome would be wrong."""

    class ClosedStore(MemoryStorage):
        def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
            raise ReadOnlyError(f"{path!r} was not written: Permission denied")

    with pytest.raises(ReadOnlyError, match="was not written"):
        create(ClosedStore())


def test_a_commit_succeeds_though_its_checkpoint_cannot_be_written() -> None:
    """The table is committed; what is derived can be had again."""
    storage, upserts = MemoryStorage(), 20  # more than the logs that this process remembers
    table = create(storage, checkpoint_commits=2 * upserts + 1)
    for number in range(upserts):
        table.ingest(*rows([("a", number, 1)]))
        table.metagen()
    log = next(stored.path for stored in storage.list(layout.SEGMENT_LOGS))
    data = storage.get(log)
    storage.delete([log])
    storage.put_if_absent(log, data[:-1] + bytes([data[-1] ^ 1]))
    errors: list[Exception] = []
    watched = replace(table, log=replace(table.log, on_derived_failure=errors.append))
    assert watched.ingest(*rows([("b", 1, 1)])).version == 2 * upserts + 1
    assert {type(error) for error in errors} == {FormatError}  # the page of the log, the checkpoint


def test_the_delete_condition_is_evaluated_without_spark() -> None:
    table = create(MemoryStorage())
    given, _ = rows([("ax", 1, 10), ("bow", 1, None)])
    result = table.ingest(given.to_batches(), metadata="inline")
    assert result.counts["deletes"] == 1
    assert content(table) == [("ax", 1, 10)]


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda table: table.to_pandas(),
            (
                r"rows are of type pandas.DataFrame, "
                r".*pyarrow.Table.from_pandas\(rows, preserve_index=False\)"
            ),
        ),
        (
            lambda table: table.to_pylist(),
            r"rows are of type list of dict, .*pyarrow.Table.from_pylist\(rows, schema=...\)",
        ),
        (
            lambda table: table.to_batches()[0],
            r"rows are of type pyarrow.RecordBatch, .*write \[rows\]",
        ),
        (
            lambda table: table.to_pydict(),
            "rows are of type dict, but an ingest takes a pyarrow.Table",
        ),
        (lambda _: "a.csv", "rows are of type str, but an ingest takes a pyarrow.Table"),
        (lambda _: 5, "rows are of type int, but an ingest takes a pyarrow.Table"),
        (lambda _: [1], "rows are of type list of int, but an ingest takes a pyarrow.Table"),
    ],
)
def test_error_for_rows_of_another_type_says_how_to_convert_them(
    make: Callable[[pa.Table], Any], message: str
) -> None:
    table = create(MemoryStorage())
    given, deleted = rows([("ax", 1, 10)])
    before = [entry.path for entry in table.storage.list("")]
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(make(given), deleted)
    assert [entry.path for entry in table.storage.list("")] == before


@pytest.mark.parametrize(
    "make, deleted, message",
    [
        (lambda given: given, [True], "deleted has 1 value for 2 rows"),
        (lambda given: given, pa.array([1, 0]), "deleted holds BIGINT values; give a list or"),
        (lambda given: given, True, "deleted, of type bool, does not hold booleans; give"),
        (lambda given: given, [True, "no"], "deleted, of type list, does not hold booleans; give"),
        (
            lambda given: given.append_column("price", given["price"]),
            None,
            "the rows have 2 columns 'price'; keep one",
        ),
        (
            lambda given: [*given.to_batches(), *given.select(["sku", "at"]).to_batches()],
            None,
            "batch 2 of the rows has other columns than batch 1: 'sku', 'at' after",
        ),
        (
            lambda given: [
                *given.to_batches(),
                *given.set_column(2, "price", given["price"].cast("int64")).to_batches(),
            ],
            None,
            "batch 2 of the rows .*: 'price' is BIGINT after INT; give all batches the same",
        ),
    ],
)
@pytest.mark.parametrize("metadata", ["batch", "inline"])
def test_inconsistent_rows_are_refused_before_anything_is_written(
    metadata: str, make: Callable[[pa.Table], Any], deleted: Any, message: str
) -> None:
    table = create(MemoryStorage())
    given, _ = rows([("ax", 1, 10), ("bow", 1, None)])
    before = [entry.path for entry in table.storage.list("")]
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(make(given), deleted, metadata=metadata, on_new_columns="add")
    assert [entry.path for entry in table.storage.list("")] == before


def test_rows_may_be_marked_by_a_column_of_arrow() -> None:
    table = create(MemoryStorage())
    given, _ = rows([("ax", 1, 10), ("bow", 1, 20)])
    table.ingest(given, pc.equal(given["sku"], "ax"), metadata="inline")
    assert content(table) == [("bow", 1, 20)]


@pytest.mark.parametrize("on_new_columns", ["fail", "add", "ignore"])
def test_a_name_that_differs_in_case_only_is_a_column_of_the_table(on_new_columns: str) -> None:
    table = create(MemoryStorage())
    given, _ = rows([("ax", 1, 10)])
    both = given.append_column("Price", given["price"])
    message = "the rows have more than one column 'Price'"
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(both, on_new_columns=on_new_columns)
    table.ingest(both.drop_columns("price"), metadata="inline", on_new_columns=on_new_columns)
    assert content(table) == [("ax", 1, 10)]
    assert table.read().column_names == given.column_names


def test_rows_may_come_in_batches_of_any_iterable() -> None:
    table = create(MemoryStorage())
    given, deleted = rows([("ax", 1, 10), ("bow", 1, 20)])
    table.ingest(iter(given.to_batches(max_chunksize=1)), deleted, metadata="inline")
    table.ingest(given.schema.empty_table().to_batches(), [], metadata="inline")
    assert content(table) == [("ax", 1, 10), ("bow", 1, 20)]
