"""Checkpoints: their costs, and lists whose parts add up to the commits, however merged."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from opal_lake import layout
from opal_lake.data.segment import DataFile, LogFile
from opal_lake.errors import FormatError
from opal_lake.ids import segment_id
from opal_lake.log.checkpoint import (
    decode_root,
    encode_root,
    read_checkpoint,
    read_lists,
    write_checkpoint,
)
from opal_lake.log.commit import Actions, Commit, Rewrite
from opal_lake.log.lists import segment_of_file
from opal_lake.log.sections import InlinePart
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.tuning import Tuning
from opal_lake.storage.memory import MemoryStorage
from tests.kit.check import check_table
from tests.opal_lake.shop import LISTS_IN_FILES, content, create, latest, reopen, rows


def commit_after(
    state: Snapshot, actions: Actions, token: str | None = None, partition_key: str | None = None
) -> Commit:
    version = state.version + 1
    return Commit(
        version=version,
        table_id=state.root.table_id,
        write_id=f"w{version}",
        previous_write_id=state.root.write_id,
        timestamp_us=version,
        operation="ingest",
        number=version,
        token=token,
        partition_key=partition_key,
        first_row_id=state.root.next_row_id if actions.gives_row_ids else None,
        result={},
        actions=actions,
    )


def file_of(number: int, attempt: str = "0") -> DataFile:
    path = layout.data_path([], layout.job_file_name(number, 0, attempt), "parquet")
    whole = {"size": 100, "crc32": number, "footer_bytes": 9, "footer_crc32": number}
    return DataFile(path=path, **whole, rows=1, group=0, segments=(segment_id(number, 0),))


def log_of(number: int) -> LogFile:
    path = layout.segment_log_path(layout.job_file_name(number, 0, "0"))
    return LogFile(
        path=path, size=9, crc32=number, events=1, groups=(0,), least_until=1, greatest_until=1
    )


def upsert(state: Snapshot, token: str | None = None) -> Commit:
    file = file_of(state.version + 1)
    actions = Actions(
        ingested=(file,), processed=(segment_of_file(file),), add_logs=(log_of(state.version + 1),)
    )
    return commit_after(state, actions, token, f"day {state.version // 7}")


def bytes_below(storage: MemoryStorage, prefix: str) -> int:
    return sum(stored.size for stored in storage.list(prefix))


@pytest.mark.parametrize("upserts", [1_000, pytest.param(4_000, marks=pytest.mark.slow)])
def test_checkpoint_bytes_for_each_commit_grow_with_the_logarithm_of_the_segments(
    upserts: int,
) -> None:
    storage = MemoryStorage()
    state = create(storage, token_keep=100).snapshot_at()
    for _ in range(upserts):
        state = state.followed_by([upsert(state, f"token {state.version}")])
        if state.version % 16 == 0:
            write_checkpoint(storage, state, fold=False)
            checkpoint = read_checkpoint(storage, state.version)
            assert checkpoint is not None
            state = checkpoint
    assert (
        bytes_below(storage, layout.CHECKPOINTS) / upserts < 3_300
    )  # 16 KB of each list in a root, and what doubles
    assert max(len(parts) for parts in state.sections.values()) <= 2 + upserts.bit_length() - 8
    assert len(state.files) == len(state.segments) == upserts
    assert [*state.tokens] == [f"token {version}" for version in range(upserts - 100, upserts)]


@pytest.mark.parametrize("seed", range(12))
def test_lists_read_from_parts_equal_the_fold_of_all_commits(seed: int) -> None:
    chance, storage = random.Random(seed), MemoryStorage()
    table = create(storage, token_keep=5)
    whole = state = table.snapshot_at()
    for _ in range(chance.randint(20, 120)):
        link = _any_commit(chance, whole)
        whole, state = whole.followed_by([link]), state.followed_by([link])
        if chance.random() < 0.4:
            write_checkpoint(storage, state, fold=False, tuning=LISTS_IN_FILES)
            checkpoint = read_checkpoint(storage, state.version)
            assert checkpoint is not None
            assert read_lists(checkpoint) == read_lists(whole) == read_lists(state)
            assert [*checkpoint.tokens.items()] == [*whole.tokens.items()]
            state = (
                checkpoint if chance.random() < 0.8 else state
            )  # another writer may have begun with an older one
        version = chance.randint(-1, whole.version)
        assert {log.path for log in state.logs_after(version)} == {
            log.path for log in whole.logs.values() if log.version > version
        }
        assert Snapshot(storage, state.root, state.sections, state.commits).version_of_token(
            "t1"
        ) == whole.tokens.get("t1")


def _any_commit(chance: random.Random, state: Snapshot) -> Commit:
    number = state.version + 1
    token = f"t{chance.randint(0, 9)}" if chance.random() < 0.4 else None
    kind = chance.random()
    if kind < 0.5 or not state.files:
        file = file_of(number)
        actions = Actions(
            ingested=(file,),
            processed=(segment_of_file(file),) if kind < 0.25 else (),
            add_logs=(log_of(number),),
        )
        return commit_after(state, actions, token, chance.choice([None, "a", "b"]))
    if kind < 0.7:
        pending = tuple(state.segments[number] for number in sorted(state.pending))
        return commit_after(state, Actions(processed=pending[:3]), token)
    if kind < 0.9:
        gone = [path for path in state.files if chance.random() < 0.5]
        dropped = [file for file in map(state.files.__getitem__, gone) if chance.random() < 0.3]
        segments = tuple(
            segment_of_file(file) for file in dropped if file.segments[0] in state.segments
        )
        merged = file_of(number, "merged")
        return commit_after(
            state, Actions(rewrite=Rewrite(add=(merged,), remove=tuple(gone), gone=segments)), token
        )
    return commit_after(
        state,
        Actions(remove_logs=tuple(path for path in state.logs if chance.random() < 0.5)),
        token,
    )


def test_two_writers_with_different_older_checkpoints_write_one_that_both_can_read() -> None:
    """The parts cover different versions: a file of one is never used for the other."""
    storage = MemoryStorage()
    begin = state = create(storage).snapshot_at()
    stale = state
    for version in range(1, 41):
        link = upsert(state)
        state, stale = state.followed_by([link]), stale.followed_by([link])
        if version % 4 == 0 and version < 40:
            write_checkpoint(storage, state, fold=False, tuning=LISTS_IN_FILES)
            state = read_checkpoint(storage, version) or begin
    write_checkpoint(storage, stale, fold=False, tuning=LISTS_IN_FILES)
    by_stale = {
        stored.path: storage.get(stored.path) for stored in storage.list(layout.CHECKPOINTS)
    }
    storage.delete([layout.checkpoint_path(40, "w40")])
    write_checkpoint(storage, state, fold=False, tuning=LISTS_IN_FILES)
    by_state = read_checkpoint(storage, 40)
    assert by_state is not None
    assert read_lists(by_state) == read_lists(stale)
    root = layout.checkpoint_path(40, "w40")
    found_root, found_sections = decode_root(by_stale[root], root)
    assert read_lists(Snapshot(storage, found_root, found_sections, ())) == read_lists(stale)


def test_checkpoint_of_a_small_table_is_one_file() -> None:
    storage = MemoryStorage()
    state = create(storage).snapshot_at()
    for _ in range(8):
        state = state.followed_by([upsert(state, "token")])
    write_checkpoint(storage, state, fold=False)
    (only,) = (stored.path for stored in storage.list(layout.CHECKPOINTS))
    root, lists = decode_root(storage.get(only), only)
    assert all(isinstance(part, InlinePart) for parts in lists.values() for part in parts)
    assert encode_root(root, lists) == storage.get(only)


def test_error_names_a_damaged_part_in_a_root() -> None:
    state = create(MemoryStorage()).snapshot_at()
    damaged = Snapshot(
        state.storage, state.root, {"files": (InlinePart(data=b"no zstd", version=3),)}, ()
    )
    with pytest.raises(FormatError, match="version 3 cannot be decoded"):
        _ = damaged.files


def keys(count: int) -> Iterator[list[Any]]:
    return ([(f"k{turn % 5}", turn, turn)] for turn in range(count))


@pytest.mark.parametrize("ratio", [0, 0.9])
def test_bases_in_parts_hide_the_same_rows_as_the_logs(ratio: float) -> None:
    tuning = Tuning(inline_bytes=0, base_merge_ratio=ratio, fold_at_logs=2, small_base_bytes=0)
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=3, group_rows=7, tuning=tuning)
    batches = [*keys(40)]
    for batch in batches:
        table.ingest(*rows(batch), metadata="inline")
    bases = reopen(storage).snapshot_at().bases
    assert any(base.after is not None for base in bases)
    assert content(reopen(storage)) == latest(batches)
    assert check_table(reopen(storage)) == []


def test_check_names_a_damaged_base_and_not_those_that_follow_it() -> None:
    tuning = Tuning(inline_bytes=0, base_merge_ratio=0.9, fold_at_logs=2, small_base_bytes=0)
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=3, group_rows=100_000, tuning=tuning)
    table.ingest(*rows([(f"k{number}", 0, 0) for number in range(5_000)]), metadata="inline")
    for turn in range(1, 30):
        changed = range(turn - 1, 5_000, turn * 50)
        table.ingest(*rows([(f"k{number}", turn, turn) for number in changed]), metadata="inline")
    damaged, *followers = reopen(storage).snapshot_at().bases
    assert damaged.after is None
    assert any(base.after == damaged.version for base in followers)
    storage.delete([damaged.path])
    storage.put_if_absent(damaged.path, b"damaged")
    assert {finding.path for finding in check_table(reopen(storage))} == {damaged.path}


class Counting(MemoryStorage):
    """Knows what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[str] = []

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.got.append(path)
        return super().get(path, start, length)


def test_upsert_reads_no_list_that_grows_with_the_segments() -> None:
    store = Counting()
    table = create(store, checkpoint_commits=4, tuning=LISTS_IN_FILES)
    for batch in keys(24):
        table.ingest(*rows(batch), metadata="inline", token=f"batch {batch}")
    store.got.clear()
    table.ingest(*rows([("k1", 99, 99)]), metadata="inline", token="one more")
    opened = {
        path.rpartition(layout.SECTIONS)[2].split("-")[2].partition(".")[0]
        for path in store.got
        if path.startswith(layout.SECTIONS)
    }
    assert opened <= {"runs", "tokens"}
