"""One bin of a rewrite, in a task: rows pass from old files into new ones, a row group at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake import layout
from opal_lake.data.data_file import FileEncoder, decode_parts
from opal_lake.data.decoded_size import BOUND, SizeBound
from opal_lake.data.outside_ids import RowBases
from opal_lake.data.segment import Cluster, DataFile, RunFile
from opal_lake.data.spool import room_errors, spool
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.events.bitmap import Bitmaps, Marks, add_events
from opal_lake.events.segment_log import Events
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance.compaction_plan import Bin
from opal_lake.rule.metagen import entries_of_rows, followed_by
from opal_lake.storage.background_puts import background_puts
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_verified

FILES_A_BIN = 1 << 12
ROLL_SHARE = 1.25  # of the target: where rows take more room than they took before, one file too large is better than a tiny one


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """What all tasks of a rewrite need to know. With a floor, rows that no view from it on shows are left out."""

    storage: Storage
    spec: TableSpec
    number: int
    target_bytes: int
    floor: int | None = None
    cache: RunCache | None = None
    runs: tuple[RunFile, ...] = ()
    bound: SizeBound = BOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class BinWork:
    """A bin, its position among the others of the job, and the rows of it that no event time from the floor on shows."""

    position: int
    bin: Bin
    row_bases: RowBases | None
    droppable: Bitmaps = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a task wrote in the place of which files, and which rows it left out."""

    replaced: tuple[str, ...]
    files: tuple[DataFile, ...]
    bytes_read: int
    dropped: Bitmaps = field(default_factory=dict)

    @property
    def dropped_rows(self) -> int:
        return sum(map(len, self.dropped.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The place of rewritten rows: next to a file, under a name that begins so.

    It also says how they are compressed and ordered.

    By `row_bases` the file says how the outside knows its rows; None if its format does not.
    """

    beside: DataFile
    sequence: int
    attempt: str
    row_bases: RowBases | None
    codec: str = ""
    cluster: Cluster | None = None
    floor: int | None = None


def rewrite_bin(task: RewriteTask, work: BinWork, attempt: str) -> Rewritten:
    """Files of a bin as few new ones."""
    dropped: Bitmaps = {}
    target = Target(
        beside=work.bin.files[0],
        sequence=work.position * FILES_A_BIN,
        attempt=attempt,
        row_bases=work.row_bases,
        codec=work.bin.codec,
        cluster=work.bin.cluster,
        floor=work.bin.floor if task.floor is None else task.floor,
    )
    files = write_files(_kept_rows(task, work, dropped), task, target)
    return Rewritten(
        replaced=tuple(file.path for file in work.bin.files),
        files=files,
        bytes_read=work.bin.size,
        dropped=dropped,
    )


def row_bases_of(base: Snapshot, files: Iterable[DataFile]) -> RowBases | None:
    """Return what rewritten files need to say how the outside knows their rows; None for ORC."""
    if base.spec.file_format != "parquet":
        return None
    return RowBases.of(base.segments_of(files))


def _kept_rows(task: RewriteTask, work: BinWork, dropped: Bitmaps) -> Iterator[pa.Table]:
    marks = Marks.of(work.droppable)
    for file in work.bin.files:
        for rows in decode_parts(
            read_verified(task.storage, file),
            task.spec,
            file.path,
            rows=file.rows,
            bound=task.bound,
        ):
            gone = _droppable(rows, marks, task)
            if gone.any():
                add_events(dropped, _ids_of(rows, gone))
                rows = rows.filter(pa.array(~gone))
            yield rows


def _ids_of(rows: pa.Table, chosen: npt.NDArray[np.bool_]) -> Events:
    segment, offset = rows[SEGMENT].to_numpy()[chosen], rows[OFFSET].to_numpy()[chosen]
    return Events(segment=segment, offset=offset, until=np.zeros(len(segment), np.int64))


def _droppable(rows: pa.Table, marks: Marks, task: RewriteTask) -> npt.NDArray[np.bool_]:
    """A delete ends at its own time, so that only the key store knows whether it is the latest of its key, which late rows need."""
    gone = marks.at(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
    if task.floor is None or not gone.any() or DELETED not in rows.column_names:
        return gone
    deletes = np.flatnonzero(
        gone & np.asarray(pc.fill_null(rows[DELETED], False).to_numpy(), np.bool_)
    )
    if len(deletes):
        assert task.cache is not None
        entries = entries_of_rows(rows.take(pa.array(deletes)), task.spec)
        order = np.argsort(entries.high)
        ordered = entries.take(order)
        beyond = replace(
            ordered, offset=ordered.offset + 1
        )  # the nearest entry that is not before a stored row is the row itself
        superseded = followed_by(task.floor, ordered, task.cache.neighbours(task.runs, beyond))
        gone[deletes[order][~superseded]] = False
    return gone


def write_files(
    parts: Iterable[pa.Table], task: RewriteTask, target: Target
) -> tuple[DataFile, ...]:
    """Rows in the order in which they come; a new file where one is full."""
    files: list[DataFile] = []
    with room_errors(), background_puts(task.storage) as storage:
        held: tuple[FileEncoder, set[int]] | None = None
        for rows in parts:
            if rows.num_rows:
                held = held or (_encoder(task, target), set())
                numbered = rows if target.row_bases is None else target.row_bases.numbered(rows)
                held[0].add(numbered)
                held[1].update(pc.unique(rows[SEGMENT]).to_pylist())
                if held[0].size >= ROLL_SHARE * task.target_bytes:
                    files.append(_stored(held, task, target, len(files), storage))
                    held = None
        if held:
            files.append(_stored(held, task, target, len(files), storage))
    return tuple(files)


def _encoder(task: RewriteTask, target: Target) -> FileEncoder:
    level = target.codec.partition(":")[2]
    return FileEncoder(
        spec=task.spec,
        level=int(level) if level else None,
        sink=spool(),
        bound=task.bound,
        has_outside_ids=target.row_bases is not None,
    )


def _stored(
    held: tuple[FileEncoder, set[int]],
    task: RewriteTask,
    target: Target,
    count: int,
    storage: Storage,
) -> DataFile:
    encoded = held[0].finish()
    stem = layout.job_file_name(task.number, target.sequence + count, target.attempt)
    path = layout.beside(target.beside.path, stem, task.spec.file_format)
    storage.put_if_absent(path, encoded.data)
    return DataFile(
        path=path,
        size=len(encoded.data),
        crc32=encoded.crc32,
        footer_bytes=encoded.footer_bytes,
        footer_crc32=encoded.footer_crc32,
        rows=encoded.rows,
        group=target.beside.group,
        segments=tuple(sorted(held[1])),
        bounds=encoded.bounds,
        cluster=target.cluster,
        codec=target.codec,
        floor=target.floor,
    )
