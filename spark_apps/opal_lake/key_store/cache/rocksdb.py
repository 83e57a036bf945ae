"""Runs as RocksDB databases, one for each run.

A database is built once through table files, closed, and then opened read-only by any number of
processes. The key is the 16 bytes of the hash, big endian, so that byte order is hash order; the
value holds all entries of the key in order, each as one fixed-width record. A last key beyond all
hashes holds the totals: a database without it is incomplete. Table files are ingested as they are,
so that nothing is logged, buffered or compacted; a database adds two small files to them.
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
        "spark.opal.cache.backend='rocksdb' needs rocksdict on every worker: "
        "pip install 'opal-lake[rocksdb]', or use 'mapped'"
    ) from error

# Keys of a table file: the writer holds the file's filter and index in memory
_TABLE_KEYS = 1 << 22
_ROWS_AT_ONCE = 1 << 16  # rows that are Python objects at the same time
_KEYS_A_CALL = 1 << 12  # keys that one call to RocksDB looks up
_FILTER_BITS = 10  # for each key: 1% of its answers "maybe" are wrong
_KEY = struct.Struct(">QQ")
_GREATEST = b"\xff" * _KEY.size
_MARKER = b"\xff" * (_KEY.size + 1)
_TOTALS = struct.Struct("<QQ")  # entries and tie-break columns
_CACHE_BYTES = 32 << 20
_BYTES_A_KEY = 30  # key, sequence number, lengths, filter and index
_BYTES_A_RUN = 8192
# The beginnings of the names of files that a reader needs, next to the table files.
_NEEDED = ("CURRENT", "MANIFEST", "rocksdict-config.json")

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksRun:
    """An open database."""

    database: Rdict
    ties: int
    keys_a_call: int = _KEYS_A_CALL

    def neighbours(self, new: Entries) -> Neighbours:
        keys = _keys_of(new)
        with _as_os_error("a read failed"):
            get_all: Any = self.database.get
            values: list[bytes | None] = []
            step = self.keys_a_call
            for start in range(0, len(keys), step):
                values += get_all(keys[start : start + step])
        pairs = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        return neighbours(_entries_of(pairs, self.ties), new)

    def slices(self, rows: int, low: int, high: int) -> Iterator[Entries]:
        pairs = self._pairs(low, high)
        while batch := list(islice(pairs, rows)):
            # As many keys as rows at most, but a key may have many entries.
            entries = _entries_of(batch, self.ties)
            for start in range(0, len(entries), rows):
                yield entries.take(slice(start, start + rows))

    def _pairs(self, low: int, high: int) -> Iterator[Pair]:
        """Yield the keys and values of a range.

        RocksDB ends an iteration at damage as it does at the end. An intact run has a key after the
        range, at least the marker: without one, the run is damaged and OSError is raised.
        """
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
    """The form of RocksDB, which verifies its own checksums with every read."""

    suffix: str = "rocks"
    table_keys: int = _TABLE_KEYS
    rows_at_once: int = _ROWS_AT_ONCE
    keys_a_call: int = _KEYS_A_CALL

    def size_of(self, count: int, ties: int) -> int:
        return count * (_row_type(ties).itemsize + _BYTES_A_KEY) + _BYTES_A_RUN

    def write(self, parts: Iterable[Entries], count: int, ties: int, path: Path) -> None:
        path.mkdir()
        with _as_os_error(f"{path} cannot be written"):
            pairs = _pairs_of(parts, ties, self.rows_at_once)
            totals = _TOTALS.pack(count, ties)
            tables = list(_write_tables(pairs, totals, path, self.table_keys))
            with Rdict(str(path), _options()) as database:
                move_files = IngestExternalFileOptions()
                move_files.set_move_files(True)
                database.ingest_external_file([str(table) for table in tables], move_files)
        # RocksDB's log, its options and a lock are 30 kB that no reader needs.
        for file in path.iterdir():
            is_needed = file.name.startswith(_NEEDED) or file.suffix == ".sst"
            if not is_needed:
                file.unlink()

    def open(self, path: Path) -> RocksRun:
        os.stat(path / "CURRENT")  # RocksDB would make a folder for a missing database
        with _as_os_error(f"{path} is incomplete"):
            access = AccessType.read_only(error_if_log_file_exist=False)
            database = Rdict(str(path), _options(), access_type=access)
            totals = database.get(_MARKER) or b""
        if len(totals) != _TOTALS.size:
            raise OSError(f"{path} is incomplete")
        _, ties = _TOTALS.unpack(totals)
        return RocksRun(database=database, ties=ties, keys_a_call=self.keys_a_call)


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    """Raise rocksdict's errors as OSError."""
    try:
        yield
    except Exception as error:
        # rocksdict raises bare Exception; subclasses come from elsewhere.
        if type(error) is Exception:
            raise OSError(f"{what}: {error}") from error
        raise


def _options() -> Options:
    """Return the options of writers and readers.

    Blocks are read, not mapped: RocksDB maps for random access, where each page faults separately,
    at five times the cost of a read. The system may read ahead, since keys are probed in order.

    Filters and indexes are cut into blocks too, so that the block cache bounds the memory for all
    runs of a process. All table files, mostly one, are opened with the database: an evicted run
    stays readable for the processes that have it open.
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
    """Return the one cache of the process, over the page cache of the system."""
    return Cache(_CACHE_BYTES)


def _write_tables(
    pairs: Iterator[Pair], totals: bytes, path: Path, table_keys: int
) -> Iterator[Path]:
    """Write sorted pairs to table files of bounded size; the marker ends the last."""
    number = 0
    is_last = False
    while not is_last:
        table = path / f"part-{number}"
        writer = SstFileWriter(_options())
        writer.open(str(table))
        written = 0
        for key, value in islice(pairs, table_keys):
            writer[key] = value
            written += 1
        is_last = written < table_keys
        if is_last:
            writer[_MARKER] = totals
        writer.finish()
        yield table
        number += 1


def _pairs_of(parts: Iterable[Entries], ties: int, rows_at_once: int) -> Iterator[Pair]:
    """Yield each key once with all its entries, also those in later parts."""
    current_key = b""
    values: list[bytes] = []
    for key, value in _pieces(parts, ties, rows_at_once):
        if key == current_key:
            values.append(value)
            continue
        if current_key:
            yield current_key, b"".join(values)
        current_key = key
        values = [value]
    if current_key:
        yield current_key, b"".join(values)


def _pieces(parts: Iterable[Entries], ties: int, rows_at_once: int) -> Iterator[Pair]:
    """Yield each key with its consecutive entries in a part, packed.

    The next piece has the same key if the key's entries continue there.
    """
    row = _row_type(ties)
    for part in parts:
        for start in range(0, len(part), rows_at_once):
            rows = part.take(slice(start, start + rows_at_once))
            first = _first_of_key(rows)
            keys = _key_bytes(rows.high[first], rows.low[first])
            data = _packed(rows, row).tobytes()
            ends = [*(first * row.itemsize).tolist(), len(data)]
            values = (data[begin:end] for begin, end in pairwise(ends))
            yield from zip(keys, values, strict=True)


def _keys_of(new: Entries) -> list[bytes]:
    """Return the keys of new entries in order, each once."""
    keys = new.take(sort_order(new))
    first = _first_of_key(keys)
    return _key_bytes(keys.high[first], keys.low[first])


def _first_of_key(entries: Entries) -> npt.NDArray[np.intp]:
    """Return the positions at which a key of sorted entries begins."""
    high, low = entries.high, entries.low
    is_first = np.ones(len(entries), np.bool_)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return np.flatnonzero(is_first)


def _key_bytes(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> list[bytes]:
    """Return each hash as 16 bytes, big endian."""
    words = np.stack([high, low], axis=1).astype(">u8")
    # A row of two words as one value of 16 bytes
    whole_keys = words.view(f"V{_KEY.size}").ravel()
    keys: list[bytes] = whole_keys.tolist()
    return keys


def _row_type(ties: int) -> np.dtype[np.void]:
    tie_fields = [(f"tie{number}", "<i8") for number in range(2 * ties)]
    row_fields = [("segment", "<i8"), ("offset", "<i4"), ("deleted", "?")]
    return np.dtype([("delta", "<i8"), *tie_fields, *row_fields])


def _packed(entries: Entries, row: np.dtype[np.void]) -> npt.NDArray[np.void]:
    rows = np.empty(len(entries), row)
    for name in ("delta", "segment", "offset", "deleted"):
        rows[name] = getattr(entries, name)
    for number, tie in enumerate(entries.ties):
        rows[f"tie{number}"] = tie
    return rows


def _entries_of(pairs: list[Pair], ties: int) -> Entries:
    """Decode keys in order and their entries."""
    if not pairs:
        return no_entries(ties)
    row = _row_type(ties)
    key_bytes = b"".join([key for key, _ in pairs])
    keys = np.frombuffer(key_bytes, ">u8").astype(np.uint64).reshape(-1, 2)
    row_bytes = b"".join([value for _, value in pairs])
    rows = np.frombuffer(row_bytes, row)
    rows_by_key = [len(value) // row.itemsize for _, value in pairs]
    return Entries(
        high=np.repeat(keys[:, 0], rows_by_key),
        low=np.repeat(keys[:, 1], rows_by_key),
        delta=rows["delta"].astype(np.int64),
        ties=tuple(rows[f"tie{number}"].astype(np.int64) for number in range(2 * ties)),
        segment=rows["segment"].astype(np.int64),
        offset=rows["offset"].astype(np.int32),
        deleted=rows["deleted"].astype(np.bool_),
    )
