"""The contract of a cache of runs: no damage makes an answer wrong."""

import os
import random
import shutil
import stat
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opal_lake.data.segment import RunFile
from opal_lake.errors import FormatError, StorageError
from opal_lake.key_store.cache.near_runs import BACKENDS, NearRuns, near_form
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.entries import greatest_of_equal
from opal_lake.key_store.run import encode_run, open_index, reader_of
from opal_lake.storage import Storage
from tests.contracts.run_caches import (
    SMALL_BLOCKS,
    brute_force,
    cache_of,
    drawn,
    found_rows,
    near_files,
    probes_of,
    put_run,
    replace_object,
    rows_of,
    sliced,
)

# Damage near


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def garbled(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(file.stat().st_size))


def removed(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("harm", [cut_off, emptied, garbled, removed])
def test_incomplete_near_copy_is_derived_again(
    local: Storage, backend: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    stored = greatest_of_equal(drawn(5, 2_000, 700))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    cache_of(local, backend, tmp_path / "near").keep(run, stored)
    [copy] = near_files(cache_of(local, backend, tmp_path / "near"))
    for name in [""] if copy.is_file() else sorted(file.name for file in copy.iterdir()):
        harm(copy / name)
        cache = cache_of(local, backend, tmp_path / "near")
        assert found_rows(cache, run, new) == brute_force(stored, new), name
        assert sliced(cache, run, 700) == rows_of(stored), name
        assert len(near_files(cache)) == 1


def test_mapped_copy_from_before_the_machine_started_is_derived_again(
    local: Storage, tmp_path: Path
) -> None:
    """Derive a copy again whose pages a crash may have lost."""
    stored = greatest_of_equal(drawn(5, 2_000, 700))
    run = put_run(local, stored)
    cache_of(local, "mapped", tmp_path / "near").keep(run, stored)
    [copy] = near_files(cache_of(local, "mapped", tmp_path / "near"))
    data = copy.read_bytes()
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.is_file():
        pytest.skip("this system does not tell its starts apart")
    assert data.count(boot.read_bytes()[:36]) == 1
    copy.write_bytes(bytes(len(data) - 60) + data[-60:].replace(boot.read_bytes()[:36], b"x" * 36))
    cache = cache_of(local, "mapped", tmp_path / "near")
    assert found_rows(cache, run, stored) == brute_force(stored, stored)
    assert copy.read_bytes() == data


@pytest.mark.parametrize("other", BACKENDS)
def test_other_file_at_the_path_of_a_copy_is_removed(
    local: Storage, backend: str, other: str, tmp_path: Path
) -> None:
    """Clear away files and folders at the path of a copy."""
    stored = greatest_of_equal(drawn(5, 2_000, 700))
    run, new = put_run(local, stored), probes_of(stored, 6, 200)
    cache_of(local, backend, tmp_path / "near").keep(run, stored)
    [copy] = near_files(cache_of(local, backend, tmp_path / "near"))
    shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
    if other == "rocksdb":
        copy.mkdir()
        (copy / "CURRENT").write_bytes(b"MANIFEST-000009\n")
    else:
        copy.write_bytes(b"something")
    cache = cache_of(local, backend, tmp_path / "near")
    assert found_rows(cache, run, new) == brute_force(stored, new)
    assert near_files(cache) == [copy]
    assert found_rows(cache, run, new) == brute_force(stored, new)
    assert cache.opened


def flip_in_table(cache: NearRuns, share: float) -> tuple[Path, bytes]:
    """One bit of the only table file of the only copy."""
    [copy] = near_files(cache)
    [table] = copy.glob("*.sst")
    data = bytearray(table.read_bytes())
    data[int(len(data) * share)] ^= 1
    table.write_bytes(data)
    return table, bytes(data)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_damaged_copy_of_rocksdb_is_derived_again(
    local: Storage, share: float, tmp_path: Path
) -> None:
    """Damage a copy, also while it is read; the store answers meanwhile."""
    stored = greatest_of_equal(drawn(5, 20_000, 20_000))
    run, new = put_run(local, stored), probes_of(stored, 6, 20_000)
    expected = brute_force(stored, new)
    for folder in (tmp_path / "sliced", tmp_path / "probed"):
        cache_of(local, "rocksdb", folder).keep(run, stored)
        cache = cache_of(local, "rocksdb", folder)
        table, data = flip_in_table(cache, share)
        assert list(cache.slices(run, 10, 0, 0)) == []
        assert cache.opened, "the damage is not where it is opened"
        if folder.name == "sliced":
            assert sliced(cache, run, 100) == rows_of(stored)
            assert near_files(cache) == []
        assert found_rows(cache, run, new) == expected
        assert table.parent in near_files(cache)
        assert table.read_bytes() != data


def test_rocksdb_tables_are_of_bounded_size(tmp_path: Path) -> None:
    from opal_lake.key_store.cache.rocksdb import RocksRuns

    stored = greatest_of_equal(drawn(5, 3_000, 3_000))
    keys = len({row[:2] for row in rows_of(stored)})
    new = probes_of(stored, 6, 3_000)
    for bound in (keys, keys // 3, 100):  # a last table with the marker alone, too
        # Pieces of 7 rows: keys go on in the next piece
        form = RocksRuns(table_keys=bound, rows_at_once=7, keys_a_call=7)
        copy = tmp_path / f"near-{bound}"
        form.write([stored], len(stored), len(stored.ties) // 2, copy)
        assert len(list(copy.glob("*.sst"))) == keys // bound + 1
        near = form.open(copy)
        slices = [rows_of(part) for part in near.slices(1_000, 0, GREATEST_WORD)]
        assert [row for part in slices for row in part] == rows_of(stored)
        assert rows_of(near.neighbours(new).entries) == brute_force(stored, new)


# Who may write to the folder


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def open_to_the_group(folder: Path) -> None:
    folder.chmod(0o770)


def another_users(folder: Path) -> None:
    if os.getuid():
        pytest.skip("only root gives a folder away")
    os.chown(folder, 12345, 12345)


def linked(folder: Path) -> None:
    folder.rename(folder.with_suffix(".elsewhere"))
    folder.symlink_to(folder.with_suffix(".elsewhere"))


@pytest.mark.parametrize("harm", [open_to_all, open_to_the_group, another_users, linked])
def test_a_folder_that_others_may_write_to_is_refused(
    local: Storage, backend: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """Refuse a folder before it is written to or trusted."""
    stored = greatest_of_equal(drawn(5, 500, 200))
    run = put_run(local, stored)
    cache_of(local, backend, tmp_path).keep(run, stored)
    harm(cache_of(local, backend, tmp_path).settings.path)
    cache = cache_of(local, backend, tmp_path)
    for call in (
        lambda: cache.keep(run, stored),
        lambda: cache.neighbours([run], stored),
        lambda: list(cache.slices(run, 10)),
    ):
        with pytest.raises(StorageError, match="others may write"):
            call()


def test_folder_belongs_to_the_user_and_no_neighbour_changes(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    """Keep other files of a cache folder, however small the cache is."""
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "precious").write_bytes(b"x" * 1_000_000)
    parts = [greatest_of_equal(drawn(seed, 3_000, 1_000)) for seed in range(4)]
    cache = cache_of(
        local, backend, tmp_path / "near", max_bytes=int(1.5 * near_form(backend).size_of(3_000, 1))
    )
    for part in parts:
        cache.keep(put_run(local, part), part)
    assert (tmp_path / "near" / "precious").stat().st_size == 1_000_000
    assert stat.S_IMODE(cache.settings.path.stat().st_mode) == 0o700
    assert len(near_files(cache)) == 1


def test_a_folder_that_cannot_be_made_is_named(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    stored = greatest_of_equal(drawn(5, 500, 200))
    with pytest.raises(StorageError, match=r"cannot make.*spark\.opal\.cache\.folder"):
        cache_of(local, backend, tmp_path / "file").keep(put_run(local, stored), stored)


# Damage in the store


def regions(data: bytes) -> dict[str, list[int]]:
    """Bytes of every region of a run; all of the fixed head, some of the rest."""
    index = open_index(reader_of(data), "a run")
    listed = index.start - index.directory.nbytes
    blocks = index.start + index.filter_size
    middle = blocks + int(index.directory["size"][: len(index.directory) // 2].sum())
    return {
        "header": [*range(16), 16, (16 + listed) // 2, listed - 1],
        "directory": [listed, listed + 8, listed + 16, listed + 20, listed + 24, index.start - 1],
        "filter": [index.start, (index.start + blocks) // 2, blocks - 1],
        "block": [blocks, blocks + 600, middle, middle + 1, len(data) - 1],
    }


@pytest.mark.parametrize("region", ["header", "directory", "filter", "block"])
def test_a_damaged_run_is_named_and_never_believed(
    local: Storage, backend: str, region: str, tmp_path: Path
) -> None:
    """The filter is only asked by probes: to read all entries it is no matter."""
    stored = greatest_of_equal(drawn(5, 2_000, 1_500))
    run = put_run(local, stored, **SMALL_BLOCKS)
    data = local.get(run.path)
    for at in regions(data)[region]:
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        replace_object(local, run.path, bytes(broken))
        for way, room in (("brought", 1 << 30), ("far", 0)):
            cache = cache_of(local, backend, tmp_path / way, max_bytes=room)
            with pytest.raises(FormatError, match=run.path):
                cache.neighbours([run], stored)
            if region == "filter":
                assert sliced(cache, run, 100) == rows_of(stored)
                continue
            with pytest.raises(FormatError, match=run.path):
                sliced(cache, run, 100)
    replace_object(local, run.path, data)
    assert found_rows(cache_of(local, backend, tmp_path / "brought"), run, stored) == brute_force(
        stored, stored
    )


def test_a_run_that_is_cut_off_is_named(storage: Storage, backend: str, tmp_path: Path) -> None:
    stored = greatest_of_equal(drawn(5, 2_000, 1_500))
    run = put_run(storage, stored, **SMALL_BLOCKS)
    data = storage.get(run.path)
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        replace_object(storage, run.path, data[:size])
        for room in (1 << 30, 0):
            cache = cache_of(storage, backend, tmp_path / "near", max_bytes=room)
            with pytest.raises(FormatError, match=run.path):
                cache.neighbours([run], stored)
            assert not [path for path in near_files(cache) if path.is_file() or any(path.iterdir())]


def test_a_missing_run_is_named(storage: Storage, backend: str, tmp_path: Path) -> None:
    stored = greatest_of_equal(drawn(5, 500, 200))
    run = put_run(storage, stored)
    storage.delete([run.path])
    for room in (1 << 30, 0):
        cache = cache_of(storage, backend, tmp_path / "near", max_bytes=room)
        with pytest.raises(FormatError, match=f"{run.path} is missing"):
            cache.neighbours([run], stored)
        with pytest.raises(FormatError, match=f"{run.path} is missing"):
            list(cache.slices(run, 10))


def test_sound_run_at_the_path_of_another_is_refused(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    stored, other = (greatest_of_equal(drawn(seed, 500, 500)) for seed in (5, 6))
    run = put_run(local, stored)
    data = encode_run(other)
    replace_object(local, run.path, data)
    run_of_other = replace(
        run,
        size=len(data),
        crc32=zlib.crc32(data),
        hash_low=int(other.high[0]),
        hash_high=int(other.high[-1]),
    )
    for room in (1 << 30, 0):
        cache = cache_of(local, backend, tmp_path / "near", max_bytes=room)
        with pytest.raises(FormatError, match=r"the table says"):
            cache.neighbours([run], stored)
        wrong_size = replace(run_of_other, size=len(data) + 1)
        with pytest.raises(
            FormatError, match=f"is a run of {len(data)} bytes, the table says {len(data) + 1};"
        ):
            list(cache.slices(wrong_size, 10))
        first_hash = int(other.high[0])
        wrong_hash = replace(run_of_other, hash_low=first_hash - 1)
        with pytest.raises(
            FormatError,
            match=f"begins with the hash {first_hash}, the table says {first_hash - 1};",
        ):
            list(cache.slices(wrong_hash, 10))
        wrong = replace(run, entries=run.entries + 1)
        with pytest.raises(
            FormatError, match=f"holds {len(other)} entries, the table says {run.entries + 1}"
        ):
            list(cache.slices(wrong, 10))


def test_equal_names_with_other_bytes_are_other_runs(
    local: Storage, backend: str, tmp_path: Path
) -> None:
    """Create a table again at its path, with runs of the same names."""
    stored, other = (greatest_of_equal(drawn(seed, 500, 500)) for seed in (5, 6))
    run = put_run(local, stored)
    cache = cache_of(local, backend, tmp_path / "near")
    cache.keep(run, stored)
    local.delete([run.path])
    data = encode_run(other)
    local.put_if_absent(run.path, data)
    low, high = int(other.high[0]), int(other.high[-1])
    again = RunFile(
        path=run.path,
        size=len(data),
        crc32=zlib.crc32(data),
        entries=len(other),
        hash_low=low,
        hash_high=high,
        greatest_delta=int(other.delta.max()),
    )
    for asked in (cache, cache_of(local, backend, tmp_path / "near")):
        assert found_rows(asked, again, other) == brute_force(other, other)
