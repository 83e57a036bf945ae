"""Outside row ids: they are unique forever, and no rewrite changes them."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from opal_lake.data.outside_ids import RowBases
from opal_lake.data.segment import (
    DataFile,
    Segment,
    is_ingested,
    pending_from_json,
    segment_from_json,
)
from opal_lake.definition.schema import OFFSET, OUTSIDE_ID, SEGMENT, UPDATED_AT
from opal_lake.errors import FormatError
from opal_lake.log.checkpoint import read_checkpoint, write_checkpoint
from opal_lake.log.sections import InlinePart
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.tuning import Tuning
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.kit.replay import Replay
from tests.kit.strategies import History, Step, histories
from tests.opal_lake.build import HISTORIES, SEED, play
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import LISTS_IN_FILES, content, create, rows

SLOW_HISTORIES, PARTS = 500, 10  # a test has ten minutes, also on a machine with other work
Outside = tuple[int, int]  # the row id, and the version that made the row visible
Identity = tuple[int, int, int]  # segment, offset, and the version that made the row visible


def outside_ids(table: Table, state: Snapshot, file: DataFile) -> Mapping[tuple[int, int], Outside]:
    """Return the outside columns of a Parquet file, by the row ids within the table.

    The rule is Iceberg's: where the columns are missing, the id counts from that of the file.
    """
    stored = pq.read_table(pa.BufferReader(table.storage.get(file.path)))
    names = list(zip(stored[SEGMENT].to_pylist(), stored[OFFSET].to_pylist(), strict=True))
    assert (OUTSIDE_ID in stored.column_names) != is_ingested(file)
    assert (UPDATED_AT in stored.column_names) != is_ingested(file)
    if not is_ingested(file):
        outside_columns = zip(
            stored[OUTSIDE_ID].to_pylist(), stored[UPDATED_AT].to_pylist(), strict=True
        )
        return dict(zip(names, outside_columns, strict=True))
    segment = state.segments[file.segments[0]]
    if segment.row_base is None or segment.visible_since is None:
        assert segment.id in state.pending
        return {}
    first, since = segment.row_base, segment.visible_since
    return {name: (first + index, since) for index, name in enumerate(names)}


def compare_row_ids(replay: Replay) -> int:
    """Check all versions: the same row has the same id, and no other row has it.

    Returns the number of ids.
    """
    ids: dict[Identity, int] = {}
    owners: dict[int, Identity] = {}
    reserved: dict[str, range] = {}
    known: dict[str, Mapping[tuple[int, int], Outside]] = {}
    table, before = replay.table, 0
    for version in replay.versions:
        state = table.snapshot_at(version)
        made_visible = {row.row_id: row.processed for row in replay.rows_at(version)}
        assert state.root.next_row_id >= before, f"version {version} takes the counter back"
        before = state.root.next_row_id
        for path, file in state.files.items():
            if path not in known or is_ingested(file):
                known[path] = outside_ids(table, state, file)
            if file.first_row_id is not None:
                own = range(file.first_row_id, file.first_row_id + file.rows)
                assert reserved.setdefault(path, own) == own
                assert own.stop <= state.root.next_row_id
            for (segment, offset), (row_id, since) in known[path].items():
                where = f"row ({segment}, {offset}) of version {version}"
                assert since == made_visible[segment, offset], where
                identity = (segment, offset, since)
                assert ids.setdefault(identity, row_id) == row_id, f"{where} has another id"
                assert owners.setdefault(row_id, identity) == identity, f"{where} has a used id"
                assert row_id < state.root.next_row_id
                base = state.segments[segment].row_base
                assert base is not None
                assert row_id == base + offset
    ranges = sorted(reserved.values(), key=lambda own: own.start)
    for first, second in pairwise(ranges):
        assert first.stop <= second.start, "two files reserve the same row id"
    assert not any(row_id in own for own in ranges for row_id in owners)
    return len(ids)


def compare_histories(count: int, part: int = 0) -> None:
    @seed(SEED + part)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories(("parquet",)))
    def run(history: History) -> None:
        replay = play(history)
        replay.play(Step(verb="compact", hand=0, part=0))
        compare_row_ids(replay)
        assert check_table(replay.table) == []

    run()


def test_row_ids_are_unique_and_no_rewrite_changes_them() -> None:
    compare_histories(max(1, HISTORIES // 2))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_row_ids_of_many_histories_are_unique_for_ever(part: int) -> None:
    compare_histories(SLOW_HISTORIES // PARTS, part)


def numbered(table: Table) -> dict[str, Outside]:
    """Return the outside ids of rows in the newest version's files, by SKU and time."""
    state, known_rows = table.snapshot_at(), {}
    for file in state.files.values():
        stored = pq.read_table(pa.BufferReader(table.storage.get(file.path)))
        ids = outside_ids(table, state, file)
        for row in stored.to_pylist():
            if (row[SEGMENT], row[OFFSET]) in ids:
                known_rows[f"{row['sku']}{row['at']}"] = ids[row[SEGMENT], row[OFFSET]]
    return known_rows


def fill(table: Table) -> None:
    """Version 1 is pending until 3, version 2 is visible immediately."""
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]))
    table.ingest(*rows([("a", 2, 2), ("d", 2, 2)]), metadata="inline")
    table.metagen()


def test_segments_take_row_ids_when_they_become_visible() -> None:
    table = create(MemoryStorage())
    fill(table)
    expected = {"a2": (0, 2), "d2": (1, 2), "a1": (2, 3), "b1": (3, 3), "c1": (4, 3)}
    assert numbered(table) == expected
    assert table.snapshot_at().root.next_row_id == 5
    assert [table.log.read_commit(version).first_row_id for version in range(4)] == [
        None,
        None,
        0,
        2,
    ]


def test_rewritten_files_hold_the_ids_and_reserve_as_many() -> None:
    table = create(MemoryStorage())
    fill(table)
    before = numbered(table)
    compact(table)
    assert numbered(table) == before
    assert table.snapshot_at().root.next_row_id == 10
    table.ingest(*rows([("e", 1, 1)]), metadata="inline")
    assert numbered(table) == before | {"e1": (10, 5)}
    zorder(table, table.snapshot_at().spec.schema.fields[:2], whole=True)
    assert numbered(table) == before | {"e1": (10, 5)}
    assert table.snapshot_at().root.next_row_id == 17
    [file] = table.snapshot_at().files.values()
    assert file.first_row_id == 11
    schema = pq.read_schema(pa.BufferReader(table.storage.get(file.path)))
    for name, number in ((OUTSIDE_ID, 2147483540), (UPDATED_AT, 2147483539)):
        assert schema.field(name).metadata[b"PARQUET:field_id"] == str(number).encode()
        assert schema.field(name).type == pa.int64()


def test_no_read_shows_the_columns_of_the_outside() -> None:
    table = create(MemoryStorage())
    fill(table)
    expected = content(table)
    compact(table)
    assert content(table) == expected
    assert table.read().column_names == ["sku", "at", "price"]
    assert not {OUTSIDE_ID, UPDATED_AT} & {*table.changes(0).column_names}


def test_a_segment_that_is_pending_again_gets_new_ids() -> None:
    table = create(MemoryStorage())
    fill(table)
    table.restore(version=2)
    assert numbered(table) == {"a2": (0, 2), "d2": (1, 2)}
    table.metagen()
    assert numbered(table) == {
        "a2": (0, 2),
        "d2": (1, 2),
        "a1": (5, 5),
        "b1": (6, 5),
        "c1": (7, 5),
    }
    table.restore(version=3)
    assert numbered(table)["a1"] == (2, 3)
    assert table.snapshot_at().root.next_row_id == 8
    assert check_table(table) == []


def test_a_compaction_of_orc_files_reserves_row_ids_but_stores_none() -> None:
    table = create(MemoryStorage(), file_format="orc")
    fill(table)
    compact(table)
    state = table.snapshot_at()
    assert state.root.next_row_id == 10
    [compacted] = [file for file in state.files.values() if not is_ingested(file)]
    stored = orc.ORCFile(pa.BufferReader(table.storage.get(compacted.path)))
    assert not {OUTSIDE_ID, UPDATED_AT} & {*stored.schema.names}
    assert check_table(table) == []


def test_files_that_an_upsert_folds_hold_row_ids() -> None:
    table = create(MemoryStorage(), fold_files=4, checkpoint_commits=2)
    for number in range(12):
        table.ingest(*rows([(f"k{number}", number, 1)]), metadata="inline")
    assert len(table.snapshot_at().files) < 12
    commits = [table.log.read_commit(version) for version in range(table.snapshot_at().version + 1)]
    upserts = [commit for commit in commits if commit.actions.processed]
    expected = {}
    for number, commit in enumerate(upserts):
        expected[f"k{number}{number}"] = (commit.first_row_id, commit.version)
    assert len({row_id for row_id, _ in expected.values()}) == 12
    assert numbered(table) == expected
    assert check_table(table) == []


def test_a_rewrite_that_only_removes_gives_no_ids() -> None:
    """A rewrite may list the removed files in a side file."""
    for max_files in (256, 0):
        tuning = Tuning(rewrite_max_files=max_files)
        # Each file is rewritten alone
        table = create(MemoryStorage(), group_rows=1, tuning=tuning)
        table.ingest(*rows([("a", 1, 1)]), metadata="inline")
        table.ingest(*rows([("a", 2, 2)]), metadata="inline")
        compact(table, floor=9)
        state = table.snapshot_at()
        commits = map(table.log.read_commit, range(state.version + 1))
        [commit] = [commit for commit in commits if commit.actions.rewrite is not None]
        assert commit.actions.rewrite is not None
        assert (commit.actions.rewrite.side is not None) == (max_files == 0)
        assert commit.actions.rewrite.dropped_rows == 1
        assert (len(state.files), commit.first_row_id, state.root.next_row_id) == (1, None, 2)
        assert check_table(table) == []


@pytest.mark.parametrize("offset", [-1, 2])
@pytest.mark.parametrize("count", [1, 1000])
def test_an_offset_that_its_segment_does_not_have_has_no_row_id(offset: int, count: int) -> None:
    """One by one, and in long runs."""
    segments = {
        number: Segment(id=number, rows=2, group=0, row_base=7 * number, visible_since=number)
        for number in (1, 2)
    }
    bases = RowBases.of(segments)
    of_rows = np.repeat(np.array([1, 2], np.int64), count)
    offsets = np.resize(np.array([0, 1], np.int32), 2 * count)
    ids, versions = bases.columns(of_rows, offsets)
    assert (ids == 7 * of_rows + offsets).all()
    assert (versions == of_rows).all()
    offsets[-1] = offset
    with pytest.raises(FormatError, match=f"row {offset} of segment 0:2, which has 2 rows"):
        bases.columns(of_rows, offsets)


def test_row_ids_of_a_segment_are_within_63_bits() -> None:
    last = (1 << 63) - 1
    assert segment_from_json([1, 5, 0, last - 5, 1]).row_base == last - 5
    with pytest.raises(ValueError, match="beyond 63 bits"):
        segment_from_json([1, 5, 0, last - 4, 1])


@pytest.mark.parametrize("count", [0, (1 << 31) + 1])
def test_a_segment_has_rows_that_offsets_can_number(count: int) -> None:
    with pytest.raises(ValueError, match="a segment has 1 to 2,147,483,648"):
        segment_from_json([1, count, 0])
    with pytest.raises(ValueError, match="a segment has 1 to 2,147,483,648"):
        pending_from_json([1, count, 0, 1, 1, None, None, None])


def test_segments_of_row_ids_are_those_that_the_table_lists() -> None:
    """However many parts of the list lie in files of their own."""
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=1000)
    for number in range(12):
        table.ingest(*rows([(f"k{number}", number, 1)]), metadata="inline")
        if number in (8, 11):
            write_checkpoint(storage, table.log.head(), tuning=LISTS_IN_FILES)
    state = read_checkpoint(storage, None)
    assert state is not None
    assert len(state.sections["segments"]) == 2
    assert not any(isinstance(part, InlinePart) for part in state.sections["segments"])
    files = [*state.files.values()]
    fresh = Snapshot(storage, state.root, state.sections, state.commits)
    for chosen in (files[:1], files[-1:], files):
        wanted = {number for file in chosen for number in file.segments}
        assert fresh.segments_of(chosen) == {n: state.segments[n] for n in wanted}
    assert "visible_segments" not in fresh.__dict__
    stranger = replace(files[0], segments=(99,))
    with pytest.raises(FormatError, match="rows of segment 99"):
        _ = fresh.segments_of([stranger])[99]
