"""Runs as RocksDB databases, one a run: built once through a table file, closed, and then opened read-only by any number of processes.

The key is the 16 bytes of the hash, big endian, so that byte order is hash order; the value holds all entries of the key in order, each as
one fixed-width record. A last key beyond all hashes says how much there is: a database without it is not whole. Table files are ingested
as they are, so that nothing is logged, held in memory or compacted, and a database is two small files beside them.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opal_lake.errors import InvalidInputError
from opal_lake.key_store.entries import Entries, no_entries, sort_order
from opal_lake.key_store.probe import Neighbours, neighbours

try:
    from rocksdict import (
        AccessType,
        BlockBasedIndexType,
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        IngestExternalFileOptions,
        Options,
        Rdict,
        SstFileWriter,
    )
except ModuleNotFoundError as error:
    raise InvalidInputError(
        "spark.opal.cache.backend='rocksdb' needs rocksdict on every worker: pip install 'opal-lake[rocksdb]', or use 'mapped'"
    ) from error

TABLE_KEYS = 1 << 22  # a table file; the writer keeps its filter and index in memory
_ROWS = 1 << 16  # at a time as Python objects
_AT_ONCE = 1 << 12  # keys of one call
_FILTER_BITS = 10  # a key: wrong in 1% of its 'maybe'
_KEY = struct.Struct(">QQ")
_GREATEST = b"\xff" * _KEY.size
_MARKER = b"\xff" * (_KEY.size + 1)
_TOTALS = struct.Struct("<QQ")  # entries and tie-break columns
_CACHE_BYTES = 32 << 20
_BYTES_A_KEY = 30  # key, sequence number, lengths, filter and index
_BYTES_A_RUN = 8192
_NEEDED = ("CURRENT", "MANIFEST", "rocksdict-config.json")

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksRun:
    """An open database."""

    database: Rdict
    ties: int

    def neighbours(self, new: Entries) -> Neighbours:
        keys = _keys_of(new)
        with _as_os_error("a read failed"):
            get: Any = self.database.get
            values = [
                value
                for start in range(0, len(keys), _AT_ONCE)
                for value in get(keys[start : start + _AT_ONCE])
            ]
        pairs = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        return neighbours(_entries(pairs, self.ties), new)

    def slices(self, rows: int, low: int, high: int) -> Iterator[Entries]:
        pairs = self._pairs(low, high)
        while batch := list(islice(pairs, rows)):
            entries = _entries(batch, self.ties)
            for start in range(0, len(entries), rows):
                yield entries.take(slice(start, start + rows))

    def _pairs(self, low: int, high: int) -> Iterator[Pair]:
        """RocksDB ends an iteration at damage as at the end; but whole ones meet a key beyond the range, at least the marker."""
        last = high.to_bytes(8, "big") + _GREATEST[8:]
        with _as_os_error("a read failed"):
            pairs: Iterator[Any] = self.database.items(from_key=_KEY.pack(low, 0))
            for key, value in pairs:
                if key > last:
                    return
                yield key, value
        raise OSError("a RocksDB run ends before its last entry")


@dataclass(frozen=True, slots=True)
class RocksRuns:
    """RocksDB's own checksums are verified with every block that is read."""

    suffix: str = "rocks"

    def size_of(self, count: int, ties: int) -> int:
        return count * (_row_type(ties).itemsize + _BYTES_A_KEY) + _BYTES_A_RUN

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        path.mkdir()
        with _as_os_error(f"{path} cannot be written"):
            tables = list(_write_tables(_pairs_of(parts, ties), _TOTALS.pack(count, ties), path))
            with Rdict(str(path), _options()) as database:
                moved = IngestExternalFileOptions()
                moved.set_move_files(True)
                database.ingest_external_file([str(table) for table in tables], moved)
        for file in path.iterdir():
            if not file.name.startswith(_NEEDED) and file.suffix != ".sst":
                file.unlink()  # its log, the options it had, a lock: 30 kB that no reader needs

    def open(self, path: Path) -> RocksRun:
        os.stat(path / "CURRENT")  # RocksDB would begin a folder for what is not there
        with _as_os_error(f"{path} is not whole"):
            database = Rdict(str(path), _options(), access_type=AccessType.read_only(False))
            totals = database.get(_MARKER) or b""
        if len(totals) != _TOTALS.size:
            raise OSError(f"{path} is not whole")
        return RocksRun(database=database, ties=_TOTALS.unpack(totals)[1])


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    """rocksdict raises bare Exception; subclasses come from elsewhere."""
    try:
        yield
    except Exception as error:
        if type(error) is Exception:
            raise OSError(f"{what}: {error}") from error
        raise


def _options() -> Options:
    """Blocks are read, not mapped: RocksDB maps for random access, where each page faults by itself, at five times what reading it costs.
    Nor is read at random what is probed in order: the system may read ahead.

    Filters and indexes are cut in blocks too, so that what a process holds of all its runs is its cache. All table files are opened with
    the database, mostly one: an evicted run stays readable for whoever has it open.
    """
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(_FILTER_BITS, False)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_block_cache(_block_cache())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())
    options.set_advise_random_on_open(False)
    options.set_max_open_files(-1)
    options.set_disable_auto_compactions(True)
    return options


@cache
def _block_cache() -> Cache:
    """One for all databases of the process; what does not fit is in the system's page cache."""
    return Cache(_CACHE_BYTES)


def _write_tables(pairs: Iterator[Pair], totals: bytes, path: Path) -> Iterator[Path]:
    """Sorted pairs as table files of bounded size, the marker at the end of the last."""
    number, ended = 0, False
    while not ended:
        table = path / f"part-{number}"
        writer = SstFileWriter(_options())
        writer.open(str(table))
        written = 0
        for key, value in islice(pairs, TABLE_KEYS):
            writer[key] = value
            written += 1
        ended = written < TABLE_KEYS
        if ended:
            writer[_MARKER] = totals
        writer.finish()
        yield table
        number += 1


def _pairs_of(parts: Iterable[Entries], ties: int) -> Iterator[Pair]:
    """Each key once with all its entries, also those in later parts."""
    held: tuple[bytes, list[bytes]] = (b"", [])
    for key, value in _pieces(parts, ties):
        if key == held[0]:
            held[1].append(value)
            continue
        if held[0]:
            yield held[0], b"".join(held[1])
        held = key, [value]
    if held[0]:
        yield held[0], b"".join(held[1])


def _pieces(parts: Iterable[Entries], ties: int) -> Iterator[Pair]:
    """Keys with the entries that stand together within a part; a key may come again at once."""
    row = _row_type(ties)
    for part in parts:
        for start in range(0, len(part), _ROWS):
            rows = part.take(slice(start, start + _ROWS))
            first = _first_of_key(rows)
            data = _packed(rows, row).tobytes()
            ends = [*(first * row.itemsize).tolist(), len(data)]
            yield from zip(
                _key_bytes(rows.high[first], rows.low[first]),
                (data[a:b] for a, b in pairwise(ends)),
                strict=True,
            )


def _keys_of(new: Entries) -> list[bytes]:
    """The keys of new entries in order, each once."""
    keys = new.take(sort_order(new))
    first = _first_of_key(keys)
    return _key_bytes(keys.high[first], keys.low[first])


def _first_of_key(entries: Entries) -> npt.NDArray[np.intp]:
    """Of sorted entries, the positions at which a key begins."""
    begins = np.ones(len(entries), np.bool_)
    begins[1:] = (entries.high[1:] != entries.high[:-1]) | (entries.low[1:] != entries.low[:-1])
    return np.flatnonzero(begins)


def _key_bytes(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> list[bytes]:
    words = np.stack([high, low], axis=1).astype(">u8")
    keys: list[bytes] = words.view(f"V{_KEY.size}").ravel().tolist()
    return keys


def _row_type(ties: int) -> np.dtype[np.void]:
    tied = [(f"tie{number}", "<i8") for number in range(2 * ties)]
    return np.dtype(
        [("delta", "<i8"), *tied, ("segment", "<i8"), ("offset", "<i4"), ("deleted", "?")]
    )


def _packed(entries: Entries, row: np.dtype[np.void]) -> npt.NDArray[np.void]:
    rows = np.empty(len(entries), row)
    for name in ("delta", "segment", "offset", "deleted"):
        rows[name] = getattr(entries, name)
    for number, tie in enumerate(entries.ties):
        rows[f"tie{number}"] = tie
    return rows


def _entries(pairs: list[Pair], ties: int) -> Entries:
    """Keys in order with their entries, side by side."""
    if not pairs:
        return no_entries(ties)
    row = _row_type(ties)
    keys = (
        np.frombuffer(b"".join([key for key, _ in pairs]), ">u8").astype(np.uint64).reshape(-1, 2)
    )
    rows = np.frombuffer(b"".join([value for _, value in pairs]), row)
    times = [len(value) // row.itemsize for _, value in pairs]
    return Entries(
        high=np.repeat(keys[:, 0], times),
        low=np.repeat(keys[:, 1], times),
        delta=rows["delta"].astype(np.int64),
        ties=tuple(rows[f"tie{number}"].astype(np.int64) for number in range(2 * ties)),
        segment=rows["segment"].astype(np.int64),
        offset=rows["offset"].astype(np.int32),
        deleted=rows["deleted"].astype(np.bool_),
    )
