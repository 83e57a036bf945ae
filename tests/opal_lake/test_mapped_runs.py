"""The cache of key-store runs: what it may take for the same thing, and what not."""

import pickle
import shutil
from pathlib import Path

import pytest

from opal_lake.check import check_table
from opal_lake.errors import StorageError
from opal_lake.key_store.cache.mapped_runs import MappedRuns
from opal_lake.segment import RunFile
from opal_lake.storage.local import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.s3 import S3Storage
from tests.opal_lake.shop import content, create, rows


def test_a_table_made_anew_at_the_same_path_has_other_runs(tmp_path: Path) -> None:
    storage = LocalStorage.open(f"{tmp_path}/t")
    old = create(storage)
    old.ingest(*rows([("x", 5, 1)]))
    old.metagen()
    old.ingest(*rows([("x", 6, 1)]))
    old.metagen()
    shutil.rmtree(tmp_path / "t")
    new = create(storage)
    new.ingest(*rows([("y", 5, 1)]))
    new.metagen()
    old.ingest(*rows([("y", 7, 2)]))
    old.metagen()
    assert content(new) == [("y", 7, 2)]
    assert check_table(new) == []


def test_a_worker_takes_renewed_credentials(tmp_path: Path) -> None:
    """The process keeps caches by store, and unpickling gives the process's own."""
    first, renewed = (S3Storage.open("s3://bucket/t", {"aws_access_key_id": "a", "aws_secret_access_key": key}) for key in ("old", "new"))
    assert pickle.loads(pickle.dumps(MappedRuns(storage=first, folder=tmp_path))).storage == first
    assert pickle.loads(pickle.dumps(MappedRuns(storage=renewed, folder=tmp_path))).storage == renewed


def test_copies_go_to_no_folder_that_others_may_write_to(tmp_path: Path) -> None:
    storage = MemoryStorage()
    table = create(storage)
    table.ingest(*rows([("x", 5, 1)]))
    table.metagen()
    [run] = table.snapshot_at().runs.values()
    assert isinstance(run, RunFile)
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StorageError, match="others may write"):
        MappedRuns(storage=storage, folder=tmp_path / "open").open(run)
    assert MappedRuns(storage=storage, folder=tmp_path / "own").open(run).count == run.entries
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "own").iterdir()] == [0]
