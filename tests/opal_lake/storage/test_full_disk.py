"""Full and read-only disks: no outcome is unknown, and retention frees space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import NoSpaceError, ReadOnlyError
from opal_lake.exit_codes import INPUT, RETRY, exit_code
from opal_lake.storage import open_storage
from opal_lake.storage.local.publish import HIDDEN
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.retention.build import at_hour, history
from tests.opal_lake.shop import content, create, reopen, rows

PAGE = 4096


def _mount(folder: Path, options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a small disk has to be mounted, which takes root: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, "size=1m")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, *, leaving: int = 0) -> None:
    """Leave so many pages."""
    free = os.statvfs(disk).f_bavail
    (disk / "filler").write_bytes(bytes(max(0, free - leaving) * PAGE))


def names(table: Table) -> list[str]:
    return [stored.path for stored in table.storage.list("")]


def refusal_of(writer: Table) -> NoSpaceError | None:
    try:
        writer.ingest(*rows([("bow", 1, 1)]), metadata="inline", token="t")
    except NoSpaceError as error:
        return error
    return None


@pytest.mark.parametrize("hard_links", ["true", "false"])
def test_error_of_a_full_disk_says_that_nothing_was_written(disk: Path, hard_links: str) -> None:
    storage = open_storage(str(disk / "t"), {"hard_links": hard_links})
    table = create(storage)
    for hour in range(1, 4):
        table.ingest(*rows([("ax", hour, hour)]), metadata="inline")
    version, before = table.snapshot_at().version, content(table)
    for leaving in range(12):
        fill(disk, leaving=leaving)
        writer = reopen(storage, f"w{leaving}")
        refusal = refusal_of(writer)
        (disk / "filler").unlink()
        if refusal is None:
            break
        assert "No space left" in str(refusal)
        assert "opal retain" in str(refusal)
        assert exit_code(refusal) == RETRY
        assert (table.snapshot_at().version, content(table)) == (version, before)
    assert 0 < leaving < 11
    assert table.snapshot_at().version == version + 1
    assert list((disk / "t" / HIDDEN).iterdir()) == []
    assert check_table(table) == []


def test_read_only_disk_is_a_final_error(disk: Path) -> None:
    table = create(open_storage(str(disk / "t")))
    table.ingest(*rows([("ax", 1, 1)]), metadata="inline")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for write in (
        lambda: table.ingest(*rows([("bow", 1, 1)]), metadata="inline"),
        lambda: table.set_properties({"window": "1d"}),
        lambda: create(open_storage(str(disk / "new"))),
        lambda: table.retain(window="0s", grace="0s"),
        lambda: table.log.storage.delete([next(iter(table.log.storage.list("data/"))).path]),
    ):
        with pytest.raises(
            ReadOnlyError, match=r"Read-only file system.*mount it writable"
        ) as refusal:
            write()
        assert exit_code(refusal.value) == INPUT
    assert content(table) == [("ax", 1, 1)]


def test_retention_frees_a_full_disk_after_an_interrupted_one(disk: Path) -> None:
    storage = open_storage(str(disk / "t"))
    history(storage, 20)
    at_hour(storage, 20).retain(window="9000d")
    assert [*storage.list(layout.DIGESTS)]
    files = len([*storage.list("")])
    fill(disk)
    table = at_hour(storage, 40)
    done = table.retain(window="0s", grace="0s")
    assert done.counts["versions"] > 10
    assert done.counts["commits"] > 10
    assert len([*storage.list("")]) < files
    assert check_table(table) == []
    table.ingest(*rows([("ax", 100, 1)]), metadata="inline")


def test_retention_without_space_for_its_commit_deletes_no_needed_file(disk: Path) -> None:
    storage = open_storage(str(disk / "t"))
    history(storage, 12)
    before = names(at_hour(storage, 13))
    fill(disk)
    with pytest.raises(NoSpaceError, match=r"no space for the commit.*free 100 kB"):
        at_hour(storage, 40).retain(window="0s", grace="0s")
    assert names(at_hour(storage, 13)) == before
    (disk / "filler").unlink()
    assert at_hour(storage, 40).retain(window="0s", grace="0s").counts["versions"] > 5
    assert check_table(at_hour(storage, 41)) == []


def test_retention_with_nothing_to_expire_deletes_left_overs_on_a_full_disk(disk: Path) -> None:
    storage = open_storage(str(disk / "t"))
    history(storage, 12)
    at_hour(storage, 20).retain(window="0s", grace="0s")
    stale = layout.data_path([], layout.job_file_name(1, 9, "dead"), "parquet")
    storage.put_if_absent(stale, b"x" * PAGE)
    fill(disk)
    done = at_hour(storage, 20).retain(window="9000d", grace="9000d")
    assert (done.version, done.counts["data_files"]) == (None, 1)
