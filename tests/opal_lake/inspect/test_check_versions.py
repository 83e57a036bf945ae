"""A check of all versions reads files that only older ones have, each once."""

import json
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.cli import main
from opal_lake.inspect.check.check import check
from opal_lake.operations.look import Check
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows


def table_with_versions(storage: Storage) -> Table:
    """Return a table whose savepoint has files that no version of the window has."""
    table = create(storage, checkpoint_commits=4)
    for at in (1, 2):
        table.ingest(*rows([("a", at, at), ("b", at, None if at == 2 else at), (f"c{at}", at, at)]))
        table.metagen(all=True)
    table.savepoint("old")
    for at in range(3, 8):
        table.ingest(*rows([("a", at, at), (f"c{at}", at, at)]))
        table.metagen(all=True)
    compact(table, floor=4)
    return table


def paths_of(table: Table, version: int) -> dict[str, set[str]]:
    state = table.snapshot_at(version)
    return {"files": {*state.files}, "logs": {*state.logs}, "runs": {*state.runs}}


def broken(storage: MemoryStorage, path: str) -> None:
    data = bytearray(storage.get(path))
    data[len(data) // 2] ^= 0xFF
    storage.delete([path])
    assert storage.put_if_absent(path, bytes(data))


@pytest.mark.parametrize("kind", ["files", "logs", "runs"])
@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damage_that_only_older_versions_have_is_found(kind: str, damage: str) -> None:
    storage = MemoryStorage()
    table = table_with_versions(storage)
    head = table.snapshot_at()
    savepoint = paths_of(table, head.root.savepoints["old"])[kind]
    older = [paths_of(table, version)[kind] for version in range(head.version)]
    gone = set().union(*older) - savepoint - paths_of(table, head.version)[kind]
    path = min(gone)
    if damage == "missing":
        storage.delete([path])
    else:
        broken(storage, path)
    if kind != "logs":  # which bitmap bases of older checkpoints are compared with in any case
        assert check_table(table) == []
    assert {finding.path for finding in check_table(table, all=True)} == {path}
    if kind == "files":
        quick = check_table(table, all=True, quick=True)
        assert {finding.path for finding in quick} == ({path} if damage == "missing" else set())


def test_damage_of_a_savepoint_below_the_oldest_version_is_found() -> None:
    storage = MemoryStorage()
    table = table_with_versions(storage)
    table.retain(window="0s", grace="0s")
    head = table.snapshot_at()
    savepoint = head.root.savepoints["old"]
    assert head.root.oldest_version > savepoint
    path = min(paths_of(table, savepoint)["files"] - {*head.files})
    broken(storage, path)
    assert check_table(table) == []
    assert {finding.path for finding in check_table(table, all=True)} == {path}


def test_a_sound_table_has_sound_versions_and_each_file_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    table = table_with_versions(storage)
    read: list[str] = []
    real = storage.get

    def get(path: str, *where: int) -> bytes:
        read.append(path)
        return real(path, *where)

    monkeypatch.setattr(storage, "get", get)
    checked = check(table, Check(all=True))
    assert checked.findings == ()
    data = [path for path in read if path.startswith((layout.DATA, layout.SEGMENT_LOGS))]
    assert sorted(data) == sorted({*data})
    assert checked.looked_at is not None
    assert checked.looked_at.versions == table.snapshot_at().version + 1
    assert checked.looked_at.files == len({path for path in data if path.startswith(layout.DATA)})


def test_a_check_reports_its_extent() -> None:
    table = table_with_versions(MemoryStorage())
    head = table.snapshot_at()
    size = f"{len(head.files)} data file with {head.root.rows} rows"
    newest = check(table, Check()).looked_at
    assert newest is not None
    assert newest.text == f"version {head.version}: {size}, whole"
    sampled = check(table, Check(sample="1%", all=True)).looked_at
    assert sampled is not None
    assert sampled.text.startswith(f"versions 0 to {head.version}: ")
    assert sampled.text.endswith(", 1% of the keys")
    quick = check_table(table, quick=True).looked_at
    assert quick is not None
    assert quick.text.endswith("metadata only")


def test_the_command_checks_all_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "table")
    table = table_with_versions(LocalStorage.open(uri))
    head = table.snapshot_at().version
    assert main(["check", uri]) == 0
    assert f"looked at  version {head}: " in capsys.readouterr().out
    assert main(["check", uri, "--all", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert f"looked at: versions 0 to {head}: " in said.err
