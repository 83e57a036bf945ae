"""The tasks of an erasure: they find the keys and rows to erase, and filter runs of the key store.

A row that a task finds may be visible, superseded, a delete or pending: an erasure asks for rows
that are stored, whatever a read shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opal_lake import layout
from opal_lake.data.columns import to_logical
from opal_lake.data.data_file import decode_parts, stored_parts
from opal_lake.data.segment import DataFile, RunFile
from opal_lake.definition.key_hash import hash_keys
from opal_lake.definition.schema import OFFSET, SEGMENT, Atomic
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.bitmap import Bitmaps, add_rows
from opal_lake.key_store.entries import Entries, concat_entries
from opal_lake.read.where import where_condition
from opal_lake.rule.slot import SlotWriter, write_run
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

RUN_ROWS = 1 << 20  # entries of a run that are read at once
_HASH = np.dtype([("high", np.uint64), ("low", np.uint64)])
Hashes = npt.NDArray[np.void]  # key hashes, each a pair of words


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTask:
    """The arguments of tasks that find the keys of rows that meet `where`."""

    storage: Storage
    spec: TableSpec
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask:
    """The arguments of tasks that find rows: all rows of the keys with these hashes.

    In a table without keys, they are the rows that meet the condition.
    """

    storage: Storage
    spec: TableSpec
    where: str
    hashes: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRunTask:
    """The arguments of tasks that write runs again without the entries of some keys."""

    writer: SlotWriter
    hashes: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRun:
    """A run with entries of erased keys, and the run that replaces it, if any."""

    replaced: RunFile
    made: RunFile | None
    erased: int


def no_hashes() -> Hashes:
    """Return zero key hashes."""
    return np.empty(0, _HASH)


def united(parts: Sequence[Hashes]) -> Hashes:
    """Return the key hashes of all parts, each once and in order."""
    return np.unique(np.concatenate([no_hashes(), *parts]))


def keys_in_file(task: KeyTask, file: DataFile, attempt: str) -> Hashes:
    """Return the key hashes of the rows of a file that meet the condition."""
    matches: list[Hashes] = []
    data = read_verified(task.storage, file)
    for rows in decode_parts(data, task.spec, file.path, rows=file.rows):
        is_matching = _matching(rows, task.spec, task.where)
        matches.append(_hashes(rows.filter(is_matching), task.spec))
    return united(matches)


def rows_in_file(task: RowTask, file: DataFile, attempt: str) -> Bitmaps:
    """Return the rows of a file that are to be erased, by segment."""
    matches: Bitmaps = {}
    data = read_verified(task.storage, file)
    names = None
    if task.spec.has_keys:
        names = [*(field.physical for field in task.spec.keys), SEGMENT, OFFSET]
    source = pa.BufferReader(data)
    for rows in stored_parts(source, task.spec, names, file.path, rows=file.rows):
        if task.spec.has_keys:
            is_erased = np.isin(_hashes(rows, task.spec), task.hashes)
        else:
            is_erased = np.asarray(_matching(rows, task.spec, task.where), np.bool_)
        segment = rows[SEGMENT].to_numpy()[is_erased]
        offset = rows[OFFSET].to_numpy()[is_erased]
        add_rows(matches, segment, offset)
    return matches


def erase_in_run(task: EraseRunTask, run: RunFile, attempt: str) -> ErasedRun | None:
    """Write a run again without entries of erased keys; return None if it has none."""
    parts = [*task.writer.cache.slices(run, RUN_ROWS)]
    entries = concat_entries(parts)
    is_erased = np.isin(_pairs(entries.high, entries.low), task.hashes)
    if not is_erased.any():
        return None
    remaining: Entries = entries.take(~is_erased)
    made = None
    if len(remaining):
        number = task.writer.runs.index(run)
        stem = layout.job_file_name(task.writer.number, number, attempt)
        made = write_run(replace(task.writer, runs=()), remaining, stem)
    return ErasedRun(replaced=run, made=made, erased=int(is_erased.sum()))


def _matching(rows: pa.Table, spec: TableSpec, where: str) -> pa.BooleanArray:
    tested = where_condition(where, spec)
    assert tested is not None
    return tested.holds(to_logical(rows, spec), numbered=False)


def _hashes(rows: pa.Table, spec: TableSpec) -> Hashes:
    types = [field.type for field in spec.keys if isinstance(field.type, Atomic)]
    columns = [rows[field.physical] for field in spec.keys]
    words = hash_keys(columns, types)
    return _pairs(words[:, 0], words[:, 1])


def _pairs(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> Hashes:
    pairs = np.empty(len(high), _HASH)
    pairs["high"] = high
    pairs["low"] = low
    return pairs
