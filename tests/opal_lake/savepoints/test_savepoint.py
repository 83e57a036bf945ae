"""Savepoints keep versions readable, each name has one meaning, and they can be released."""

import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.inspect.describe import describe
from opal_lake.storage import Storage, open_storage
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.opal_lake.shop import content, create, latest, rows

BATCHES = [
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
    spec = create(open_storage(f"{storage.uri}-spec"), checkpoint_commits=3).snapshot_at().spec
    table = create_on(storage, spec, ManualClock(), CountingIds())
    for batch in BATCHES:
        table.ingest(*rows(batch), metadata="inline")
    return table


def expire_all(table: Table) -> None:
    table.retain(window="0s", grace="0s")


@pytest.mark.parametrize("version", range(5))
def test_a_savepoint_outlives_retention(table: Table, version: int) -> None:
    table.savepoint("kept", version)
    table.ingest(*rows([("dye", 9, 90)]), metadata="inline")
    expire_all(table)
    assert content(table, version=version) == latest(BATCHES[:version])
    assert describe(table)["savepoints"] == {"kept": version}
    assert check_table(table) == []
    for other in set(range(5)) - {version}:
        with pytest.raises(
            NotFoundError, match=rf"version {other} of .*savepoints kept \({version}\)"
        ):
            content(table, version=other)
    expire_all(table)
    assert content(table, version=version) == latest(BATCHES[:version])


def test_by_default_the_newest_version_is_kept_and_the_same_again_is_no_change(
    table: Table,
) -> None:
    assert table.savepoint("now").version == 5
    assert table.savepoint("now").version is None
    assert table.savepoint("now", 4).version is None
    assert table.snapshot_at().root.savepoints == {"now": 4}


def test_a_name_means_one_version_until_it_is_released(table: Table) -> None:
    table.savepoint("a", 2)
    with pytest.raises(InvalidInputError, match="savepoint a, of version 2"):
        table.savepoint("a", 3)
    table.release("a")
    table.savepoint("a", 3)
    assert table.snapshot_at().root.savepoints == {"a": 3}
    with pytest.raises(
        NotFoundError, match=r"no savepoint 'b'; pass one of its savepoints: a \(3\)"
    ):
        table.release("b")


def test_a_name_moves_to_another_version_in_one_commit(table: Table) -> None:
    assert table.savepoint("a", 2, move=True).version == 5
    assert table.savepoint("a", 3, move=True).version == 6
    assert table.savepoint("a", 3, move=True).version is None
    expire_all(table)
    assert table.snapshot_at().root.savepoints == {"a": 3}
    assert content(table, version=3) == latest(BATCHES[:3])
    assert check_table(table) == []
    with pytest.raises(NotFoundError, match=r"version 2 of .*savepoints a \(3\)"):
        table.savepoint("a", 2, move=True)
    assert table.snapshot_at().root.savepoints == {"a": 3}


def test_the_next_retention_deletes_a_released_version_without_another_name(
    table: Table,
) -> None:
    table.savepoint("a", 1)
    table.savepoint("b", 1)
    expire_all(table)
    table.release("a")
    expire_all(table)
    assert content(table, version=1) == latest(BATCHES[:1])
    table.release("b")
    expire_all(table)
    with pytest.raises(NotFoundError, match=r"version 1 of .* has expired"):
        content(table, version=1)
    roots = [
        layout.checkpoint_version(stored.path) for stored in table.storage.list(layout.CHECKPOINTS)
    ]
    assert 1 not in roots
    assert check_table(table) == []


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "ä", "x" * 101, "-a", "latest", "3", 3, True, 5.5]
)
def test_a_savepoint_name_is_plain_and_not_a_version(table: Table, name: object) -> None:
    said = "would look like a version" if name in ("latest", "3") else "cannot be called"
    if not isinstance(name, str):
        said = "argument name is"
    with pytest.raises(InvalidInputError, match=said):
        table.savepoint(name)  # type: ignore[arg-type]  # wrong on purpose


def test_missing_versions_cannot_become_savepoints(table: Table) -> None:
    with pytest.raises(NotFoundError, match="no version 9; the readable versions are 0 to 4"):
        table.savepoint("a", 9)
    expire_all(table)
    with pytest.raises(NotFoundError, match=r"version 1 of .* has expired"):
        table.savepoint("a", 1)


def test_the_check_names_a_savepoint_that_lost_its_checkpoint_or_a_file(table: Table) -> None:
    table.savepoint("a", 2)
    expire_all(table)
    state = table.snapshot_at(2)
    root = layout.checkpoint_path(2, state.root.write_id)
    stored_root = table.storage.get(root)
    table.storage.delete([root])
    assert [finding.invariant for finding in check_table(table)] == ["I22"]
    table.storage.put_if_absent(root, stored_root)
    table.storage.delete([next(iter(state.files))])
    assert "I9" in {finding.invariant for finding in check_table(table)}
