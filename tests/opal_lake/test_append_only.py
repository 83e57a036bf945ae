"""Tables without keys are read, checked and rewritten.

Operations that need keys are refused before they begin.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.definition.table_spec import TableLayout, plan_spec, spec_from_json, spec_to_json
from opal_lake.errors import InvalidInputError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.append_only import (
    SCHEMA,
    View,
    append,
    content,
    create,
    process,
    raise_floor,
    rows,
    spec,
)

S = 1_000_000
MONDAY: list[View] = [("home", 1 * S), ("home", 1 * S), ("about", 2 * S)]
TUESDAY: list[View] = [("home", 1 * S), ("jobs", 3 * S)]


def seen(*batches: list[View]) -> list[tuple[str | None, str]]:
    return sorted((page, f"{at // S:02}") for batch in batches for page, at in batch)


@pytest.fixture(params=["parquet", "orc"])
def table(request: pytest.FixtureRequest) -> Table:
    """Monday is visible from version 2 on, Tuesday from 4 on; a last row is pending."""
    made = create(MemoryStorage(), file_format=request.param)
    append(made, MONDAY, partition_key="monday")
    process(made)
    append(made, TUESDAY, partition_key="tuesday")
    process(made)
    append(made, [("later", 9 * S)], partition_key="wednesday")
    return made


def test_every_processed_row_is_visible_even_if_rows_are_equal(table: Table) -> None:
    assert content(table, version=0) == content(table, version=1) == []
    assert content(table, version=2) == content(table, version=3) == seen(MONDAY)
    assert content(table) == seen(MONDAY, TUESDAY)
    assert table.read(version=0).schema == table.read().schema == SCHEMA


def test_reads_of_parts_know_no_keys(table: Table) -> None:
    assert content(table, where="page = 'home'") == seen(MONDAY[:2], TUESDAY[:1])
    assert content(table, partition_key="tuesday") == seen(TUESDAY)
    assert content(table, after=2) == seen(TUESDAY)
    assert table.read(columns=["tags"]).num_rows == 5
    assert table.explain("page = 'zebra'")["files"]["pruned_by_bounds"] == 2


def test_descriptions_have_neither_keys_nor_delta(table: Table) -> None:
    shown = table.describe()
    assert (shown["keys"], shown["delta"], shown["deletes"]) == ([], None, None)
    assert shown["counts"]["rows_visible"] == 5
    assert shown["counts"]["rows_pending"] == 1
    assert [file["delta_low"] for file in table.files()] == [None] * 3
    assert [segment["rows_invalid"] for segment in table.segments()] == [0, 0, 0]
    assert len(table.history()) == 6


def test_maintenance_changes_no_row(table: Table) -> None:
    table.savepoint("friday", version=2)
    table.add_columns({"agent": pa.string()})
    table.set_properties({"target_mb": 64})
    table.compact()
    table.zorder(["page", "seen"], whole=True)
    assert len(table.files()) == 2
    assert content(table) == seen(MONDAY, TUESDAY)
    assert content(table, version=2) == seen(MONDAY)
    assert check_table(table) == []
    table.maintain(small_files=1, window="0s", grace="0s", zorder=["seen"])
    table.retain(window="0s", grace="0s")
    assert content(table) == seen(MONDAY, TUESDAY)
    table.discard(partition_key="wednesday")
    assert content(table) == seen(MONDAY, TUESDAY)
    table.restore(savepoint="friday")
    assert content(table) == seen(MONDAY)
    assert check_table(table) == []


@pytest.mark.parametrize("extent", [{}, {"sample": "1%"}, {"quick": True}, {"all": True}])
def test_a_sound_table_has_no_finding(table: Table, extent: dict[str, Any]) -> None:
    assert table.check(**extent) == []


def test_a_floor_without_a_delta_is_reported(table: Table) -> None:
    raise_floor(table)
    (finding,) = table.check()
    assert (finding.invariant, finding.path) == ("I15", layout.commit_path(6))
    assert "has no keys, and the state has a floor" in finding.message
    assert table.describe()["floor"] == 5


REFUSED: dict[str, Callable[[Table], object]] = {
    "an ingest": lambda table: table.ingest(rows(TUESDAY)),
    "an ingest inline": lambda table: table.ingest(rows(TUESDAY), metadata="inline"),
    "a MetaGen": lambda table: table.metagen(all=True),
    "a MetaGen of nothing": lambda table: table.metagen(partition_key="monday"),
    "event_time": lambda table: table.read(event_time="2026-01-01T00:00:00Z"),
    "event_time of an explain": lambda table: table.explain(event_time=1),
    "a net read": lambda table: table.read(partition_key="monday", net=True),
    "a look-up by key": lambda table: table.get([{"page": "home"}]),
    "a change feed": lambda table: table.changes(1),
    "a change feed of event times": lambda table: table.changes(1, axis="event_time"),
    "a history view": lambda table: table.history_view(),
    "a history view of keys": lambda table: table.history_view(keys=[{"page": "home"}]),
    "a rebuild of the key store": lambda table: table.rebuild_key_store(),
    "look_back": lambda table: table.compact(mode="major", look_back="30d"),
    "property 'look_back'": lambda table: table.set_properties({"look_back": "30d"}),
    "look_back of maintenance": lambda table: table.maintain(look_back="30d"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_operations_on_keys_are_refused_for_a_table_without_keys(what: str, table: Table) -> None:
    before = [stored.path for stored in table.storage.list("")]
    with pytest.raises(InvalidInputError, match="needs a table with keys, and this table has none"):
        REFUSED[what](table)
    assert [stored.path for stored in table.storage.list("")] == before


def test_no_table_without_keys_is_created_yet(tmp_path: Any) -> None:
    uri = str(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="this version cannot create a table without keys"):
        Table.create(uri, SCHEMA, keys=[], delta="seen")
    assert not (tmp_path / "t").exists()


def test_the_spec_of_such_a_table_is_kept_and_half_of_one_is_refused() -> None:
    made = spec()
    data = spec_to_json(made)
    assert (data["keys"], data["delta"]) == ([], None)
    assert spec_from_json(data) == made
    for change in ({"delta": 2}, {"keys": [1]}, {"deletes": "page IS NULL"}, {"tie_break": [2]}):
        with pytest.raises(ValueError, match=r"a table (has keys and|without keys has)"):
            spec_from_json({**data, **change})
    of_keys = spec_to_json(plan_spec(SCHEMA, TableLayout(keys=["page"], delta="seen")))
    with pytest.raises(ValueError, match="a table has keys and a delta column, or neither"):
        spec_from_json({**of_keys, "delta": None})
