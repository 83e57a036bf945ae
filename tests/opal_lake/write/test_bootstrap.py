"""A source's files cut into batches, and the stored parts of a bootstrap."""

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.definition.changes.apply import changed, changes_of
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import FormatError, InvalidInputError
from opal_lake.result import JobResult
from opal_lake.storage import open_storage
from opal_lake.write.bootstrap import (
    MAX_FILES,
    MAX_SCANS,
    BootstrapPlan,
    SourceFile,
    SourceTable,
    cut_batches,
    done_batches,
    fix_plan,
    keep_batch,
    read_plan,
    read_result,
)

FOLDER = SourceTable(location="/old", format="parquet")
DELTA = SourceTable(location="/old", format="delta", version=3)


def files(*sizes: int) -> list[SourceFile]:
    return [
        SourceFile(path=f"/old/{number:06d}", size=size, rows=1)
        for number, size in enumerate(sizes)
    ]


def shape(batches: tuple[tuple[SourceFile, ...], ...]) -> list[list[int]]:
    return [sizes_of(batch) for batch in batches]


def sizes_of(batch: tuple[SourceFile, ...]) -> list[int]:
    return [file.size for file in batch]


def test_batches_are_cut_by_bytes_and_by_number_of_files() -> None:
    assert shape(cut_batches(files(3, 4, 2, 9, 1, 1), FOLDER, 8)) == [[3, 4], [2], [9], [1, 1]]
    assert [
        len(batch) for batch in cut_batches(files(*[1] * (MAX_FILES + 1)), FOLDER, 1 << 40)
    ] == [MAX_FILES, 1]
    assert cut_batches([], FOLDER, 8) == cut_batches([], DELTA, 8) == ()
    with pytest.raises(InvalidInputError, match="batch_mb"):
        cut_batches(files(1), FOLDER, 0)


@pytest.mark.parametrize(
    "sizes", [[1] * 100, [0, 0], [5], [100, 1, 1, 1], list(range(40)), [1, 1, 1, 1000]]
)
def test_delta_and_iceberg_sources_have_few_batches(sizes: list[int]) -> None:
    for batch_bytes in (1, 50, 1 << 40):
        batches = cut_batches(files(*sizes), DELTA, batch_bytes)
        assert [file for batch in batches for file in batch] == files(*sizes)
        assert all(batches)
        assert len(batches) <= min(MAX_SCANS, -(-sum(sizes) // batch_bytes) or 1)


def test_the_first_stored_plan_is_final() -> None:
    storage = open_storage("memory://plans")
    plan = BootstrapPlan(
        source=DELTA,
        schema={"type": "struct", "fields": []},
        folders=("day",),
        batches=cut_batches(files(2, 2), DELTA, 2),
    )
    other = BootstrapPlan(source=DELTA, schema={}, folders=(), batches=())
    assert read_plan(storage, "p") is None
    assert (
        fix_plan(storage, "p", plan)
        == fix_plan(storage, "p", other)
        == read_plan(storage, "p")
        == plan
    )
    assert len({plan.token(batch) for batch in range(len(plan.batches))}) == len(plan.batches) == 2
    keep_batch(
        storage, "p", 1, JobResult(operation="ingest", table="t", version=4, counts={"rows": 2})
    )
    assert {number: result.version for number, result in done_batches(storage, "p").items()} == {
        1: 4
    }
    assert read_result(storage, "p") is None


def test_error_names_a_damaged_plan() -> None:
    storage = open_storage("memory://damaged-plan")
    storage.put_if_absent(layout.bootstrap_plan_path("p"), b"{}")
    with pytest.raises(FormatError, match=r"bootstrap/p/plan\.json is damaged"):
        read_plan(storage, "p")


def test_a_source_has_one_name() -> None:
    assert SourceTable(location="/old/", format="parquet").name == FOLDER.name
    assert (
        len(
            {
                FOLDER.name,
                DELTA.name,
                SourceTable(location="/old", format="orc").name,
                SourceTable(location="/old", format="delta").name,
            }
        )
        == 4
    )
    with pytest.raises(InvalidInputError, match="use one of parquet, orc, delta, iceberg"):
        SourceTable(location="/old", format="csv")


def test_names_of_a_source_are_those_of_the_table_when_the_plan_was_made() -> None:
    arrow = pa.schema(
        {
            "id": pa.int64(),
            "at": pa.int64(),
            "A": pa.string(),
            "b": pa.string(),
            "c": pa.string(),
            "s": pa.struct([("x", pa.int64()), ("y", pa.int64())]),
        }
    )
    spec = plan_spec(arrow, TableLayout(keys=["id"], delta="at"))
    plan = BootstrapPlan(source=FOLDER, schema={}, folders=(), batches=(), table_schema=spec.schema)
    storage = open_storage("memory://names")
    assert fix_plan(storage, "p", plan) == read_plan(storage, "p") == plan

    def new_names(*changes: dict[str, str]) -> dict[str, str | None]:
        after, _ = changed(spec, changes_of(list(changes)))
        return plan.new_names(after.schema)

    assert new_names({"add": "d", "type": "int"}, {"add": "s.z", "type": "int"}) == {}
    swap = [
        {"rename": "A", "to": "between"},
        {"rename": "b", "to": "A"},
        {"rename": "between", "to": "b"},
    ]
    assert new_names(*swap, {"drop": "c"}) == {"a": "b", "b": "A", "c": None}
    assert new_names({"drop": "c"}, {"add": "c", "type": "string"}) == {"c": None}
    for change in ({"rename": "s.x", "to": "z"}, {"drop": "s.x"}):
        with pytest.raises(InvalidInputError, match=r"members of column 's' .* rename them back"):
            new_names(change)
