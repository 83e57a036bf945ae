"""Tables that are created with their first rows: whole, or not there at all."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    TableExistsError,
)
from opal_lake.log.commit import Actions
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.result import JobResult
from opal_lake.retention.drop import drop_table
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import (
    Table,
    begin_with_rows,
    create_on,
    creation_with_rows,
    finish_without_rows,
    table_on,
)
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.second_reader.second_reader import UnreadableError, read_table

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = {1: "a", 2: "b"}
MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def spec_of(**properties: int | str) -> TableSpec:
    return plan_spec(SCHEMA, TableLayout(keys=["id"], delta="_commit", properties=properties))


def rows(names: dict[int, str]) -> pa.Table:
    return pa.table({"id": [*names], "name": [*names.values()]}, schema=SCHEMA)


def names_of(storage: Storage) -> dict[int, str]:
    return {row["id"]: row["name"] for row in table_on(storage).read().to_pylist()}


def create_with(storage: Storage, names: dict[int, str]) -> None:
    with creation_with_rows(storage, spec_of()) as table:
        table.insert(rows(names))


def test_table_does_not_exist_before_its_rows(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    table = begin_with_rows(storage, spec_of())
    for read in (table_on(storage).read, table_on(storage).describe, table_on(storage).history):
        with pytest.raises(NotFoundError, match="not an Opal table yet"):
            read()
    with pytest.raises(NotFoundError, match="not an Opal table yet"):
        table_on(storage).upsert(rows(ROWS))
    with pytest.raises(NotFoundError, match="not an Opal table yet"):
        Table.open(str(tmp_path / "t"))
    with pytest.raises(UnreadableError):
        read_table(tmp_path / "t")
    table.insert(rows(ROWS))
    assert names_of(storage) == ROWS
    assert table_on(storage).check(all=True) == []
    assert read_table(tmp_path / "t").equals(table_on(storage).read())
    assert [commit.version for commit in table_on(storage).commits()] == [1, 0]


def test_table_without_rows_is_finished_by_an_empty_version() -> None:
    storage = MemoryStorage()
    finish_without_rows(begin_with_rows(storage, spec_of()))
    empty = table_on(storage).read()
    assert (empty.num_rows, empty.column_names) == (0, ["id", "name"])
    assert table_on(storage).check(all=True) == []


@pytest.mark.parametrize("is_begun_before", [True, False])
def test_of_two_creations_the_first_to_commit_counts(is_begun_before: bool) -> None:
    storage = MemoryStorage()
    first, second = (begin_with_rows(storage, spec_of()) for _ in range(2))
    if is_begun_before:
        second.log.head()
    first.insert(rows(ROWS))
    with pytest.raises(TableExistsError, match="already"):
        second.insert(rows({3: "c"}))
    with pytest.raises(TableExistsError, match="already"):
        finish_without_rows(second)
    with pytest.raises(TableExistsError, match="already"):
        create_on(storage, spec_of())
    with pytest.raises(TableExistsError, match="already"):
        begin_with_rows(storage, spec_of())
    assert names_of(storage) == ROWS


def test_unfinished_table_of_another_definition_is_refused() -> None:
    storage = MemoryStorage()
    begin_with_rows(storage, spec_of())
    with pytest.raises(InvalidInputError, match="another definition"):
        begin_with_rows(storage, spec_of(target_mb=7))
    with pytest.raises(TableExistsError, match=r"an unfinished table.*DROP TABLE it"):
        create_on(storage, spec_of())


def create_with_a_repeated_key(
    storage: Storage, meanwhile: Callable[[], Any] = lambda: None
) -> None:
    """Fail to create a table, after something else has happened to it."""
    with creation_with_rows(storage, spec_of()) as table:
        meanwhile()
        table.insert(pa.concat_tables([rows(ROWS), rows({1: "z"})]))


def test_rows_with_a_repeated_key_leave_no_table() -> None:
    storage = MemoryStorage()
    with pytest.raises(InvalidInputError, match="more than once") as raised:
        create_with_a_repeated_key(storage)
    assert not hasattr(raised.value, "__notes__")
    assert [*storage.list("")] == []
    create_on(storage, spec_of(target_mb=7))


def test_failed_creation_leaves_a_table_with_which_another_goes_on() -> None:
    storage = MemoryStorage()
    others: list[Table[pa.Table]] = []
    with pytest.raises(InvalidInputError, match="more than once") as raised:
        create_with_a_repeated_key(
            storage, lambda: others.append(begin_with_rows(storage, spec_of()))
        )
    assert "DROP TABLE it" in raised.value.__notes__[0]
    others[0].insert(rows(ROWS))
    assert names_of(storage) == ROWS
    assert table_on(storage).check(all=True) == []


def test_failed_creation_that_went_on_with_another_one_removes_nothing() -> None:
    storage = MemoryStorage()
    first = begin_with_rows(storage, spec_of())
    with pytest.raises(InvalidInputError, match="more than once"):
        create_with_a_repeated_key(storage)
    first.insert(rows(ROWS))
    assert names_of(storage) == ROWS


def test_creation_of_a_removed_table_commits_nothing() -> None:
    storage = MemoryStorage()
    late = begin_with_rows(storage, spec_of())
    base = late.log.head()
    drop_table(table_on(storage).log)
    proposal = Proposal(
        operation="create",
        number=None,
        build=lambda *_: Draft(actions=Actions(), result=JobResult(operation="create", table="")),
        started_us=0,
        skips_refresh=True,
    )
    with pytest.raises(ConflictError, match="was removed meanwhile"):
        late.log.commit(base, proposal)
    begin_with_rows(storage, spec_of())
    with pytest.raises(ConflictError, match="was removed meanwhile"):
        late.log.commit(base, proposal)
    with pytest.raises(NotFoundError):
        names_of(storage)


@pytest.mark.parametrize("mode", MODES)
def test_failed_creation_killed_at_any_call_leaves_no_table(mode: Mode) -> None:
    dry = FailingStore(MemoryStorage())
    with suppress(InvalidInputError):
        create_with_a_repeated_key(dry)
    for fail_at in range(1, len(dry.trace) + 1):
        storage = MemoryStorage()
        with suppress(Crash, StorageError, InvalidInputError):
            create_with_a_repeated_key(FailingStore(storage, fail_at, mode))
        with pytest.raises(NotFoundError):
            names_of(storage)
        with suppress(NotFoundError):
            drop_table(table_on(storage).log)
        create_with(storage, ROWS)
        assert names_of(storage) == ROWS


@pytest.mark.parametrize("mode", MODES)
def test_creation_killed_at_any_call_leaves_no_table_or_the_whole(mode: Mode) -> None:
    dry = FailingStore(MemoryStorage())
    create_with(dry, ROWS)
    for fail_at in range(1, len(dry.trace) + 1):
        storage = MemoryStorage()
        is_done = True
        try:
            create_with(FailingStore(storage, fail_at, mode), ROWS)
        except (Crash, StorageError):
            is_done = False
        try:
            assert names_of(storage) == ROWS
        except NotFoundError:
            assert not is_done
            create_with(storage, ROWS)
            assert names_of(storage) == ROWS
        assert table_on(storage).check(all=True) == []
