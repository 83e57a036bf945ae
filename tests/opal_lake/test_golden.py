"""Tables that were frozen when this version of the format was made.

They open, hold what they held, and are written the same way again.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from opal_lake import layout
from opal_lake.events.bitmap import decode_base, encode_base
from opal_lake.key_store.run import decode_run, encode_run
from opal_lake.log.checkpoint import decode_root, encode_root
from opal_lake.log.commit import decode_commit, encode_commit
from opal_lake.storage import Storage
from opal_lake.storage.local.store import LocalStorage
from opal_lake.table import Table
from tests.golden import make_golden
from tests.kit.check import check_table

GOLDEN = Path(make_golden.__file__).parent
# The operations of each story that a frozen table tells
OPERATIONS = {
    "": {
        "add_columns",
        "compact",
        "create",
        "discard",
        "finish_business_snapshot",
        "ingest",
        "metagen",
        "rebuild_key_store",
        "restore",
        "savepoint",
        "set_properties",
        "zorder",
    },
    "changed": {
        "alter",
        "compact",
        "create",
        "delete",
        "drop_partition",
        "erase",
        "ingest",
        "insert",
        "merge",
        "metagen",
        "overwrite",
        "update",
    },
    "erased": {"erase", "ingest", "retain"},
}


@pytest.fixture(params=make_golden.TABLES)
def frozen(request: pytest.FixtureRequest) -> tuple[Table, dict[str, Any]]:
    table = Table.open(str(GOLDEN / request.param))
    assert isinstance(table.storage, LocalStorage)
    return table, json.loads((GOLDEN / f"{request.param}.json").read_text("utf-8"))


def folder_name(table: Table) -> str:
    """Return the name of a frozen table among `make_golden.TABLES`."""
    return Path(table.uri).name


def files(table: Table, prefix: str) -> dict[str, bytes]:
    contents = {each.path: table.storage.get(each.path) for each in table.storage.list(prefix)}
    # The few versions after an erasure have no bitmap base
    assert contents or (prefix == layout.BITMAPS and "erased" in folder_name(table))
    return contents


def test_frozen_table_reads_as_before_and_its_files_decode_as_before(
    frozen: tuple[Table, dict[str, Any]],
) -> None:
    table, content = frozen
    assert make_golden.expected(table.storage, table) == content
    story = make_golden.story_of(folder_name(table))
    assert {*content["operations"]} == OPERATIONS[story]
    distinct = {repr(rows) for rows in content["rows"].values()}
    assert len(distinct) >= (3 if story == "erased" else 5)


def test_frozen_table_is_clean(frozen: tuple[Table, dict[str, Any]]) -> None:
    assert check_table(frozen[0], all=True) == []


def test_commits_have_the_same_bytes_again(frozen: tuple[Table, dict[str, Any]]) -> None:
    for path, data in files(frozen[0], layout.LOG).items():
        assert encode_commit(decode_commit(data, path)) == data


def test_roots_have_the_same_bytes_again(frozen: tuple[Table, dict[str, Any]]) -> None:
    roots = {
        path: data
        for path, data in files(frozen[0], layout.CHECKPOINTS).items()
        if layout.checkpoint_version(path) is not None
    }
    assert len(roots) >= (1 if "erased" in folder_name(frozen[0]) else 4)
    for path, data in roots.items():
        assert encode_root(*decode_root(data, path)) == data


def test_bitmap_bases_have_the_same_bytes_again(frozen: tuple[Table, dict[str, Any]]) -> None:
    table, _ = frozen
    for path, data in files(table, layout.BITMAPS).items():
        group, name = path.removeprefix(layout.BITMAPS).removesuffix(".bits").split("/")
        version, write_id = name.split("-", 1)
        table_id = table.snapshot_at().root.table_id
        origin = {
            "group": int(group),
            "table_id": table_id,
            "version": int(version),
            "write_id": write_id,
        }
        assert encode_base(decode_base(data, path), origin) == data


def test_runs_have_the_same_bytes_again(frozen: tuple[Table, dict[str, Any]]) -> None:
    for path, data in files(frozen[0], layout.KEY_STORE).items():
        assert encode_run(decode_run(data, path)) == data


def compared_paths(storage: Storage) -> list[str]:
    # The names of log pages contain a hash of sizes and checksums
    return [each.path for each in storage.list("") if not each.path.startswith(layout.LOG_PAGES)]


def test_the_same_story_writes_the_same_metadata_today(
    frozen: tuple[Table, dict[str, Any]],
) -> None:
    """Sizes and checksums of pyarrow's files may differ: its bytes may change."""
    table, content = frozen
    again = make_golden.build_table(folder_name(table))
    paths = compared_paths(again)
    assert paths == compared_paths(table.storage)
    for path in paths:
        if path.startswith((layout.KEY_STORE, layout.BITMAPS, layout.CLAIMS)):
            assert again.get(path) == table.storage.get(path), path
        if path.startswith(layout.SEGMENT_LOGS):
            assert make_golden.decode(path, again.get(path)) == content[path]
