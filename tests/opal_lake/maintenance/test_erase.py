"""Erasure: no file holds the rows afterwards, other keys stay, and a dead erasure is finished."""

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.data.rejects import BAD
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError
from opal_lake.layout import CLAIMS, LOG, claim_path
from opal_lake.log.checkpoint import checkpoint_paths
from opal_lake.log.commit import Actions
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.result import JobResult
from opal_lake.storage import open_storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_stream.formats.rows import DecodedRows
from opal_stream.gathered.file import Header, encode_gathered
from opal_stream.kafka.applications import Application
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_lake import shop
from tests.opal_lake.maintenance.erasing import folders_with
from tests.opal_lake.shop import LISTS_IN_FILES, Row, content, copied, latest, reopen, rows
from tests.opal_lake.test_crashes import run_until_done

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("at", pa.int64()),
        ("number", pa.int64()),
        ("amount", pa.decimal128(18, 4)),
        ("note", pa.string()),
    ]
)
SECRET, NUMBER, AMOUNT = "zz-unique-person", 7_654_321_987_654_321, Decimal("98765432101.2345")
MOMENT = 8_765_432_123_456  # the delta of a row of the person alone
VALUES = (SECRET, NUMBER, AMOUNT, MOMENT)
MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]


def _people(names: list[str], at: int) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "name": names,
        "at": [at] * len(names),
        "number": [NUMBER if name == SECRET else at for name in names],
        "amount": [AMOUNT if name == SECRET else Decimal(at) for name in names],
        "note": [f"of {name}" for name in names],
    }
    return pa.table(columns, schema=SCHEMA)


def _table_of_every_file(storage: MemoryStorage, file_format: str) -> Table:
    layout = TableLayout(
        keys=["name"],
        delta="at",
        deletes="note = 'gone'",
        file_format=file_format,
        properties={
            "checkpoint_commits": 3,
            "group_rows": 40,
            "key_store_fan_in": 3,
            "segment_rows": 4,
        },
    )
    tuning = replace(LISTS_IN_FILES, ingest_max_files=1, fold_at_logs=2)
    table = create_on(storage, plan_spec(SCHEMA, layout), tuning=tuning)
    for at in range(8):
        names = [SECRET, "anna", *(f"p{at}-{index}" for index in range(4))]
        table.ingest(_people(names, at), metadata="inline", token=f"t{at}")
    table.compact()
    for at in range(8, 12):
        table.ingest(_people([SECRET, "zoe"], at))
    table.metagen()
    bad = _people([SECRET, "bad"], 20).set_column(1, "at", pa.array([None, None], pa.int64()))
    table.ingest(bad, on_bad_rows="quarantine", metadata="inline")
    table.savepoint("before")
    gone = _people([SECRET], MOMENT).set_column(4, "note", pa.array(["gone"]))
    table.ingest(gone, metadata="inline")
    return table


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_no_file_holds_a_value_of_an_erased_key(file_format: str) -> None:
    storage = MemoryStorage()
    table = _table_of_every_file(storage, file_format)
    before = folders_with(storage, VALUES, SECRET)
    metadata = {"_opal/log", "_opal/log_pages", "_opal/checkpoints/sections", "_opal/side"}
    for value in (SECRET, NUMBER, AMOUNT):
        assert before[str(value)] == {"data", "_opal/rejected", *metadata}, value
    # The side file lists the files of an ingest that writes more than one
    of_order = {"data", "_opal/segment_logs", "_opal/key_store", *metadata} - {"_opal/side"}
    assert before[str(MOMENT)] == of_order
    assert before["hash"] == {"_opal/key_store"}
    assert any(storage.list("_opal/bitmaps/"))
    with pytest.raises(InvalidInputError, match=r"savepoints before \(\d+\).*release"):
        table.erase(f"number = {NUMBER}")
    table.release("before")
    others = [row for row in table.read().to_pylist() if row["name"] != SECRET]
    done = table.erase(f"number = {NUMBER}", token="e", grace="0s")
    assert (done.counts["remaining_files"], done.counts["rows"]) == (0, 13)
    assert folders_with(storage, VALUES, SECRET) == {}
    assert sorted(map(str, table.read().to_pylist())) == sorted(map(str, others))
    assert check_table(table) == []
    table.ingest(_people([SECRET], 3), metadata="inline")
    assert table.read(where=f"name = '{SECRET}'").num_rows == 1
    assert check_table(table) == []


def _new_table(storage: Any, **settings: Any) -> Table:
    layout = TableLayout(keys=["name"], delta="at", **settings)
    return create_on(storage, plan_spec(SCHEMA, layout))


def test_gathered_rows_from_before_an_erasure_are_files_that_remain() -> None:
    storage = MemoryStorage()
    table = _new_table(storage)
    table.ingest(_people([SECRET, "anna"], 1), metadata="inline")
    partition = Partition(topic="people", number=0)
    application = Application(stream="s", partition=partition, topic_id="topic")
    header = Header(
        table_id=table.snapshot_at().root.table_id,
        application=application,
        writer="w",
        consumed=Consumed(low=0, high=2),
        first=True,
    )
    good = _people([SECRET], 2).append_column(BAD, pa.nulls(1, pa.string()))
    gathered = DecodedRows(rows=good, schema=table.snapshot_at().spec.schema)
    storage.put_if_absent(header.path, encode_gathered(header, gathered))
    folder = header.path.rpartition("/")[0]
    assert folder in folders_with(storage, VALUES, SECRET)[SECRET]
    done = table.erase(f"name = '{SECRET}'", token="e", grace="0s")
    assert done.counts["remaining_files"] == 1
    assert "1 gathered file of streams from before the erasure may hold rows" in str(done.notes)
    assert folders_with(storage, VALUES, SECRET)[SECRET] == {folder}
    storage.delete([header.path])
    assert table.erase(f"name = '{SECRET}'", token="e", grace="0s").counts["remaining_files"] == 0
    later = header.path.replace("0.rows", "2.rows")
    storage.put_if_absent(later, b"of a flush after the erasure")
    assert table.erase(f"name = '{SECRET}'", token="e", grace="0s").counts["remaining_files"] == 0


def test_a_commit_that_names_a_partition_of_the_erased_rows_remains() -> None:
    storage = MemoryStorage()
    table = _new_table(storage, partition_by=["name"])
    table.ingest(_people([SECRET, "anna"], 1), metadata="inline")
    done = table.erase(f"name = '{SECRET}'", token="e", grace="0s")
    assert done.counts["remaining_files"] == 1
    assert "the commit of version 2 names folders of partitions without rows" in str(done.notes)
    assert folders_with(storage, VALUES, SECRET) == {SECRET: {"_opal/log"}}
    shared = _new_table(MemoryStorage(), partition_by=["note"])
    shared.ingest(
        _people([SECRET, "anna"], 1).set_column(4, "note", pa.array(["both", "both"])),
        metadata="inline",
    )
    assert shared.erase(f"name = '{SECRET}'", grace="0s").counts["remaining_files"] == 0


@dataclass(slots=True, kw_only=True)
class _StoreWithAJob(ForwardingStore):
    """A store in which a job begins, and writes a file, just before the first commit is put."""

    inner: Any
    claim: bytes
    path: str = ""

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        if path.startswith(LOG) and not self.path:
            claims = sum(1 for _ in self.inner.list(CLAIMS))
            self.inner.put_if_absent(claim_path(claims + 1), self.claim)
            self.path = f"data/{claims + 1:010d}-0123abcd-1.parquet"
            self.inner.put_if_absent(self.path, SECRET.encode())
        return ForwardingStore.put_if_absent(self, path, data)


def test_files_of_a_job_whose_age_is_unknown_remain() -> None:
    storage = MemoryStorage()
    _new_table(storage).ingest(_people([SECRET, "anna"], 1), metadata="inline")
    raced = _StoreWithAJob(inner=storage, claim=b"a damaged claim")
    done = reopen(raced, "e").erase(f"name = '{SECRET}'", token="e", grace="0s")
    assert done.counts["remaining_files"] == 1
    assert "1 file of jobs that began before the erasure may hold rows" in str(done.notes)
    assert SECRET.encode() in storage.get(raced.path)


def test_older_files_stay_until_the_grace_has_passed() -> None:
    storage = MemoryStorage()
    table = shop.create(storage)
    table.ingest(*rows([("ax", 1, 10), ("bow", 1, 20)]), metadata="inline")
    first = table.erase("sku = 'ax'", token="e")
    assert first.version == 2
    assert first.counts["remaining_files"] > 0
    assert "run the same erase again" in first.notes[0]
    assert content(table, version=1) == [("ax", 1, 10), ("bow", 1, 20)]
    again = table.erase("sku = 'ax'", token="e", grace="0s")
    assert (again.version, again.repeated, again.counts["remaining_files"]) == (2, True, 0)
    with pytest.raises(NotFoundError, match=r"version 1 .* has expired"):
        content(table, version=1)
    assert content(table) == [("bow", 1, 20)]


def test_a_repeat_without_a_token_finishes_the_erasure() -> None:
    table = shop.create(MemoryStorage())
    table.ingest(*rows([("ax", 1, 10), ("bow", 1, 20)]), metadata="inline")
    table.erase("sku = 'ax'")
    assert table.erase("sku = 'ax'").counts["remaining_files"] > 0
    assert table.snapshot_at().version == 2
    assert table.erase("sku = 'ax'", grace="0s").counts["remaining_files"] == 0
    assert folders_with(table.storage, (), "ax") == {}


def test_an_erasure_of_nothing_changes_nothing() -> None:
    table = shop.create(MemoryStorage())
    table.ingest(*rows([("ax", 1, 10)]), metadata="inline")
    done = table.erase("sku = 'xa'", grace="0s")
    assert done.version is None
    assert "nothing to erase" in done.notes[0]
    assert content(table, version=1) == [("ax", 1, 10)]


def test_a_dry_run_names_what_keeps_older_versions() -> None:
    table = shop.create(MemoryStorage())
    table.ingest(*rows([("ax", 1, 10)]), metadata="inline")
    table.savepoint("kept")
    table.ingest(*rows([("ax", 2, 11)]))
    planned = table.erase("price = 10", dry_run=True)
    assert planned.counts == {"keys": 1, "rows": 2, "files": 2}
    assert "savepoints kept (1)" in planned.notes[2]
    assert "1 row of the keys are pending" in planned.notes[3]
    table.release("kept")
    with pytest.raises(InvalidInputError, match="1 row to erase are pending"):
        table.erase("price = 10")


def test_a_savepoint_made_after_the_erasure_of_an_older_version_stops_the_cut() -> None:
    table = shop.create(MemoryStorage())
    table.ingest(*rows([("ax", 1, 10), ("bow", 1, 20)]), metadata="inline")
    table.erase("sku = 'ax'", token="e")
    table.savepoint("late", version=1)
    with pytest.raises(ConflictError, match=r"savepoints late \(1\) were made before"):
        table.erase("sku = 'ax'", token="e", grace="0s")
    table.release("late")
    assert table.erase("sku = 'ax'", token="e", grace="0s").counts["remaining_files"] == 0


def test_a_restore_of_the_rows_makes_the_erasure_start_again() -> None:
    table = shop.create(MemoryStorage())
    table.ingest(*rows([("ax", 1, 10), ("bow", 1, 20)]), metadata="inline")
    table.erase("sku = 'ax'", token="e")
    table.restore(version=1)
    with pytest.raises(ConflictError, match="version 3 restored version 1"):
        table.erase("sku = 'ax'", token="e", grace="0s")
    assert table.erase("sku = 'ax'", token="f", grace="0s").counts["remaining_files"] == 0
    assert folders_with(table.storage, (), "ax") == {}
    assert content(table) == [("bow", 1, 20)]
    assert check_table(table) == []


def _die_after_commit(storage: MemoryStorage) -> None:
    """Let a retention of everything but the newest version die just after its commit."""

    def retain(target: Any) -> None:
        table_on(target).retain(window="0s", grace="0s")

    dry = FailingStore(copied(storage, MemoryStorage()))
    retain(dry)
    commits = [
        number
        for number, call in enumerate(dry.trace, 1)
        if call.verb == "put_if_absent" and call.path.startswith(LOG)
    ]
    with pytest.raises(Crash):
        retain(FailingStore(storage, commits[0], "after"))


def test_an_erasure_finishes_what_a_dead_retention_left() -> None:
    storage = MemoryStorage()
    table = _new_table(storage)
    table.ingest(_people([SECRET, "anna"], 1), metadata="inline")
    table.erase(f"name = '{SECRET}'", token="e")
    table.ingest(_people(["zoe"], 2), metadata="inline")
    _die_after_commit(storage)
    assert table.snapshot_at().root.oldest_version == 3
    assert folders_with(storage, VALUES, SECRET)[SECRET] >= {"data", LOG.rstrip("/")}
    done = table.erase(f"name = '{SECRET}'", token="e", grace="0s")
    assert (done.version, done.counts["remaining_files"]) == (2, 0)
    assert folders_with(storage, VALUES, SECRET) == {}
    assert check_table(table) == []


@pytest.mark.parametrize("token", ["e", "again", None])
def test_a_retention_keeps_no_checkpoint_from_before_an_erasure(token: str | None) -> None:
    storage = MemoryStorage()
    table = _new_table(storage, properties={"checkpoint_commits": 4})
    for at in range(4):
        table.ingest(_people([SECRET, "anna"], at), metadata="inline")
    assert table.erase(f"name = '{SECRET}'", token="e").version == 5
    for at in (5, 6):
        table.ingest(_people(["zoe"], at), metadata="inline")
    assert "_opal/checkpoints" in str(folders_with(storage, VALUES, SECRET)[SECRET])
    table.retain(window="0s", grace="0s")
    assert folders_with(storage, VALUES, SECRET) == {}
    done = table.erase(f"name = '{SECRET}'", token=token, grace="0s")
    assert done.counts.get("remaining_files", 0) == 0
    assert check_table(table) == []


def test_a_retention_writes_the_checkpoint_that_an_erasure_could_not_write() -> None:
    storage = MemoryStorage()
    table = _new_table(storage, properties={"checkpoint_commits": 4})
    for at in range(4):
        table.ingest(_people([SECRET, "anna"], at), metadata="inline")
    table.erase(f"name = '{SECRET}'", token="e")
    for at in (5, 6):
        table.ingest(_people(["zoe"], at), metadata="inline")
    newest = next(checkpoint_paths(storage))
    storage.delete([newest])
    table.retain(window="0s", grace="0s")
    assert newest not in checkpoint_paths(storage)
    assert folders_with(storage, VALUES, SECRET) == {}
    assert check_table(table) == []


def test_rows_that_left_the_newest_version_are_erased_from_older_ones() -> None:
    storage = MemoryStorage()
    table = _new_table(storage)
    table.ingest(_people(["anna", "bob"], 1), metadata="inline")
    assert table.erase("name = 'bob'", token="other").version == 2
    table.ingest(_people([SECRET], 1), metadata="inline")
    table.restore(version=2)
    planned = table.erase(f"name = '{SECRET}'", dry_run=True)
    assert planned.counts == {"keys": 1, "rows": 1, "files": 0}
    assert "are in 1 file of older ones" in str(planned.notes)
    done = table.erase(f"name = '{SECRET}'", grace="0s")
    assert (done.version, done.counts["rows"], done.counts["remaining_files"]) == (5, 1, 0)
    assert folders_with(storage, VALUES, SECRET) == {}
    assert check_table(table) == []


def test_rows_that_came_after_an_erasure_are_files_that_remain() -> None:
    table = _new_table(MemoryStorage())
    table.ingest(_people([SECRET, "anna"], 1), metadata="inline")
    erase = partial(table.erase, f"name = '{SECRET}'", grace="0s")
    assert erase(token="e").counts["remaining_files"] == 0
    table.ingest(_people([SECRET], 2), metadata="inline")
    done = erase(token="e")
    assert (done.version, done.counts["remaining_files"]) == (2, 1)
    assert "1 row of the keys, in 1 file, came after the first call" in str(done.notes)
    assert table.read(where=f"name = '{SECRET}'").num_rows == 1
    erase(token="f")
    assert folders_with(table.storage, VALUES, SECRET) == {}
    assert erase(token="e").counts["remaining_files"] == 0


def test_rows_that_came_after_an_erasure_of_nothing_are_files_that_remain() -> None:
    table = _new_table(MemoryStorage())
    table.ingest(_people(["anna", "bob"], 1), metadata="inline")
    erase = partial(table.erase, f"name = '{SECRET}'", token="e", grace="0s")
    assert erase().counts == {}
    table.ingest(_people([SECRET], 2), metadata="inline")
    done = erase()
    assert (done.version, done.counts["remaining_files"]) == (None, 1)


def test_rows_of_a_restore_that_has_expired_are_files_that_remain() -> None:
    table = _new_table(MemoryStorage(), properties={"checkpoint_commits": 2})
    table.ingest(_people([SECRET, "anna"], 1), metadata="inline")
    table.erase(f"name = '{SECRET}'", token="e")
    table.restore(version=1)
    for at in range(2, 8):
        table.ingest(_people(["zoe"], at), metadata="inline")
    table.retain(window="0s", grace="0s")
    assert next(table.commits()).version > 3
    assert table.erase(f"name = '{SECRET}'", token="e").counts["remaining_files"] == 1


def test_no_digest_of_the_log_names_a_partition_of_the_erased_rows() -> None:
    storage = MemoryStorage()
    table = _new_table(storage, partition_by=["name"])
    for at in range(9):
        table.ingest(_people([SECRET, "anna"], at), metadata="inline")
    table.retain()
    assert "_opal/digests" in folders_with(storage, VALUES, SECRET)[SECRET]
    done = table.erase(f"name = '{SECRET}'", token="e", grace="0s")
    assert done.counts["remaining_files"] == 1
    assert folders_with(storage, VALUES, SECRET) == {SECRET: {"_opal/log"}}


FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30), ("dye", 5, 40)]
SECOND: list[Row] = [("ax", 2, 11), ("bow", 3, None), ("cup", 0, 29), ("elk", 2, 50)]


def _erase(storage: Any, writer: str) -> None:
    table = reopen(storage, writer, tuning=LISTS_IN_FILES)
    table.erase("sku = 'ax' OR sku = 'bow'", token="erase", grace="0s")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_dead_erasure_is_finished_by_a_repeat(mode: Mode, request: Any) -> None:
    numbers = iter(range(100_000))

    def fresh() -> Any:
        return open_storage(f"memory://{request.node.name}-{next(numbers)}")

    begun = fresh()
    properties = {"checkpoint_commits": 2, "segment_rows": 3, "key_store_fan_in": 2}
    table = shop.create(begun, tuning=LISTS_IN_FILES, **properties)
    for batch in (FIRST, SECOND):
        table.ingest(*rows(batch), metadata="inline")
    dry = FailingStore(copied(begun, fresh()))
    _erase(dry, "dry")
    expected = [row for row in latest([FIRST, SECOND]) if row[0] not in ("ax", "bow")]
    for fail_at in range(1, len(dry.trace) + 1):
        storage = copied(begun, fresh())
        run_until_done(_erase, FailingStore(storage, fail_at, mode), storage)
        _erase(storage, "again")
        where = (mode, fail_at, dry.trace[fail_at - 1])
        reader = reopen(storage, "reader")
        assert content(reader) == expected, where
        assert folders_with(storage, (), "ax") == {}, where
        assert check_table(reader) == [], where
        erasures = [commit for commit in reader.commits() if commit.operation == "erase"]
        assert len(erasures) == 1, where


def test_a_job_that_began_before_an_erasure_cannot_bring_entries_back() -> None:
    storage = MemoryStorage()
    table = shop.create(storage, key_store_fan_in=2)
    for at in range(3):
        table.ingest(*rows([("ax", at, 1), ("bow", at, 2)]), metadata="inline")
    base = table.snapshot_at()
    table.erase("sku = 'ax'")
    with pytest.raises(ConflictError, match="erased rows while this compact ran"):
        _commit_late(table, base)


def _commit_late(table: Table, base: Any) -> None:
    result = JobResult(operation="compact", table=table.uri)
    proposal = Proposal(
        operation="compact",
        number=None,
        build=lambda head, winners: Draft(actions=Actions(), result=result),
        started_us=0,
    )
    table.log.commit(base, proposal)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["ax", "bow", "cup", "dye"]),
        st.integers(0, 9),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row[:2],
)
STEPS = st.lists(
    st.one_of(
        ROWS,
        st.sampled_from(["compact"]),
        st.tuples(st.just("erase"), st.sampled_from(["ax", "bow", "cup"])),
    ),
    min_size=2,
    max_size=9,
)


def _without(batch: list[Row], key: str) -> list[Row]:
    return [row for row in batch if row[0] != key]


@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_other_keys_read_as_before_at_every_event_time(steps: list[Any]) -> None:
    create = partial(shop.create, checkpoint_commits=2, key_store_fan_in=2, segment_rows=2)
    table = create(MemoryStorage())
    batches: list[list[Row]] = []
    for step in steps:
        if step == "compact":
            table.compact()
        elif isinstance(step, tuple):
            _, key = step
            table.erase(f"sku = '{key}'", grace="0s")
            batches = [_without(batch, key) for batch in batches]
            assert folders_with(table.storage, (), key) == {}
        else:
            table.ingest(*rows(step), metadata="inline")
            batches.append(step)
        for moment in range(10):
            assert content(table, event_time=moment) == latest(batches, moment)
        assert content(table) == latest(batches)
    assert check_table(table) == []
