"""A table whose rows are changed by statements, and whose columns and constraints change."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.log.commit_log import CommitLog
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("seen at", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
        ("amount", pa.decimal128(6, 2)),
        ("n", pa.int16()),
        ("day", pa.date32()),
        ("note", pa.string()),
    ]
)
FIRST_DAY, SECOND_DAY = "day one", "day two"
ERASED = "id = 4"


def build_changed(file_format: str) -> Storage:
    """Return a table with all statements and changes of its definition, and an erasure at last.

    The day is generated, and each amount but those of deletes is 0 or more.
    """
    storage, clock, ids = MemoryStorage("golden"), ManualClock(), CountingIds()
    table_layout = TableLayout(
        keys=["id"],
        delta="seen at",
        deletes="op = 'D'",
        partition_by=["day"],
        file_format=file_format,
        not_null=["n"],
        constraints={"not_negative": "amount >= 0"},
        generated={"day": "date(`seen at`)"},
        properties={"segment_rows": 4, "checkpoint_commits": 6, "key_store_fan_in": 3},
    )
    create_on(storage, plan_spec(SCHEMA, table_layout), clock, ids)
    table = _opened(storage, clock, ids)
    change_rows(table)
    change_definition(table)
    replace_rows(table)
    table.compact()
    table.erase(ERASED)
    table.upsert(_new_rows([(8, 9, 800)]))
    return storage


def build_erased(file_format: str) -> Storage:
    """Return the same table after the files from before the erasure are deleted."""
    storage = build_changed(file_format)
    clock, ids = ManualClock(), CountingIds()
    clock.at_us += 1_000_000_000
    table = _opened(storage, clock, ids)
    done = table.erase(ERASED, grace="0s")
    assert done.counts["remaining_files"] == 0, done
    table.upsert(_new_rows([(9, 10, 900)]))
    return storage


def _opened(storage: Storage, clock: ManualClock, ids: CountingIds) -> Table:
    log = CommitLog(storage=storage, clock=clock, ids=ids)
    return Table(log=log, cache=MemoryRuns(storage=storage))


def change_rows(table: Table) -> None:
    first = [(key, key % 3, key * 100) for key in range(7)]
    table.ingest(_rows(first), metadata="inline", partition_key=FIRST_DAY)
    table.update({"amount": "amount + 0.25"}, where="n = 1", token="a quarter")
    table.delete(where="id = 2", at="1970-01-04T12:00:00Z")
    table.insert(_rows([(10, 3, 1)]))
    merge = table.merge(_rows([(3, 4, 333), (11, 4, 2)]), on="t.id = s.id")
    merge.when_matched_update({"note": "s.note"}).when_not_matched_insert_all().execute()
    bad = _rows([(12, 4, -1), (13, 4, 3)])
    table.ingest(bad, metadata="inline", on_bad_rows="quarantine")


def change_definition(table: Table) -> None:
    table.alter(
        [
            {"rename": "amount", "to": "total"},
            {"add": "currency", "type": "string", "default": "'EUR'", "after": "total"},
            {"add": "rate", "type": "decimal(4,3)", "default": Decimal("1.125")},
            {"set_not_null": "currency"},
            {"add_constraint": "small", "check": "total * rate < 1000"},
            {"widen": "n", "type": "bigint"},
            {"drop": "note"},
        ]
    )
    table.upsert(_new_rows([(5, 5, 500)]).rename_columns({"amount": "total"}))
    table.alter(
        [
            {"set_default": "currency", "value": "'CHF'"},
            {"drop_default": "rate"},
            {"drop_constraint": "small"},
            {"drop_not_null": "n"},
            {"rename": "total", "to": "amount"},
        ]
    )


def replace_rows(table: Table) -> None:
    again = _new_rows([(key, 6, key * 10) for key in (1, 4)])
    table.ingest(again, mode="replace", partition_key=FIRST_DAY)
    table.metagen(partition_key=FIRST_DAY)
    second = _new_rows([(20 + key, 7, key) for key in range(3)])
    table.ingest(second, metadata="inline", partition_key=SECOND_DAY)
    currency, rate = pa.array(["USD"]), pa.nulls(1, pa.decimal128(4, 3))
    of_day = _new_rows([(30, 7, 5)], currency=currency, rate=rate)
    table.overwrite(of_day, partitions="dynamic")
    of_condition = _new_rows([(10, 3, 77)], currency=currency, rate=rate)
    table.overwrite(of_condition, where="day = DATE '1970-01-04'")
    table.drop_partition(day="1970-01-05")


def _rows(values: list[tuple[int, int, int]]) -> pa.Table:
    """Return rows of a key, a day and a number of cents, without the generated day."""
    rows = [
        {
            "id": key,
            "seen at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day, seconds=key),
            "op": "D" if key == 6 else "U",
            "amount": Decimal(cents) / 100,
            "n": key % 2,
            "note": f"row {key}",
        }
        for key, day, cents in values
    ]
    return pa.Table.from_pylist(rows, SCHEMA).drop_columns(["day"])


def _new_rows(values: list[tuple[int, int, int]], **more: pa.Array) -> pa.Table:
    """Return rows as the table has them after `change_definition`, with columns that it added."""
    rows = _rows(values).drop_columns(["note"])
    rows = rows.set_column(rows.column_names.index("n"), "n", rows["n"].cast(pa.int64()))
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return rows
