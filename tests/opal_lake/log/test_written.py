"""A writer goes on from the version that it wrote last, as long as that is still in the log."""

import pickle
import shutil
from pathlib import Path

from opal_lake.log.commit_log import Written
from opal_lake.storage import open_storage
from opal_lake.storage.memory import MemoryStorage
from tests.kit.check import check_table
from tests.kit.failing_store import FailingStore
from tests.opal_lake.shop import content, create, reopen, rows


def test_an_ingest_reads_no_checkpoint_where_it_wrote_the_newest_version() -> None:
    store = FailingStore(MemoryStorage())
    table = create(store, checkpoint_commits=2)
    for at in range(4):
        store.trace.clear()
        table.ingest(*rows([("a", at, at)]), metadata="inline")
    assert not [
        call
        for call in store.trace
        if call.verb == "list" or (call.verb == "get" and "checkpoints" in call.path)
    ]
    assert len([call for call in store.trace if call.verb == "get" and "/log/" in call.path]) <= 4
    assert check_table(table) == []


def test_writer_finds_commits_of_others_and_a_table_that_was_created_again(
    tmp_path: Path,
) -> None:
    storage = open_storage(str(tmp_path / "table"))
    table = create(storage, checkpoint_commits=2)
    table.ingest(*rows([("a", 1, 1)]), metadata="inline")
    for at in range(2, 30):
        reopen(storage, f"rival-{at}").ingest(*rows([("a", at, at)]), metadata="inline")
        if at % 13 == 0:
            before = reopen(storage).log.head().version
            assert table.ingest(*rows([("b", at, at)]), metadata="inline").version == before + 1
    assert content(table) == [("a", 29, 29), ("b", 26, 26)]
    assert check_table(table) == []
    shutil.rmtree(tmp_path / "table")
    create(storage)
    assert table.ingest(*rows([("c", 1, 1)]), metadata="inline").version == 1
    assert content(reopen(storage)) == [("c", 1, 1)]
    assert check_table(table) == []


def test_follower_of_the_log_holds_few_commits() -> None:
    storage = MemoryStorage()
    table, reader = create(storage), reopen(storage, "reader")
    seen = reader.log.head()
    for at in range(200):
        table.ingest(*rows([(f"k{at % 7}", at, at)]), metadata="inline")
        seen = reader.log.follow(seen)
        assert len(seen.commits) <= 64
    head = reopen(storage).log.head()
    assert (seen.root, seen.files, seen.runs, seen.logs, seen.segments) == (
        head.root,
        head.files,
        head.runs,
        head.logs,
        head.segments,
    )
    table.ingest(*rows([("k0", 900, 900)]), metadata="inline")
    assert reader.log.follow(seen).version == table.snapshot_at().version


def test_pickled_log_does_not_hold_the_last_written_version() -> None:
    table = create(MemoryStorage())
    table.ingest(*rows([("a", 1, 1)]), metadata="inline")
    assert table.log.written.state is not None
    assert pickle.loads(pickle.dumps(table.log.written)) == Written()
