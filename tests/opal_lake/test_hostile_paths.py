"""A table that somebody else wrote names only its own files.

A path that leads elsewhere is refused where metadata is decoded.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opal_lake import layout
from opal_lake.errors import FormatError, InvalidInputError, OpalError
from opal_lake.log.commit import Actions, canonical_json, decode_commit, encode_commit, seal, unseal
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.spark_path import spark_paths
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.shop import create, reopen, rows

STEM = "0000000001-00000000-0"
ELSEWHERE = (
    "../secret/x.parquet",
    "/etc/passwd",
    f"data/../../secret/{STEM}.parquet",
    f"data/./{STEM}.parquet",
    f"data//{STEM}.parquet",
    f"data/%2e%2e/{STEM}.parquet",
    f"data/day=..\\..\\x/{STEM}.parquet",
    f"data/{STEM}.parquet\0",
    f"data/{STEM}*.parquet",
    f"data/{STEM}?.parquet",
    f"data/[0]{STEM}.parquet",
    f"data/{{{STEM},x}}.parquet",
    f"s3a://other/data/{STEM}.parquet",
    f"file:/data/{STEM}.parquet",
    f"data/day=s3a://other/{STEM}.parquet",
    f"data/{STEM}\n.parquet",
    f"data/day={'1' * 2000}/{STEM}.parquet",
    f"_opal/segment_logs/{STEM}.parquet",
    "_opal/log/00000000000000000000.json",
    f"data/{STEM}.run",
    "data/",
    "",
    7,
    None,
)


def written(uri: str) -> Table:
    """Return a table with a log, runs and a removed run.

    Versions 1 and 2 are an ingest and its MetaGen, and so are 3 and 4.
    """
    table = create(LocalStorage.open(uri), read_verify="none", checkpoint_commits=100)
    for value in (1, 2):
        table.ingest(*rows([("a", value, value), ("b", value, value)]))
        table.metagen()
    return table


def forge(table: Table, version: int, change: Callable[[Actions], Actions]) -> str:
    """Write a commit over, as only somebody with a hand in the folder can."""
    path = layout.commit_path(version)
    commit = decode_commit(table.storage.get(path), path)
    table.storage.delete([path])
    table.storage.put_if_absent(
        path, encode_commit(replace(commit, actions=change(commit.actions)))
    )
    return path


NAMED: dict[str, tuple[int, Callable[[Actions, Any], Actions]]] = {
    "data": (
        1,
        lambda actions, path: replace(actions, ingested=(replace(actions.ingested[0], path=path),)),
    ),
    "log": (
        4,
        lambda actions, path: replace(actions, add_logs=(replace(actions.add_logs[0], path=path),)),
    ),
    "run": (
        4,
        lambda actions, path: replace(actions, add_runs=(replace(actions.add_runs[0], path=path),)),
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_commit_that_names_a_file_elsewhere_is_refused(what: str, tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"))
    version, put = NAMED[what]
    path = layout.commit_path(version)
    before = table.storage.get(path)
    for elsewhere in (
        path for path in ELSEWHERE if what == "data" or path != f"_opal/segment_logs/{STEM}.parquet"
    ):
        forge(table, version, lambda actions, elsewhere=elsewhere: put(actions, elsewhere))  # type: ignore[misc]  # mypy knows no defaults here
        with pytest.raises(FormatError, match=path):
            reopen(table.storage).snapshot_at()
        assert [
            finding.invariant
            for finding in check_table(reopen(table.storage), quick=True)
            if finding.path == path
        ] == ["I23"]
        table.storage.delete([path])
        table.storage.put_if_absent(path, before)
    assert not check_table(reopen(table.storage))


def test_a_checkpoint_that_names_a_section_elsewhere_is_refused(tmp_path: Path) -> None:
    table = create(LocalStorage.open(str(tmp_path / "table")), checkpoint_commits=2)
    table.ingest(*rows([("a", 1, 1)]))
    table.metagen()
    path = next(
        stored.path
        for stored in table.storage.list(layout.CHECKPOINTS)
        if layout.checkpoint_version(stored.path) is not None
    )
    body = unseal(table.storage.get(path), path)
    for elsewhere in ("../../../secret", "_opal/side/0000000001-0.jsonl.zst", "data/x"):
        body["sections"]["files"][0] = elsewhere
        table.storage.delete([path])
        table.storage.put_if_absent(path, seal(canonical_json(body)))
        with pytest.raises(FormatError, match=path):
            reopen(table.storage).snapshot_at()


def test_names_that_a_writer_puts_into_paths_are_plain(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"))
    path = layout.commit_path(0)
    commit = decode_commit(table.storage.get(path), path)
    for name in ("../../x", "a/b", "", "x" * 200, "é", 7):
        for part in ("table_id", "write_id"):
            table.storage.delete([path])
            table.storage.put_if_absent(path, encode_commit(replace(commit, **{part: name})))
            with pytest.raises(FormatError, match=path):
                reopen(table.storage).snapshot_at()


def test_spark_gets_no_path_out_of_the_root(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.parquet").write_bytes(b"PAR1")
    store = LocalStorage.open(str(tmp_path / "table"))
    store.put_if_absent("data/day=1/a.parquet", b"1")
    assert spark_paths(store, ["data/day=1/a.parquet"]) == [
        f"file://{tmp_path}/table/data/day=1/a.parquet"
    ]
    (tmp_path / "table/data/day=2").symlink_to(secret)
    (tmp_path / "table/data/day=1/x.parquet").symlink_to(secret / "x.parquet")
    (tmp_path / "table/data/day=1/folder.parquet").mkdir()
    os.mkfifo(tmp_path / "table/data/day=1/pipe.parquet")
    for path in (
        "data/day=2/x.parquet",
        "data/day=1/x.parquet",
        "data/day=1/folder.parquet",
        "data/day=1/pipe.parquet",
    ):
        with pytest.raises(InvalidInputError, match="link"):
            spark_paths(store, ["data/day=1/a.parquet", path])
    for path in ("../secret/x.parquet", "data/../../secret/x.parquet", "/etc/passwd", "data//x"):
        with pytest.raises(InvalidInputError):
            spark_paths(store, [path])


def test_a_named_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    table = written(str(tmp_path / "table"))
    path = tmp_path / "table" / layout.commit_path(4)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OpalError, match="not a plain file"):
        reopen(table.storage).snapshot_at()


def test_paths_of_the_layout_are_those_of_the_format() -> None:
    stem = layout.job_file_name(7, 1 << 33, "0123456789abcdef.4")
    values = [
        ("day", "2026-11-01"),
        ("a b", None),
        ("ü", "../../x%2f*"),
        ("c", ""),
        ("d", "é" * 100),
    ]
    for path, kind in (
        (layout.data_path(values, stem, "parquet"), layout.PathKind.DATA),
        (layout.data_path([], stem, "orc"), layout.PathKind.DATA),
        (layout.segment_log_path(stem), layout.PathKind.LOG),
        (layout.run_path(stem), layout.PathKind.RUN),
        (layout.bitmap_path(3, 12, "id-000001"), layout.PathKind.BASE),
        (layout.section_path(3, "id-000001", "files"), layout.PathKind.SECTION),
        (layout.side_path(3, 0), layout.PathKind.SIDE),
    ):
        assert layout.own_path(kind, path) == path
        MemoryStorage("any").put_if_absent(path, b"")
