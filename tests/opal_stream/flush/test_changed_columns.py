"""Rows that were decoded or put aside before a change of columns, and committed after it."""

import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.data.json_rows import JsonForm, row_of_json
from opal_lake.data.rejects import UNCHANGED
from opal_lake.definition.changes.apply import changed, changes_of
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.rejected import find_rejected, rows_of
from opal_stream.errors import BadMessageError, NewColumnsError
from opal_stream.flush.buffer import Buffer, FlushLimits
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.flush.intake import Intake
from opal_stream.flush.writer import Writer
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.rows import DecodedRows, row_schema
from opal_stream.gathered.file import Header
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.consumed import Consumed
from opal_stream.operations.reading import FormatOptions
from tests.opal_stream.changed_streams import DIRECT, StreamProgram, application
from tests.opal_stream.orders import batch, good, new_spec, order


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


def orders_table(*changes: dict[str, Any]) -> Table:
    table = create_on(MemoryStorage(), new_spec())
    if changes:
        table.alter(changes)
    return table


def intake_of(table: Table, policy: str, on_bad: str = "fail", **options: Any) -> Intake:
    formats = FormatOptions(on_new_columns=policy, **options)
    return Intake(table, formats, on_bad, lambda: None, lambda *_: None)


def taken(intake: Intake, *values: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the good rows of messages, and why the others are bad."""
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    for _, decoded in intake.take(batch(values)):
        rows += good(decoded)
        reasons += [bad.reason for bad in decoded.bad]
    return rows, reasons


RENAMED = {"rename": "total", "to": "amount"}
OLD_NAME = "'total', which the table calls 'amount' since it was renamed"


def test_a_message_with_a_former_name_stops_the_stream_with_the_new_name() -> None:
    with pytest.raises(NewColumnsError, match=r"'total' \(it was renamed to 'amount'\).*new name"):
        taken(intake_of(orders_table(RENAMED), "fail"), order(1))
    with pytest.raises(NewColumnsError, match=OLD_NAME):
        taken(intake_of(orders_table(RENAMED), "add"), order(1))
    with pytest.raises(BadMessageError, match=OLD_NAME):
        taken(intake_of(orders_table(RENAMED), "ignore"), order(1))
    with pytest.raises(NewColumnsError, match=r"'total' \(it was dropped\)"):
        taken(intake_of(orders_table({"drop": "total"}), "fail"), order(1))


def test_a_message_with_a_former_name_is_put_aside_with_the_new_name() -> None:
    _, reasons = taken(intake_of(orders_table(RENAMED), "quarantine"), order(1))
    assert reasons == ["the table has no column 'total' (it was renamed to 'amount')"]
    for policy in ("add", "ignore"):
        table = orders_table(RENAMED)
        rows, reasons = taken(intake_of(table, policy, "quarantine"), order(1, more=1))
        assert rows == []
        assert OLD_NAME in reasons[0]
    assert "more" not in table.snapshot_at().spec.schema.names


def test_a_former_name_without_a_value_and_a_dropped_one_are_ignored() -> None:
    table = orders_table(RENAMED, {"drop": "name"})
    rows, reasons = taken(intake_of(table, "ignore"), order(1, total=None, amount=2.5))
    assert (rows[0]["amount"], reasons) == (2.5, [])


NEW_CONSTRAINTS = [{"set_not_null": "name"}, {"add_constraint": "few", "check": "total < 10"}]
REFUSED = {
    "column 'name' is null, but it is declared NOT NULL",
    "constraint 'few' is violated: total < 10",
}


def read_before_the_constraints(table: Table) -> Decoded:
    """Return messages that were decoded before constraints of the table; two of three violate."""
    messages = [order(1), order(2, name=None), order(3, total=50.0)]
    decoded = Decoder(table.snapshot_at().spec, FormatOptions()).decode(batch(messages))
    table.alter(NEW_CONSTRAINTS)
    return decoded


def flushed(table: Table, policy: str) -> None:
    """Flush messages of a stream that were read before the constraints."""
    buffer = Buffer(limits=FlushLimits())
    buffer.add(batch([order(1), order(2), order(3)]), read_before_the_constraints(table), 0.0)
    writer = Writer(
        table=table,
        on_bad_message=policy,
        applications={DIRECT: application(DIRECT)},
        positions={DIRECT: None},
    )
    writer.flush(buffer, lambda: None, lambda: None)


def reasons_of_rejected(table: Table) -> set[str]:
    reasons: set[str] = set()
    for rejected in find_rejected(table.log, table.log.head()):
        rows, _ = rows_of(table.log, rejected)
        reasons |= set(rows["reason"].to_pylist())
    return reasons


def test_rows_read_before_a_constraint_follow_the_policy_of_the_stream() -> None:
    table = orders_table()
    with pytest.raises(
        BadMessageError, match=r"'quarantine'.*2 rows cannot go into the table(.|\n)*few"
    ):
        flushed(table, "fail")
    assert table.read().num_rows == 0
    table = orders_table()
    flushed(table, "quarantine")
    assert table.read(columns=["id"])["id"].to_pylist() == [1]
    assert reasons_of_rejected(table) == REFUSED


@pytest.mark.parametrize("quarantine", [True, False])
def test_rows_gathered_before_a_constraint_follow_the_policy_of_their_stream(
    quarantine: bool,
) -> None:
    table = orders_table()
    table_id = table.snapshot_at().root.table_id
    decoded = read_before_the_constraints(table)
    header = Header(
        table_id=table_id,
        application=application(DIRECT),
        writer="w",
        consumed=Consumed(low=0, high=3, records=3),
        first=True,
        quarantine=quarantine,
    )
    rows = DecodedRows(rows=decoded.rows, schema=decoded.schema)
    assert GatheredFolder(table.storage, table_id).put(header, rows)
    committer = Committer(table, CommitterOptions(until_empty=True))
    if quarantine:
        committer.run()
        assert reasons_of_rejected(table) == REFUSED
    else:
        with pytest.raises(FormatError, match=r"1 gathered file could not be committed.*refuses"):
            committer.run()
        # The file waits for a table that takes its rows
        table.alter([{"drop_constraint": "few"}, {"drop_not_null": "name"}])
        Committer(table, CommitterOptions(until_empty=True)).run()
    expected = [1] if quarantine else [1, 2, 3]
    assert sorted(table.read(columns=["id"])["id"].to_pylist()) == expected


NESTED = plan_spec(
    pa.schema(
        {
            "id": pa.int64(),
            "at": pa.int64(),
            "s": pa.struct([("x", pa.int32()), ("in", pa.struct([("deep", pa.string())]))]),
            "l": pa.list_(pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        }
    ),
    TableLayout(keys=["id"], delta="at"),
)
RENAMED_MEMBERS = [
    {"rename": "s.x", "to": "z"},
    {"rename": "s.in.deep", "to": "deeper"},
    {"rename": "l.element.x", "to": "y2"},
]


def nested_table() -> Table:
    table = create_on(MemoryStorage("memory://nested"), NESTED)
    table.alter(RENAMED_MEMBERS)
    return table


@pytest.mark.parametrize(
    "column, value, reason",
    [
        ("s", {"x": 1}, "'s.x', which the table calls 'z' since it was renamed"),
        ("s", {"x": 1, "z": 2}, "'s.x', which the table calls 'z'"),
        ("s", {"in": {"deep": ""}}, "'s.in.deep', which the table calls 'deeper'"),
        ("l", [{"y": 1}, {"x": 2}], "'l[].x', which the table calls 'y2'"),
    ],
)
def test_a_member_with_a_former_name_is_not_lost(column: str, value: Any, reason: str) -> None:
    message = {"id": 1, "at": 1, column: value}
    rows, reasons = taken(intake_of(nested_table(), "ignore", "quarantine"), message)
    assert rows == []
    assert reason in reasons[0]
    with pytest.raises(BadMessageError, match=re.escape(reason)):
        taken(intake_of(nested_table(), "ignore"), message)
    with pytest.raises(NewColumnsError, match="the table has no member"):
        taken(intake_of(nested_table(), "fail"), message)


def test_other_unknown_members_are_ignored_next_to_renamed_ones() -> None:
    message = {"id": 1, "at": 1, "s": {"x": None, "z": 3, "q": 4}, "l": [{"y2": 1, "w": 0}]}
    rows, reasons = taken(intake_of(nested_table(), "ignore"), message)
    assert reasons == []
    assert (rows[0]["s"], rows[0]["l"]) == ({"z": 3, "in": None}, [{"y2": 1, "y": None}])


def test_a_change_event_with_a_former_member_is_refused() -> None:
    columns = {"at": "@ts_ms"}
    intake = intake_of(
        nested_table(), "ignore", "quarantine", format="debezium-json", columns=columns
    )
    event = {"before": None, "after": {"id": 1, "s": {"x": 5}}, "op": "c", "ts_ms": 5}
    _, [reason] = taken(intake, event)
    assert "'s.x', which the table calls 'z'" in reason
    event["after"] = {"id": 1, "s": {"z": 5}}
    rows, _ = taken(intake, event)
    assert rows[0]["s"] == {"z": 5, "in": None}


def test_change_events_with_former_names_are_refused() -> None:
    row = {"id": 1, "total": 2.5}
    event = {"before": None, "after": row, "op": "c", "ts_ms": 5}
    columns = {"at": "@ts_ms", "op": "@op"}
    intake = intake_of(
        orders_table(RENAMED), "ignore", "quarantine", format="debezium-json", columns=columns
    )
    _, [reason] = taken(intake, event)
    assert OLD_NAME in reason
    event["after"] = {"id": 1, "total": "__debezium_unavailable_value"}
    _, [reason] = taken(intake, event)
    assert OLD_NAME in reason


def test_a_message_after_a_change_is_read_by_the_new_names() -> None:
    for policy in ("fail", "ignore", "add", "quarantine"):
        table = orders_table()
        intake = intake_of(table, policy, "quarantine")
        table.alter([RENAMED])
        message = order(1, amount=7.5)
        del message["total"]
        rows, reasons = taken(intake, message)
        assert (rows[0]["amount"], reasons) == (7.5, [])


def test_a_column_that_messages_fill_is_named_as_it_is_now() -> None:
    table = orders_table({"rename": "at", "to": "moment"})
    with pytest.raises(InvalidInputError, match=r"'at' .*\(it was renamed to 'moment'\)"):
        intake_of(table, "fail", columns={"at": "@timestamp"})


def test_a_stream_into_a_table_ordered_by_commits_is_refused_at_its_start() -> None:
    spec = plan_spec(SCHEMA, TableLayout(keys=["id"], delta="_commit"))
    table = create_on(MemoryStorage(), spec)
    with pytest.raises(InvalidInputError, match=r"delta='_commit'.* an order of its own"):
        intake_of(table, "fail")
