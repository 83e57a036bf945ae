"""The history view at its edges; random histories are in test_histories.py."""

import json

import pyarrow as pa
import pytest

from opal_lake.cli import main
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError
from opal_lake.exit_codes import INPUT, OK
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows


@pytest.fixture
def storage(tmp_path: object) -> Storage:
    return open_storage(f"{tmp_path}/t")


def shown(table: Table, *keys: str) -> list[tuple[object, ...]]:
    view = table.history_view(
        keys=[{"sku": key} for key in keys] if keys else None, columns=["sku", "price"]
    )
    return sorted(tuple(row.values()) for row in view.to_pylist())


def test_rows_that_ended_up_to_the_floor_are_not_shown(
    storage: Storage,
) -> None:
    table = create(storage)
    for values in ([("a", 1, 10), ("b", 1, 1)], [("a", 3, 11), ("b", 4, None)], [("a", 6, 12)]):
        table.ingest(*rows(values), metadata="inline")
    a, b = (
        [
            ("a", 10, 1, 3, False, False),
            ("a", 11, 3, 6, False, False),
            ("a", 12, 6, None, True, False),
        ],
        ("b", 1, 1, 4, False, True),
    )
    assert shown(table) == shown(table, "b", "a") == [*a, b]
    compact(table, floor=3)
    assert shown(table) == shown(table, "a", "b", "c") == [*a[1:], b]
    compact(table, floor=5)
    assert shown(table) == shown(table, "a", "b") == a[1:]


def test_an_empty_table_has_no_history(storage: Storage) -> None:
    table = create(storage)
    assert table.history_view().schema == table.history_view(keys=[{"sku": "a"}]).schema
    assert shown(table) == shown(table, "a") == []


def test_a_column_with_the_name_of_a_view_column_is_refused(storage: Storage) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("deleted", pa.bool_())])
    table = create_on(
        storage, plan_spec(schema, TableLayout(keys=["id"], delta="at", deletes="deleted"))
    )
    table.ingest(pa.table([[1], [1], [False]], schema=schema), [False], metadata="inline")
    with pytest.raises(
        InvalidInputError,
        match="column deleted of the table has the name of a column of a history view; rename it",
    ):
        table.history_view()
    assert table.history_view(columns=["id"]).column("deleted").to_pylist() == [False]


def test_versions_of_a_key_on_the_command_line(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    table = create(storage)
    table.ingest(*rows([("a", 1, 10), ("a", 2, 11)]), metadata="inline")
    uri = storage.uri
    assert main(["versions-of", uri, "a"]) == OK
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["sku", "at", "price", "valid_from", "valid_until", "is_current", "deleted"],
        ["a", "1", "10", "1", "2", "false", "false"],
        ["a", "2", "11", "2", "NULL", "true", "false"],
    ]
    assert main(["versions-of", uri, "a", "--version", "0"]) == OK
    assert capsys.readouterr().out == "no row\n"
    assert main(["versions-of", uri, "x", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == []
    assert main(["versions-of", uri, "a", "b"]) == INPUT
    assert "the key is 'sku': give 1 value in this order, got 2" in capsys.readouterr().err


def test_keys_of_every_kind_are_written_as_text(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = pa.schema(
        [
            ("flag", pa.bool_()),
            ("raw", pa.binary()),
            ("n", pa.decimal128(5, 2)),
            ("day", pa.date32()),
            ("at", pa.int64()),
        ]
    )
    table = create_on(
        storage, plan_spec(schema, TableLayout(keys=["flag", "raw", "n", "day"], delta="at"))
    )
    values = pa.table([[True], [b"\x01\xff"], ["1.50"], ["2026-11-01"], [1]], names=schema.names)
    table.ingest(
        pa.table(
            [column.cast(field.type) for column, field in zip(values.columns, schema, strict=True)],
            schema=schema,
        )
    )
    table.metagen()
    assert main(["versions-of", storage.uri, "true", "01FF", "1.5", "2026-11-01", "--json"]) == OK
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["raw"], row["is_current"]) == ("01ff", True)
    for key, words in (
        (
            ["yes", "01", "1", "2026-11-01"],
            "'yes' is not a value of key column flag, which is BOOLEAN: write true or false",
        ),
        (
            ["true", "0x1", "1", "2026-11-01"],
            "'0x1' is not a value of key column raw, which is BINARY: write hexadecimal digits",
        ),
        (["true", "01", "a", "2026-11-01"], "key column n: 'a' is not a number"),
        (["true", "01", "1", "tomorrow"], "key column day: 'tomorrow' is not a date"),
    ):
        assert main(["versions-of", storage.uri, *key]) == INPUT
        assert words in capsys.readouterr().err
