"""Runs with drawn entries, brute force, and caches in a folder: what tests of caches share."""

import random
import uuid
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opal_lake.data.segment import RunFile
from opal_lake.key_store.cache.near_runs import CacheSettings, NearRuns
from opal_lake.key_store.cache.protocol import GREATEST_WORD
from opal_lake.key_store.entries import (
    Entries,
    concat_entries,
    greatest_of_equal,
    no_entries,
    sorted_entries,
)
from opal_lake.key_store.run import BLOCK, FILTER_FROM, encode_run
from opal_lake.storage import Storage

Row = tuple[int, ...]
WAYS = ("kept", "brought", "far")


def entries_of(rows: Sequence[Row], ties: int) -> Entries:
    """Rows (high, low, delta, ties, segment, offset, deleted), as a run has them."""
    if not rows:
        return no_entries(ties)
    high, low, delta, *tied, segment, offset, deleted = zip(*rows, strict=True)
    return Entries(
        high=np.array(high, np.uint64),
        low=np.array(low, np.uint64),
        delta=np.array(delta, np.int64),
        ties=tuple(np.array(tie, np.int64) for tie in tied),
        segment=np.array(segment, np.int64),
        offset=np.array(offset, np.int32),
        deleted=np.array(deleted, np.bool_),
    )


# Blocks and filters in runs of few entries
SMALL_BLOCKS = {"block_entries": 64, "filter_from": 512}


def rows_of(entries: Entries) -> list[Row]:
    columns = [*entries.order_columns, entries.deleted.astype(np.int64)]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def stored_entries(rows: Sequence[Row], ties: int) -> Entries:
    return greatest_of_equal(sorted_entries(entries_of(rows, ties)))


def drawn(seed: int, count: int, keys: int, ties: int = 1) -> Entries:
    """Draw as many entries, of about as many keys.

    Some keys share their first word, a few have very many versions.
    """
    rng = random.Random(seed)
    words = [rng.getrandbits(64) for _ in range(max(keys, 1))]
    rows: list[Row] = []
    for serial in range(count):
        word = (
            words[min(int(rng.expovariate(4 / len(words))), len(words) - 1)]
            if rng.random() < 0.2
            else rng.choice(words)
        )
        tied = [value for _ in range(ties) for value in rng.choice([(0, 0), (1, -5), (1, 9)])]
        rows.append(
            (
                word,
                rng.choice([0, word]),
                rng.randint(-(1 << 40), 1 << 40),
                *tied,
                serial >> 10,
                serial & 1023,
                rng.random() < 0.1,
            )
        )
    return sorted_entries(entries_of(rows, ties))


def probes_of(stored: Entries, seed: int, count: int) -> Entries:
    """Half of them with existing keys, at other times."""
    ties = len(stored.ties) // 2
    other = drawn(seed, count // 2, count // 2, ties)
    if not len(stored):
        return other
    rng = np.random.default_rng(seed)
    known = stored.take(rng.integers(0, len(stored), count // 2))
    return sorted_entries(
        concat_entries(
            [other, replace(known, delta=known.delta + rng.integers(-3, 4, len(known)) * (1 << 30))]
        )
    )


def brute_force(stored: Entries, new: Entries) -> list[Row]:
    """Return for each new row the stored rows of its key right before and after it."""
    by_key: dict[Row, list[Row]] = defaultdict(list)
    for row in rows_of(stored):
        by_key[row[:2]].append(row)
    near = set()
    for row in rows_of(new):
        same = by_key.get(row[:2], [])
        at = bisect_left([other[2:-1] for other in same], row[2:-1])
        near.update(same[max(at - 1, 0) : at + 1])
    return sorted(near)


def put_run(
    storage: Storage,
    entries: Entries,
    *,
    block_entries: int = BLOCK,
    filter_from: int = FILTER_FROM,
) -> RunFile:
    data = encode_run(entries, block_entries=block_entries, filter_from=filter_from)
    path = f"_opal/key_store/{uuid.uuid4().hex}.run"
    assert storage.put_if_absent(path, data)
    bounds = (int(entries.high[0]), int(entries.high[-1])) if len(entries) else (0, GREATEST_WORD)
    latest = int(entries.delta.max()) if len(entries) else 0
    size, crc32 = len(data), zlib.crc32(data)
    return RunFile(
        path=path,
        size=size,
        crc32=crc32,
        entries=len(entries),
        hash_low=bounds[0],
        hash_high=bounds[1],
        greatest_delta=latest,
    )


def replace_object(storage: Storage, path: str, data: bytes) -> None:
    storage.delete([path])
    assert storage.put_if_absent(path, data)


def cache_of(storage: Storage, backend: str, folder: Path, max_bytes: int = 1 << 30) -> NearRuns:
    return NearRuns(
        storage=storage,
        settings=CacheSettings(backend=backend, folder=str(folder), max_bytes=max_bytes),
    )


def caches(
    storage: Storage, backend: str, run: RunFile, entries: Entries, folder: Path
) -> Iterator[tuple[str, NearRuns]]:
    """Return a run in a written cache, in one that fetches, and in one without room."""
    for way in WAYS:
        cache = cache_of(storage, backend, folder / way, 0 if way == "far" else 1 << 30)
        if way == "kept":
            cache.keep(run, entries)
        yield way, cache


def near_files(cache: NearRuns) -> list[Path]:
    return sorted(cache.settings.path.iterdir()) if cache.settings.path.exists() else []


def size_on_disk(cache: NearRuns) -> int:
    return sum(
        file.stat().st_size
        for entry in near_files(cache)
        for file in [entry, *entry.rglob("*")]
        if file.is_file()
    )


def found_rows(cache: NearRuns, run: RunFile, new: Entries) -> list[Row]:
    return [row for entries in cache.neighbours([run], new) for row in rows_of(entries)]


def sliced(
    cache: NearRuns, run: RunFile, rows: int, low: int = 0, high: int = GREATEST_WORD
) -> list[Row]:
    parts = [rows_of(part) for part in cache.slices(run, rows, low, high)]
    assert all(len(part) <= rows for part in parts)
    return [row for part in parts for row in part]
