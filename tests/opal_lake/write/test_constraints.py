"""NOT NULL and CHECK: what an ingest rejects, what conflicts, and what a restore refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.data.json_rows import JsonForm
from opal_lake.definition.requested_spec import refuse_another_spec
from opal_lake.definition.table_spec import (
    TableLayout,
    TableSpec,
    plan_spec,
    spec_from_json,
    spec_to_json,
)
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.log.commit import Actions
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.operations.ingest import Ingest
from opal_lake.read.stored_violations import CheckedFiles, stored_violations
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import commit_ingest, ingest, start_ingest, write_segments
from tests.kit.check import check_table
from tests.kit.ids import CountingIds

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.int64(),
        "op": pa.string(),
        "amount": pa.float64(),
        "name": pa.string(),
    }
)
POSITIVE = {"positive": "amount > 0"}


def rows(*values: Sequence[Any]) -> pa.Table:
    """Return rows of id, at, op, amount and name."""
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


def create(
    not_null: Sequence[str] = (),
    constraints: Mapping[str, str] | None = None,
    *,
    file_format: str = "parquet",
) -> Table:
    layout = TableLayout(
        keys=["id"],
        delta="at",
        deletes="op = 'D'",
        file_format=file_format,
        not_null=not_null,
        constraints=constraints or {},
    )
    return create_on(MemoryStorage(), plan_spec(SCHEMA, layout), ManualClock(), CountingIds())


def commit_spec(table: Table, **changes: Any) -> None:
    """Commit changes of the spec, without a check of the rows."""
    base = table.log.head()
    spec = replace(base.spec, **changes)
    result = JobResult(operation="set_properties", table=table.uri)
    proposal = Proposal(
        operation="set_properties",
        number=None,
        build=lambda *_: Draft(actions=Actions(spec=spec), result=result),
        started_us=0,
    )
    table.log.commit(base, proposal)


def violations_of(table: Table, **changes: Any) -> dict[str, int]:
    """Return the numbers of stored rows that violate changes of the spec, by reason."""
    base = table.log.head()
    spec = replace(base.spec, **changes)
    violations = stored_violations(base, spec, table.executor, CheckedFiles())
    return {} if violations is None else dict(violations.counts)


@pytest.mark.parametrize("metadata", ["inline", "batch"])
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_row_that_violates_a_constraint_fails_the_ingest(metadata: str, file_format: str) -> None:
    table = create(["name"], POSITIVE, file_format=file_format)
    bad = rows((1, 1, "I", 1.0, None), (2, 1, "I", 0.0, "b"), (3, 1, "I", 2.0, "c"))
    with pytest.raises(InvalidInputError) as refused:
        table.ingest(bad, metadata=metadata)
    message = str(refused.value)
    assert "1 row: column 'name' is null, but it is declared NOT NULL" in message
    assert "1 row: constraint 'positive' is violated: amount > 0" in message
    assert table.ingest(bad, metadata=metadata, on_bad_rows="quarantine").counts["rejected"] == 2
    table.metagen()
    assert table.read().column("id").to_pylist() == [3]
    assert set(table.rejected()[-1]["reasons"]) == {
        "column 'name' is null, but it is declared NOT NULL",
        "constraint 'positive' is violated: amount > 0",
    }
    assert check_table(table) == []


def test_null_and_nan_do_not_violate_a_check_that_is_not_false_for_them() -> None:
    table = create(constraints=POSITIVE)
    nan = float("nan")
    table.ingest(rows((1, 1, "I", None, "a"), (2, 1, "I", nan, "b")), metadata="inline")
    assert table.read().num_rows == 2


def test_a_row_that_deletes_its_key_is_exempt() -> None:
    table = create(["name"], POSITIVE)
    table.ingest(rows((1, 1, "I", 1.0, "a")), metadata="inline")
    table.ingest(rows((1, 2, "D", -1.0, None)), metadata="inline")
    assert table.read().num_rows == 0
    table.ingest(rows((2, 1, "I", None, None)), deleted=[True], metadata="inline")
    assert check_table(table) == []


def test_a_division_by_zero_is_a_bad_row() -> None:
    table = create(constraints={"ratio": "10 / amount > 1"})
    with pytest.raises(InvalidInputError, match="constraint 'ratio' '10 / amount > 1' divides by"):
        table.ingest(rows((1, 1, "I", 0.0, "a")), metadata="inline")


def test_a_constraint_that_does_not_fit_the_columns_is_refused_before_the_table_exists() -> None:
    with pytest.raises(InvalidInputError, match=r"constraint 'x' .* no column 'amout'"):
        create(constraints={"x": "amout > 0"})
    with pytest.raises(InvalidInputError, match="cannot name a constraint"):
        create(constraints={"a b": "amount > 0"})
    with pytest.raises(InvalidInputError, match="'x' and 'X' differ in case only"):
        create(constraints={"x": "amount > 0", "X": "id > 0"})
    with pytest.raises(InvalidInputError, match="no column 'nam'"):
        create(["nam"])
    with pytest.raises(InvalidInputError, match="give a list of column names"):
        create("name")


def test_keys_and_delta_are_not_null_without_being_declared() -> None:
    spec = create(["id", "at", "name"]).snapshot_at().spec
    assert [column.name for column in spec.not_null] == ["name"]
    assert spec_from_json(spec_to_json(spec)) == spec
    without = create().snapshot_at().spec
    assert "not_null" not in spec_to_json(without)
    assert "constraints" not in spec_to_json(without)


def test_an_ingest_that_began_before_a_constraint_runs_again() -> None:
    for change in ({"constraints": POSITIVE}, {"not_null_ids": (5,)}):
        table = create()
        run = start_ingest(table, Ingest(rows((1, 1, "I", -1.0, None))))
        assert not isinstance(run, JobResult)
        commit_spec(table, **change)
        source = run.asked.source
        fitted = source.append_column("_opal_deleted", pa.array([False]))
        outputs = write_segments(table, fitted, run)
        with pytest.raises(ConflictError, match="were not checked; run the ingest again"):
            commit_ingest(table.log, run, outputs)


def test_an_ingest_that_began_before_a_constraint_was_dropped_commits() -> None:
    table = create(["name"], POSITIVE)
    run = start_ingest(table, Ingest(rows((1, 1, "I", 1.0, "a"))))
    assert not isinstance(run, JobResult)
    commit_spec(table, constraints={}, not_null_ids=())
    fitted = run.asked.source.append_column("_opal_deleted", pa.array([False]))
    assert commit_ingest(table.log, run, write_segments(table, fitted, run)).version == 2


def test_stored_rows_count_as_long_as_they_are_visible_or_pending() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", -1.0, "a"), (2, 1, "I", 5.0, None)), metadata="inline")
    assert violations_of(table, constraints=POSITIVE) == {
        "constraint 'positive' is violated: amount > 0": 1
    }
    assert violations_of(table, not_null_ids=(5,)) == {
        "column 'name' is null, but it is declared NOT NULL": 1
    }
    table.ingest(rows((1, 2, "I", 1.0, "a"), (2, 2, "D", -5.0, None)), metadata="inline")
    assert violations_of(table, constraints=POSITIVE, not_null_ids=(5,)) == {}
    table.ingest(rows((3, 1, "I", -1.0, "c"), (4, 1, "D", -1.0, None)), token="waits")
    assert sum(violations_of(table, constraints=POSITIVE, not_null_ids=(5,)).values()) == 1
    table.discard(token="waits")
    assert violations_of(table, constraints=POSITIVE) == {}


def test_files_whose_bounds_prove_a_constraint_are_not_read() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", 1.0, "a"), (2, 1, "I", 5.0, "b")), metadata="inline")
    storage = table.storage
    assert isinstance(storage, MemoryStorage)
    [path] = table.snapshot_at().files
    storage.delete([path])
    assert violations_of(table, constraints=POSITIVE, not_null_ids=(5,)) == {}


def test_a_restore_of_rows_that_violate_a_later_constraint_is_refused() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", -1.0, "a")), metadata="inline")
    table.ingest(rows((1, 2, "I", 1.0, "a")), metadata="inline")
    commit_spec(table, constraints=POSITIVE)
    with pytest.raises(
        InvalidInputError, match="1 row of version 1 violates constraints that were"
    ):
        table.restore(version=1)
    commit_spec(table, constraints={})
    table.restore(version=1)
    assert table.read().column("amount").to_pylist() == [-1.0]


def test_check_reports_rows_that_violate_a_constraint() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", -1.0, "a")), metadata="inline")
    commit_spec(table, constraints=POSITIVE)
    [finding] = check_table(table)
    assert finding.invariant == "I35"
    assert "constraint 'positive' is violated: amount > 0" in finding.message
    assert check_table(table, quick=True) == []


def test_replay_checks_rows_again() -> None:
    table = create(constraints=POSITIVE)
    bad = rows((1, 1, "I", -1.0, "a"), (2, 1, "I", -2.0, "b"))
    asked = Ingest(bad, metadata="inline", on_bad_rows="quarantine")
    fitted = bad.append_column("_opal_deleted", pa.array([False, False]))
    ingest(table, lambda *_: fitted, asked, row_form=JsonForm(time_unit="us"))
    assert table.replay().counts["rows"] == 0
    commit_spec(table, constraints={"positive": "amount > -2"})
    assert table.replay().counts["rows"] == 1
    table.metagen()
    assert table.read().column("id").to_pylist() == [1]


def test_a_request_of_the_table_names_constraints_that_it_lacks() -> None:
    layout = partial(TableLayout, keys=["id"], delta="at", deletes="op = 'D'")
    made: TableSpec = plan_spec(SCHEMA, layout(not_null=["name"], constraints=POSITIVE))
    refuse_another_spec("t", made, None, layout())
    refuse_another_spec("t", made, None, layout(not_null=["name"]))
    requested = layout(not_null=["op"], constraints={"positive": "amount >= 0", "b": "id > 0"})
    with pytest.raises(InvalidInputError) as refused:
        refuse_another_spec("t", made, None, requested)
    message = str(refused.value)
    assert "column 'op' is not declared NOT NULL" in message
    assert "constraint 'positive' is 'amount > 0', not 'amount >= 0'" in message
    assert "constraint 'b' is missing" in message


def test_alter_adds_constraints_that_all_rows_meet() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", 1.0, "a")), metadata="inline")
    done = table.alter(
        [
            {"set_not_null": "name"},
            {"add_constraint": "positive", "check": "amount > 0"},
            {"set_not_null": "id"},
        ]
    )
    assert done.counts == {"not_null_set": 1, "constraints_added": 1}
    assert done.notes == (
        "column 'name' is now NOT NULL",
        "added constraint 'positive': amount > 0",
    )
    with pytest.raises(InvalidInputError, match="2 rows cannot go into the table"):
        table.ingest(rows((2, 1, "I", -1.0, "b"), (3, 1, "I", 1.0, None)), metadata="inline")
    table.alter([{"drop_constraint": "POSITIVE"}, {"drop_not_null": "name"}])
    table.ingest(rows((2, 1, "I", -1.0, "b"), (3, 1, "I", 1.0, None)), metadata="inline")
    assert check_table(table) == []


def test_alter_refuses_a_constraint_that_rows_violate() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", -1.0, "a")), metadata="inline")
    with pytest.raises(InvalidInputError) as refused:
        table.alter([{"add_constraint": "positive", "check": "amount > 0"}])
    assert "1 row of memory://unnamed violates the new constraints" in str(refused.value)
    assert '{"id": 1, "amount": -1.0}' in str(refused.value)
    assert table.snapshot_at().version == 1
    with pytest.raises(InvalidInputError, match="column 'new' is null, but it is declared NOT"):
        table.alter([{"add": "new", "type": "int"}, {"set_not_null": "new"}])


def test_alter_names_the_constraint_that_needs_a_column() -> None:
    table = create(["name"], POSITIVE)
    with pytest.raises(InvalidInputError, match="constraint 'positive' of the table needs it"):
        table.alter([{"drop": "amount"}])
    table.alter([{"rename": "amount", "to": "total sum"}, {"drop": "name"}])
    spec = table.snapshot_at().spec
    assert spec.constraints == {"positive": "`total sum` > 0"}
    assert spec.not_null_ids == ()
    with pytest.raises(InvalidInputError, match="'positive' exists already, with the condition"):
        table.alter([{"add_constraint": "positive", "check": "id > 0"}])
    with pytest.raises(InvalidInputError, match="no constraint 'x'; the table has 'positive'"):
        table.alter([{"drop_constraint": "x"}])
    with pytest.raises(InvalidInputError, match="is a key or the delta, which are never null"):
        table.alter([{"drop_not_null": "id"}])


def test_a_renamed_column_adds_no_constraint_for_a_running_ingest() -> None:
    table = create(constraints=POSITIVE)
    run = start_ingest(table, Ingest(rows((1, 1, "I", 1.0, "a"))))
    assert not isinstance(run, JobResult)
    table.alter([{"rename": "amount", "to": "total"}])
    fitted = run.asked.source.append_column("_opal_deleted", pa.array([False]))
    commit_ingest(table.log, run, write_segments(table, fitted, run))
    table.metagen()
    assert table.read().column("total").to_pylist() == [1.0]


def test_rows_of_an_ingest_that_wins_the_race_are_checked_before_the_constraint_is_added() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", 1.0, "a")), metadata="inline")
    checks: list[Any] = []

    class Late(InProcess):
        """An engine behind which another writer ingests a row that violates the constraint."""

        def run(self, task: Any, works: Any) -> Any:
            checks.append(works)
            if len(checks) == 1:
                table.ingest(rows((2, 1, "I", -1.0, "b")), metadata="inline")
            return InProcess.run(self, task, works)

    slow = Table(log=table.log, cache=table.cache, executor=Late())
    # The bounds of the files cannot prove it, so that they are read
    with pytest.raises(InvalidInputError, match="1 row of memory"):
        slow.alter([{"add_constraint": "positive", "check": "amount + 0 > 0"}])
    # The first file was read once: a repeat reads only newer ones
    [reads_of_repeat] = checks[-1]
    assert len(reads_of_repeat) == 1
    assert "positive" not in table.snapshot_at().spec.constraints


def test_a_request_with_the_names_of_the_creation_is_the_table_after_a_rename() -> None:
    table = create(["name"], POSITIVE)
    table.alter([{"rename": "amount", "to": "total"}, {"rename": "name", "to": "title"}])
    layout = TableLayout(
        keys=["id"], delta="at", deletes="op = 'D'", not_null=["name"], constraints=POSITIVE
    )
    refuse_another_spec("t", table.snapshot_at().spec, SCHEMA, layout)


def test_a_statement_that_makes_a_row_violate_a_constraint_changes_nothing() -> None:
    table = create(["name"], POSITIVE)
    table.ingest(rows((1, 1, "I", 1.0, "a"), (2, 1, "I", 5.0, "b")), metadata="inline")
    with pytest.raises(InvalidInputError) as refused:
        table.update(set={"amount": "amount - 3"}, where="name IN ('a', 'b')")
    message = str(refused.value)
    assert "the update would write 1 row that cannot go into the table, so nothing was" in message
    assert "1 row: constraint 'positive' is violated: amount > 0" in message
    assert '{"id": 1, "at": 1, "op": "I", "amount": -2.0, "name": "a"}' in message
    merge = table.merge(rows((2, 2, "U", 6.0, None), (3, 1, "I", 1.0, "c")), on="t.id = s.id")
    with pytest.raises(InvalidInputError, match=r"the merge .*\n.*column 'name' is null, but"):
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    with pytest.raises(InvalidInputError, match=r"the insert .*\n.*'positive' is violated"):
        table.insert(rows((4, 1, "I", 0.0, "d")))
    assert table.read().column("amount").to_pylist() == [1.0, 5.0]
    assert table.snapshot_at().version == 1
    # A delete is exempt, and so is an update that leaves the row as it should be
    table.delete(where="id = 1")
    table.update(set={"amount": "NULL"}, where="id = 2")
    assert table.read().column("amount").to_pylist() == [None]
    assert check_table(table) == []


def test_a_statement_that_began_before_a_constraint_runs_again_and_is_refused() -> None:
    table = create()
    table.ingest(rows((1, 1, "I", 1.0, "a")), metadata="inline")

    class Late(InProcess):
        """An engine behind which another writer adds a constraint."""

        def by_key_hash(self, *arguments: Any) -> Any:
            if not table.snapshot_at().spec.constraints:
                table.alter([{"add_constraint": "positive", "check": "amount > 0"}])
            return InProcess.by_key_hash(self, *arguments)

    slow = Table(log=table.log, cache=table.cache, executor=Late())
    with pytest.raises(InvalidInputError, match="constraint 'positive' is violated"):
        slow.update(set={"amount": -1.0})
    assert table.read().column("amount").to_pylist() == [1.0]
