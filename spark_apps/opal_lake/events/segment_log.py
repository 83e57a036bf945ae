"""UNTIL events: from that time on, the row is not the valid one of its key. A grow-only set (FORMAT, segment logs)."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from opal_lake.data.segment import LogFile, check_rows
from opal_lake.decoding import decoding
from opal_lake.errors import FormatError
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

SCHEMA = pa.schema([pa.field("segment", pa.int64(), False), pa.field("offset", pa.int32(), False), pa.field("until", pa.int64(), False)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Rows (segment, offset) and the time, in the delta column's 64-bit order, from which each is not valid."""

    segment: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int32]
    until: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.segment)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> "Events":
        return Events(segment=self.segment[rows], offset=self.offset[rows], until=self.until[rows])


def concat_events(parts: Iterable[Events]) -> Events:
    """All of them, as they come."""
    members = [part for part in parts if len(part)]
    if len(members) == 1:
        return members[0]
    return Events(
        segment=np.concatenate([part.segment for part in members] or [np.empty(0, np.int64)]),
        offset=np.concatenate([part.offset for part in members] or [np.empty(0, np.int32)]),
        until=np.concatenate([part.until for part in members] or [np.empty(0, np.int64)]),
    )


def row_words(segments: npt.NDArray[np.int64], segment: npt.NDArray[np.int64], offset: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """A word a row, in the order of rows. Of few segments, the ranks and the offsets fit in a word, which sorts five times as fast."""
    return np.searchsorted(segments, segment) << 32 | offset


def least_events(events: Events) -> Events:
    """Sorted by row, the earliest event of each row only: the later ones say nothing more."""
    if not len(events):
        return events
    row = row_words(np.unique(events.segment), events.segment, events.offset)
    order = np.argsort(row)
    if (np.diff(row[order]) == 0).any():
        order = np.lexsort((events.until, row))
    ordered = events.take(order)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = (np.diff(ordered.segment) != 0) | (np.diff(ordered.offset) != 0)
    return ordered.take(first)


def encode_events(events: Events) -> bytes:
    """Events that are sorted by row, as a Parquet file."""
    table = pa.table([pa.array(events.segment), pa.array(events.offset), pa.array(events.until)], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["segment"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "until": "DELTA_BINARY_PACKED"},
        store_schema=False,
    )
    return bytes(sink.getvalue())


def decode_events(data: bytes, path: str) -> Events:
    return concat_events(event_parts(pa.BufferReader(data), path))


def event_parts(source: pa.NativeFile, path: str) -> Iterator[Events]:
    """A log by row groups, for callers that need not hold all of it."""
    with decoding(path, "a segment log", "run `opal check`"):
        file = pq.ParquetFile(source)
        if file.schema_arrow != SCHEMA:
            raise ValueError(f"its columns are {', '.join(map(str, file.schema_arrow))}")
        for group in range(file.num_row_groups):
            check_rows(file.metadata.row_group(group).num_rows, source.size())
            part = file.read_row_group(group, use_threads=False)
            part.validate()
            # to_numpy would import pandas
            columns: list[Any] = [np.from_dlpack(part[name].combine_chunks()) for name in SCHEMA.names]
            if len(columns[1]) and int(columns[1].min()) < 0:
                raise ValueError("it has an offset below 0")
            yield Events(segment=columns[0], offset=columns[1], until=columns[2])


def write_events(storage: Storage, path: str, events: Events, groups: tuple[int, ...]) -> LogFile:
    """Store events that are sorted by row. The path is the caller's own: it holds a claimed number."""
    data = encode_events(events)
    storage.put_if_absent(path, data)
    return LogFile(
        path=path,
        size=len(data),
        crc32=zlib.crc32(data),
        events=len(events),
        groups=groups,
        least_until=int(events.until.min()),
        greatest_until=int(events.until.max()),
    )


def read_events(storage: Storage, log: LogFile) -> Events:
    events = decode_events(read_verified(storage, log), log.path)
    if len(events) != log.events:
        raise FormatError(f"{storage.uri}/{log.path} holds {len(events)} events, the table says {log.events}; restore it from a backup")
    return events
