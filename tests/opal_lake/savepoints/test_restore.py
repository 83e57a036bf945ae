"""Restore: what it brings back and takes away, what it leaves, and who has to yield to it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.log.checkpoint import checkpoint_paths, read_checkpoint
from opal_lake.log.commit import encode_commit
from opal_lake.maintenance.compaction import Compaction
from opal_lake.operations.compact import Compact
from opal_lake.operations.ingest import Ingest
from opal_lake.savepoints.restore import restore
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.ingest_job import commit_ingest, start_ingest, write_inline
from tests.kit.check import check_table
from tests.kit.executors import Interrupted
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.ids import CountingIds
from tests.opal_lake.log.build import Counting
from tests.opal_lake.shop import LISTS_IN_FILES, Row, content, copied, create, latest, reopen, rows

BATCHES: list[list[Row]] = [
    [("ax", 1, 10), ("bow", 1, 20)],
    [("ax", 2, 11)],
    [("bow", 3, None), ("cup", 3, 30)],
    [("ax", 4, 12)],
]


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"memory://{request.node.name}")


@pytest.fixture
def table(storage: Storage) -> Table:
    """Versions 1 to 4, a batch each."""
    spec = (
        create(open_storage(f"{storage.uri}-spec"), checkpoint_commits=3, fold_files=0)
        .snapshot_at()
        .spec
    )
    table = create_on(storage, spec, ManualClock(), CountingIds())
    for batch in BATCHES:
        table.ingest(*rows(batch), metadata="inline")
    return table


@pytest.mark.parametrize("version", range(4))
def test_any_version_comes_back_and_the_restore_is_undone_by_another(
    table: Table, version: int
) -> None:
    planned, done = table.restore(version=version, dry_run=True), table.restore(version=version)
    assert (planned.version, done.version, planned.counts) == (None, 5, done.counts)
    assert content(table) == latest(BATCHES[:version])
    assert [content(table, version=older) for older in range(5)] == [
        latest(BATCHES[:older]) for older in range(5)
    ]
    table.ingest(*rows([("ax", 3, 99)]), metadata="inline")
    assert content(table) == latest([*BATCHES[:version], [("ax", 3, 99)]])
    assert table.restore(version=4).version == 7
    assert content(table) == latest(BATCHES)
    assert check_table(table) == []


def test_restore_accepts_a_time_or_a_savepoint(table: Table) -> None:
    table.savepoint("good", 2)
    table.restore(savepoint="good")
    assert content(table) == latest(BATCHES[:2])
    table.restore(
        timestamp=datetime.fromtimestamp(table.log.read_commit(3).timestamp_us / 1_000_000, UTC)
    )
    assert content(table) == latest(BATCHES[:3])


@pytest.mark.parametrize(
    "named, error, said",
    [
        ({}, InvalidInputError, "one of version, timestamp and savepoint, got none of them"),
        ({"version": 1, "savepoint": "a"}, InvalidInputError, "got version, savepoint"),
        ({"version": 9}, NotFoundError, "has no version 9; the readable versions are 0 to 4"),
        ({"version": -1}, InvalidInputError, "version=-1 is not a version"),
        (
            {"savepoint": "bad"},
            NotFoundError,
            "no savepoint 'bad', nor any other; pass a version that `opal history` lists",
        ),
        ({"timestamp": "1999-01-01T00:00:00Z"}, NotFoundError, "no readable version as of 1999"),
    ],
)
def test_an_impossible_restore_is_refused_and_writes_nothing(
    table: Table, named: dict[str, object], error: type[Exception], said: str
) -> None:
    before = list(table.storage.list(""))
    for dry_run in (True, False):
        with pytest.raises(error, match=said):
            table.restore(**named, dry_run=dry_run)  # type: ignore[arg-type]  # the cases are wrong on purpose
    assert list(table.storage.list("")) == before


def test_a_restore_of_rows_that_are_shown_already_commits_nothing(table: Table) -> None:
    table.compact()
    assert table.restore(version=4).version is None
    result = table.restore(version=4, token="t")
    assert (result.version, result.notes) == (
        None,
        ("the newest version already shows the same rows as version 4",),
    )
    restored = table.restore(version=2)
    again = table.restore(version=2)
    assert (again.version, again.notes) == (
        None,
        ("the newest version already shows the same rows as version 2",),
    )
    assert table.log.head().version == restored.version
    assert table.restore(version=4, token="t").repeated


def test_a_retry_restores_once_and_a_retry_of_an_undone_ingest_ingests_nothing(
    table: Table,
) -> None:
    table.ingest(*rows([("dye", 5, 50)]), metadata="inline", token="dye", application=("stream", 7))
    assert table.restore(version=4, token="back").version == 6
    table.ingest(*rows([("elk", 6, 60)]), metadata="inline")
    repeated = table.restore(version=4, token="back")
    assert (repeated.version, repeated.repeated) == (6, True)
    assert table.ingest(*rows([("dye", 5, 50)]), metadata="inline", token="dye").repeated
    assert table.ingest(
        *rows([("dye", 5, 50)]), metadata="inline", application=("stream", 7)
    ).repeated
    assert content(table) == latest([*BATCHES, [("elk", 6, 60)]])


def test_a_retry_needs_neither_the_savepoint_nor_the_version_any_more(table: Table) -> None:
    table.savepoint("good", 2)
    by_name = table.restore(savepoint="good", token="by name")
    by_number = table.restore(version=3, token="by number")
    table.release("good")
    table.ingest(*rows([("elk", 6, 60)]), metadata="inline")
    table.retain(window="0s", grace="0s")
    assert table.log.head().root.oldest_version > 3
    again = table.restore(savepoint="good", token="by name")
    assert (again.version, again.repeated) == (by_name.version, True)
    again = table.restore(version=3, token="by number")
    assert (again.version, again.repeated) == (by_number.version, True)
    with pytest.raises(NotFoundError, match="has no savepoint 'good'"):
        table.restore(savepoint="good", token="by name", dry_run=True)


def test_a_repeat_of_an_undone_ingest_has_a_note(table: Table) -> None:
    first = table.ingest(*rows([("dye", 5, 50)]), metadata="inline", token="dye")
    table.restore(version=4)
    repeated = table.ingest(*rows([("dye", 5, 50)]), metadata="inline", token="dye")
    note = (
        "version 6, a restore of version 4, undid version 5, the ingest with token 'dye'. A repeat "
        "with this token ingests nothing: to bring the rows back, ingest them again with another "
        "token"
    )
    assert repeated == replace(first, repeated=True, notes=(note,))
    with pytest.raises(InvalidInputError, match="nothing to discard: version 6, a restore of"):
        table.discard(token="dye")
    table.restore(version=5)
    assert table.ingest(*rows([("dye", 5, 50)]), token="dye") == replace(first, repeated=True)


def test_a_repeat_of_an_undone_ingest_reads_pages_of_the_log(storage: Storage) -> None:
    table = create(storage, checkpoint_commits=10)
    table.ingest(*rows([("ax", 1, 1)]), metadata="inline", token="ax")
    table.restore(version=0)
    for number in range(200):
        table.savepoint(f"s{number}", 0)
    counting = Counting(storage)
    assert reopen(counting, "r").ingest(*rows([]), token="ax").notes
    assert len(counting.asked) < 60


@pytest.mark.parametrize("seed", range(6))
def test_the_note_of_a_repeat_names_why_its_rows_are_not_in_the_table(
    storage: Storage, seed: int
) -> None:
    """Repeats equal a model with the tokens and discarded tokens of each version."""
    random = Random(seed)
    table = create(storage)
    states: list[tuple[set[str], set[str]]] = [(set(), set())]
    for number in range(25):
        has, discarded = states[-1]
        choice = random.choice(["ingest", "ingest", "discard", "restore"])
        if choice == "restore":
            version = random.randrange(len(states))
            if table.restore(version=version).version is not None:
                states.append(states[version])
        elif choice == "discard" and has:
            token = random.choice(sorted(has))
            table.discard(token=token)
            states.append((has - {token}, discarded | {token}))
        else:
            table.ingest(*rows([("ax", number, number)]), token=f"t{number}")
            states.append((has | {f"t{number}"}, discarded))
    has, discarded = states[-1]
    for token in sorted(set().union(*(tokens for tokens, _ in states))):
        if token in discarded:
            with pytest.raises(InvalidInputError, match="discarded the rows"):
                table.ingest(*rows([]), token=token)
        else:
            repeated = table.ingest(*rows([]), token=token)
            assert (repeated.repeated, repeated.notes == ()) == (True, token in has)


def test_a_restore_brings_back_pending_rows_and_removes_later_ones(table: Table) -> None:
    table.ingest(*rows([("dye", 5, 50)]))
    table.metagen()
    table.ingest(*rows([("elk", 6, 60)]))
    result = table.restore(version=5)
    assert [note.split(" of version")[0] for note in result.notes[1:]] == [
        "the restore also removed 1 row that waited for a metagen",
        ("pending again as in version 5: 1 row; run a metagen that takes their partition key"),
    ]
    assert content(table) == latest(BATCHES)
    table.metagen()
    assert content(table) == latest([*BATCHES, [("dye", 5, 50)]])
    assert check_table(table) == []


def test_the_partition_key_of_an_undone_ingest_stays_known(storage: Storage) -> None:
    table = create(storage)
    pending = table.ingest(*rows([("ant", 1, 10)]), partition_key="2026-11-01")
    table.metagen(partition_key="2026-11-01")
    undone = table.restore(version=0)
    table.restore(version=pending.version)
    table.restore(version=undone.version)
    assert [*table.log.head().partitions] == ["2026-11-01"]
    assert check_table(table) == []


def test_a_job_that_runs_meanwhile_fails_and_does_it_again(table: Table, storage: Storage) -> None:
    run = start_ingest(table, Ingest([], metadata="inline", token="t"))
    assert not hasattr(run, "counts")
    outputs, rule_outputs = write_inline(
        table, rows([("dye", 5, 50)])[0].append_column("_opal_deleted", [[False]]), run
    )
    reopen(storage).restore(version=1)
    with pytest.raises(
        ConflictError, match="version 5 restored an older state while this ingest ran; "
    ):
        commit_ingest(table.log, run, outputs, rule_outputs)
    table.ingest(*rows([("dye", 5, 50)]), metadata="inline", token="t")
    assert content(table) == latest([BATCHES[0], [("dye", 5, 50)]])
    assert check_table(table) == []


def test_the_feed_has_the_rows_that_a_restore_removed_and_brought_back(table: Table) -> None:
    table.restore(version=1)
    changes = {
        (row["_change_type"], row["sku"], row["price"]) for row in table.changes(5, 5).to_pylist()
    }
    assert changes == {
        ("update_preimage", "ax", 12),
        ("update_postimage", "ax", 10),
        ("insert", "bow", 20),
        ("delete", "cup", 30),
    }
    assert table.changes(2, 5, mode="netChanges").num_rows == 0
    assert table.changes(2, 5).num_rows == 2 + 2 + 2 + 4


def test_rows_that_a_major_compaction_dropped_come_back(table: Table) -> None:
    table.compact(mode="major", look_back=0)
    floor = table.snapshot_at().root.floor
    head = table.snapshot_at().version
    assert table.restore(version=2).counts == {"rows_restored": 2, "rows_removed": 2}
    assert content(table) == latest(BATCHES[:2])
    assert table.snapshot_at().root.floor == floor
    changes = {
        (row["_change_type"], row["sku"], row["price"])
        for row in table.changes(head + 1, head + 1).to_pylist()
    }
    assert changes == {
        ("update_preimage", "ax", 12),
        ("update_postimage", "ax", 11),
        ("delete", "cup", 30),
        ("insert", "bow", 20),
    }
    assert table.changes(3, head + 1, mode="netChanges").num_rows == 0
    assert check_table(table) == []


@pytest.mark.parametrize("between", [1, 2])
def test_a_major_compaction_ends_when_a_restore_comes_between_its_commits(
    table: Table, between: int
) -> None:
    """The compaction would remove the events of rows that the restore brought back."""

    def others() -> None:
        if restores:
            restores.pop()()

    restores: list[Callable[[], object]] = [
        lambda: reopen(table.storage).restore(version=1),
        *[lambda: None] * (between - 1),
    ]
    job = Compaction(
        table=replace(table, executor=Interrupted(after=others, attempt="0")),
        asked=Compact(),
        floor=5,
    )
    with pytest.raises(ConflictError, match="restored"):
        job.run()
    assert content(table) == latest(BATCHES[:1])
    assert check_table(table) == []


def test_a_restore_that_changes_pending_rows_alone_does_not_change_the_view(table: Table) -> None:
    table.ingest(*rows([("dye", 5, 50)]))
    head = table.snapshot_at()
    assert table.restore(version=4).version == head.version + 1
    assert table.snapshot_at().root.viewed == head.root.viewed
    assert not table.log.read_commit(head.version + 1).changes_view


@pytest.mark.parametrize("late", [False, True])
def test_retention_keeps_restored_files(table: Table, late: bool) -> None:
    """The state may be known without the restore itself."""
    table.compact()
    table.restore(version=2)
    if late:
        table.ingest(*rows([("elk", 6, 60)]), metadata="inline")
    for _ in range(2):
        table.retain(window="0s", grace="0s")
    assert content(table) == latest([*BATCHES[:2], *([[("elk", 6, 60)]] if late else [])])
    assert check_table(table) == []
    assert {
        table.log.read_commit(version).operation for version in (table.snapshot_at().version,)
    } == {"retain"}


def test_a_version_that_expires_during_its_restore_is_refused(table: Table) -> None:
    state = table.snapshot_at(1)
    table.retain(window="0s", grace="0s")
    with pytest.raises(
        NotFoundError, match="version 1 has expired meanwhile; restore a readable version: 4 to"
    ):
        restore(table, state)


def test_reads_need_no_log_behind_the_checkpoint_of_a_restore(table: Table) -> None:
    table.restore(version=2)
    checkpoint = read_checkpoint(table.storage, None)
    assert checkpoint is not None
    assert (checkpoint.version, checkpoint.root.epoch) == (5, 1)


def test_repeated_restores_show_the_rows_of_each_restored_version(storage: Storage) -> None:
    """A restore removes items of a part far below its own, also a second time."""
    table = create(storage, checkpoint_commits=1, fold_files=0, tuning=LISTS_IN_FILES)
    batches = [[(f"sku {number:02}", 1, number)] for number in range(24)]
    for batch in batches:
        table.ingest(*rows(batch), metadata="inline")
    for version in (22, 24, 22, 24, 23, 24, 22):
        table.restore(version=version)
        assert content(reopen(storage)) == latest(batches[:version])
    assert check_table(table) == []


@pytest.mark.parametrize(
    "damage, said",
    [
        (
            lambda restored: replace(restored, rows=restored.rows + 1),
            "its rows is 4, of version 2 3",
        ),
        (lambda restored: replace(restored, version=1), "its files are not those of version 1"),
        (lambda restored: replace(restored, version=6), "which is not older"),
    ],
)
def test_check_finds_a_restore_that_differs_from_its_version(
    table: Table, damage: Callable[..., object], said: str
) -> None:
    table.restore(version=2)
    path = layout.commit_path(5)
    commit = table.log.read_commit(5)
    actions = replace(commit.actions, restored=damage(commit.actions.restored))  # type: ignore[arg-type]  # one of the above
    table.storage.delete([path])
    table.storage.put_if_absent(path, encode_commit(replace(commit, actions=actions)))
    assert any(
        finding.invariant == "I26" and said in finding.message for finding in check_table(table)
    )


def test_ten_concurrent_restores_leave_the_rows_of_one_version(tmp_path: Path) -> None:
    """Each restores or reports that another was first; the table shows one version."""
    storage = open_storage(str(tmp_path / "t"))
    table = create(storage)
    for batch in BATCHES:
        table.ingest(*rows(batch), metadata="inline")

    def restore_as(number: int) -> int:
        try:
            return (
                table_on(open_storage(storage.uri))
                .restore(version=number % 4, token=f"r{number}")
                .version
                or 0
            )
        except ConflictError:
            return -1

    with ThreadPoolExecutor(10) as pool:
        versions = list(pool.map(restore_as, range(10)))
    done = [version for version in versions if version > 0]
    assert sorted(done) == list(range(5, 5 + len(done)))
    last = versions.index(max(versions))
    assert content(table) == latest(BATCHES[: last % 4])
    assert check_table(table) == []


@pytest.mark.parametrize("first, mode", [*enumerate(get_args(Mode), start=1)])
def test_a_failure_at_a_call_costs_nothing_but_a_rerun(
    first: int, mode: Mode, request: pytest.FixtureRequest
) -> None:
    """Each call in one of the ways."""
    table = create(
        open_storage(f"memory://{request.node.name}"), checkpoint_commits=2, tuning=LISTS_IN_FILES
    )
    for batch in BATCHES:
        table.ingest(*rows(batch), metadata="inline")
    table.compact(mode="major", look_back=0)
    begun = table.storage

    def prepared(name: str) -> Storage:
        return copied(begun, open_storage(f"memory://{request.node.name}-{name}"))

    def run(storage: Storage, writer: str) -> int | None:
        table = reopen(storage, writer, tuning=LISTS_IN_FILES)
        return table.restore(version=2, token="back").version

    dry = FailingStore(prepared("dry"))
    done = run(dry, "dry")
    for fail_at in range(first, len(dry.trace) + 1, 4):
        storage = prepared(str(fail_at))
        with suppress(Crash, StorageError, CommitUnknownError):
            run(FailingStore(storage, fail_at, mode), "first")
        assert [run(storage, "second"), run(storage, "third")] == [done, done], dry.trace[
            fail_at - 1
        ]
        table = reopen(storage, "reader")
        assert content(table) == latest(BATCHES[:2])
        assert [commit.operation for commit in table.commits()].count("restore") == 1
        assert check_table(table) == []


def test_business_snapshots_stay_as_they_are_and_go_on(storage: Storage) -> None:
    table = create(storage)
    table.ingest(*rows([("ax", 1, 10)]), metadata="inline", business_snapshot="2022-07-15")
    table.ingest(*rows([("ax", 2, 20)]), business_snapshot="2022-07-16")  # held back
    table.restore(version=1)
    table.ingest(*rows([("bow", 3, 30)]), business_snapshot="2022-07-16")
    table.metagen()
    assert content(table) == [("ax", 1, 10), ("bow", 3, 30)]
    assert content(table, business_snapshot="2022-07-15") == [("ax", 1, 10)]
    table.restore(version=2)
    assert table.snapshot_at().root.business.finished == ("2022-07-15",)
    table.metagen()
    assert content(table) == [("ax", 2, 20)], "its business snapshot is not held back any more"
    table.ingest(*rows([("cup", 4, 40)]), metadata="inline", business_snapshot="2022-07-17")
    assert content(table) == [("ax", 2, 20), ("cup", 4, 40)]
    assert check_table(table) == []


def test_a_restore_that_names_bitmap_bases_of_another_version_is_found(storage: Storage) -> None:
    table = create(storage, checkpoint_commits=2, fold_files=0)
    for hour in range(1, 13):
        table.ingest(*rows([("ax", hour, hour)]), metadata="inline")
    later = table.snapshot_at().bases
    assert later
    restored = table.restore(version=6).version
    assert restored is not None
    assert table.snapshot_at().logs
    assert check_table(table) == []
    commit = table.log.read_commit(restored)
    actions = commit.actions
    assert actions.restored is not None
    forged = replace(actions, restored=replace(actions.restored, bases=later))
    own = [
        path for path in checkpoint_paths(storage) if layout.checkpoint_version(path) == restored
    ]
    storage.delete([*own, layout.commit_path(restored)])
    storage.put_if_absent(
        layout.commit_path(restored), encode_commit(replace(commit, actions=forged))
    )
    assert {finding.invariant for finding in check_table(reopen(storage))} == {"I8"}


def _only_of(table: Table, version: int) -> str:
    """Return a data file that a version has and the newest one lacks."""
    newest = table.snapshot_at().files
    return next(path for path in table.snapshot_at(version).files if path not in newest)


def _damaged(data: bytes, damage: str) -> bytes | None:
    flipped = data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]
    return {"missing": None, "cut": data[:-9], "longer": data + b"x", "flipped": flipped}[damage]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("damage", ["missing", "cut", "longer", "flipped"])
def test_restore_commits_nothing_if_a_file_that_it_brings_back_is_damaged(
    table: Table, damage: str, dry_run: bool
) -> None:
    table.compact()
    path, newest, before = _only_of(table, 2), table.snapshot_at().version, content(table)
    damaged = _damaged(table.storage.get(path), damage)
    table.storage.delete([path])
    if damaged is not None:
        assert table.storage.put_if_absent(path, damaged)
    with pytest.raises(FormatError, match=path) as error:
        table.restore(version=2, dry_run=dry_run)
    assert "version 2 cannot be restored" in str(error.value)
    assert (table.snapshot_at().version, content(table)) == (newest, before)


def test_restore_of_many_files_lists_them_and_names_missing_ones(storage: Storage) -> None:
    table = create(storage, checkpoint_commits=4, fold_files=0)
    for hour in range(1, 40):
        table.ingest(*rows([(f"sku{hour}", hour, hour)]), metadata="inline")
    version = table.snapshot_at().version
    table.compact()
    table.ingest(*rows([("later", 50, 50)]), metadata="inline")
    path = _only_of(table, version)
    data = storage.get(path)
    storage.delete([path])
    with pytest.raises(FormatError, match=f"{path} is missing"):
        table.restore(version=version)
    storage.put_if_absent(path, data + b"x")
    with pytest.raises(FormatError, match=f"{path} does not have the"):
        table.restore(version=version)
    storage.delete([path])
    storage.put_if_absent(path, data)
    assert table.restore(version=version).version is not None
    assert check_table(table) == []


def test_error_of_a_restore_names_a_version_whose_files_are_whole(table: Table) -> None:
    table.compact()
    path = (table.snapshot_at(2).files.keys() - table.snapshot_at(1).files.keys()).pop()
    assert path not in table.snapshot_at().files
    table.storage.delete([path])
    with pytest.raises(FormatError, match="or restore version 1, whose files are whole"):
        table.restore(version=2)
    table.restore(version=1)
    assert content(table) == latest(BATCHES[:1])
