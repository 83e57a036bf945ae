"""Rows that were decoded or put aside before a change of columns, and committed after it."""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.json_rows import JsonForm, row_of_json
from opal_lake.data.rejects import UNCHANGED
from opal_lake.definition.changes.apply import changed, changes_of
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError
from opal_stream.formats.rows import DecodedRows, row_schema
from tests.opal_stream.changed_streams import StreamProgram


def test_programs_of_streams_and_changes_agree_with_the_model() -> None:
    replayed = committed_files = 0
    for seed in range(20):
        program = StreamProgram(seed, "parquet")
        program.run(steps=14)
        replayed += program.replayed
        committed_files += program.committed_files
    assert min(replayed, committed_files) > 10


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_long_programs_agree_with_the_model(first: int, file_format: str) -> None:
    for seed in range(first, first + 50):
        StreamProgram(seed, file_format).run(steps=25)


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.int64(),
        "a": pa.string(),
        "b": pa.string(),
        "day": pa.date32(),
        "s": pa.struct([("x", pa.int32()), ("y", pa.int32())]),
    }
)
SPEC = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="at"))
SWAP = [
    {"rename": "a", "to": "between"},
    {"rename": "b", "to": "a"},
    {"rename": "between", "to": "b"},
]


def altered(*changes: dict[str, Any]) -> TableSpec:
    return changed(SPEC, changes_of(list(changes)))[0]


def decoded_rows(rows: list[dict[str, Any]], spec: TableSpec = SPEC) -> DecodedRows:
    return DecodedRows(rows=pa.Table.from_pylist(rows, row_schema(spec)), schema=spec.schema)


def test_notes_of_unchanged_columns_follow_their_columns() -> None:
    rows = [
        {"id": 1, UNCHANGED: json.dumps(["a", "b"])},
        {"id": 2, UNCHANGED: json.dumps(["b"])},
        {"id": 3},
    ]
    fitted = decoded_rows(rows).fitted(altered({"rename": "a", "to": "c"}, {"drop": "b"}))
    assert fitted.rows[UNCHANGED].to_pylist() == ['["c"]', None, None]
    swapped = decoded_rows(rows).fitted(altered(*SWAP))
    assert swapped.rows[UNCHANGED].to_pylist() == ['["b", "a"]', '["a"]', None]


def test_rows_from_before_a_delete_condition_are_no_deletes() -> None:
    spec = replace(SPEC, deletes="false")
    fitted = decoded_rows([{"id": 1}, {"id": 2}]).fitted(spec)
    assert fitted.rows["_opal_deleted"].to_pylist() == [False, False]


def test_rows_with_another_meaning_of_a_field_id_are_refused() -> None:
    layout = TableLayout(keys=["id"], delta="at")
    other = plan_spec(SCHEMA.set(2, pa.field("z", pa.string())), layout)
    with pytest.raises(FormatError, match="column 'z' has the field id 3, which is not its id"):
        decoded_rows([{"id": 1}], other).fitted(SPEC)


@pytest.mark.parametrize(
    "changes, given, expected",
    [
        (SWAP, {"a": "A", "b": "B"}, {"b": "A", "a": "B"}),
        ([{"rename": "a", "to": "c"}], {"a": "A"}, {"c": "A"}),
        # The source had the new name first: nothing else can be meant
        ([{"rename": "a", "to": "c"}], {"c": "C"}, {"c": "C"}),
        ([{"rename": "a", "to": "c"}], {"a": "A", "c": "C"}, "'a' and 'c' both name column 'c'"),
        ([{"drop": "a"}], {"a": "A", "b": "B"}, {"b": "B"}),
        ([{"drop": "a"}, {"add": "a", "type": "string"}], {"a": "A"}, "key 'a' has two meanings"),
        ([{"drop": "a"}, {"rename": "b", "to": "a"}], {"b": "B"}, {"a": "B"}),
        ([{"add": "n", "type": "int"}], {"n": 5}, {"n": 5}),
        (
            [{"add": "n", "type": "int"}, {"rename": "n", "to": "m"}],
            {"n": 5},
            r"unknown key 'n' \(it was renamed to 'm'\)",
        ),
        ([{"widen": "day", "type": "timestamp_ntz"}], {"day": "2026-11-29"}, None),
        ([{"widen": "s.x", "type": "bigint"}], {"s": {"x": 1 << 40}}, {"s": {"x": 1 << 40}}),
        (
            [{"rename": "s.x", "to": "z"}, {"rename": "s.y", "to": "x"}],
            {"s": {"x": 1, "y": 2}},
            {"s": {"z": 1, "x": 2}},
        ),
        ([{"drop": "s.x"}], {"s": {"x": 1, "y": 2}}, {"s": {"y": 2}}),
        (
            [{"drop": "s.x"}, {"add": "s.x", "type": "int"}],
            {"s": {"x": 1}},
            "key 'x' in column 's' has two meanings",
        ),
    ],
)
def test_keys_of_a_rejected_row_mean_the_columns_of_its_time(
    changes: list[dict[str, Any]], given: dict[str, Any], expected: Any
) -> None:
    spec, form = altered(*changes), JsonForm(schema=SPEC.schema)
    text = json.dumps({"id": 1, "at": 1, **given})
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            row_of_json(text, spec.schema, form)
        return
    row = row_of_json(text, spec.schema, form)
    if expected is None:
        assert str(row["day"]) == "2026-11-29 00:00:00"
        return
    actual = {name: value for name, value in row.items() if value is not None}
    actual.pop("id")
    actual.pop("at")
    if isinstance(actual.get("s"), dict):
        members = actual["s"].items()
        actual["s"] = {name: value for name, value in members if value is not None}
    assert actual == expected
