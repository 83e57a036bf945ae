"""Files that killed writers leave in the hidden folder.

`check` names them, retention deletes them, and never what a live writer still writes.
"""

import json
import os
import time
from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.inspect.check.check import check
from opal_lake.operations.look import Check
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.storage.local.writer_name import writer_name
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.shop import create, rows
from tests.opal_lake.storage.build import outcomes

DAY_S = 86_400


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Return a table in which writers without hard links were killed at every call."""
    store = open_storage(str(tmp_path / "table"))
    create(store).ingest(*rows([("a", 1, 1)]), metadata="inline")
    outcomes("killed", tmp_path, "false")
    return store


def hidden(table: Table) -> Path:
    return Path(table.uri) / HIDDEN


def grow_old(folder: Path, days: float) -> None:
    """Set the age of a tree, folders last, as a change in them sets their time.

    A second more, as a file system's clock is a little behind this one.
    """
    then = time.time() - days * DAY_S - 1
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (then, then))


def test_retention_deletes_left_overs_that_are_older_than_the_grace(
    storage: Storage,
) -> None:
    table = Table.open(storage.uri)
    left = [path for path in hidden(table).rglob("*") if path.is_file()]
    assert len(left) >= 3
    live = hidden(table) / writer_name()
    live.write_bytes(b"in the making")
    checked = check(table, Check())
    assert (checked.findings, check_table(table)) == ((), [])
    assert " bytes in " in checked.left_over[0]
    grow_old(hidden(table), 0.5)
    assert dict(table.retain().counts) == {}
    assert all(path.exists() for path in left)
    result = table.retain(grace="6h", dry_run=True)
    assert {path.relative_to(table.uri).as_posix() for path in left} <= {
        example["path"] for example in result.examples
    }
    assert "has not finished it for 12 hours" in result.examples[0]["why"]
    done = table.retain(grace="6h")
    assert dict(done.counts) == dict(result.counts)
    assert done.counts["left_overs"] >= len(left)
    assert done.counts["bytes"] >= 9_000
    assert [*hidden(table).iterdir()] == [live]
    assert check(table, Check()).left_over == ()
    assert table.read().num_rows == 1


def test_the_command_names_left_overs_and_finds_no_damage(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", storage.uri]) == 0
    assert "left over" in capsys.readouterr().out
    assert main(["check", storage.uri, "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == []
    assert "\nleft over: " in output.err


def test_retention_deletes_no_file_behind_a_symbolic_link(tmp_path: Path) -> None:
    store = open_storage(str(tmp_path / "table"))
    create(store)
    folder, elsewhere = tmp_path / "table" / HIDDEN, tmp_path / "elsewhere"
    (elsewhere / "inner").mkdir(parents=True)
    (elsewhere / "inner" / "file").touch()
    (elsewhere / "file").touch()
    (folder / "link").symlink_to(elsewhere)
    (folder / "file-link").symlink_to(elsewhere / "file")
    table = Table.open(store.uri)
    table.retain(grace="0s")
    assert [*folder.iterdir()] == []
    folder.rmdir()
    folder.symlink_to(elsewhere)
    table.retain(grace="0s")
    assert sorted(path.name for path in elsewhere.rglob("*")) == ["file", "file", "inner"]
