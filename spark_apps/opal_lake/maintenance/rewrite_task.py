"""A task of a rewrite: it copies the rows of a bin from old files into new ones, by row groups."""

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

FILES_A_BIN = 1 << 12  # at most: the sequence numbers that a bin has for its file names
# Of the target size. Where rows need more room than before, one file too large is better than a
# second one that is tiny
ROLL_SHARE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """The arguments of all tasks of a rewrite.

    With a floor, tasks leave out rows that no event time from the floor on shows.
    """

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
    """A bin, and its position among those of the job.

    `droppable` are the rows of the bin that no event time from the floor on shows.
    """

    position: int
    bin: Bin
    row_bases: RowBases | None
    droppable: Bitmaps = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The output of a task: new files, paths of replaced files, and the rows left out."""

    replaced: tuple[str, ...]
    files: tuple[DataFile, ...]
    bytes_read: int
    dropped: Bitmaps = field(default_factory=dict)

    @property
    def dropped_rows(self) -> int:
        return sum(map(len, self.dropped.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The folder, name and form of rewritten files.

    The new files lie in the folder of the file `neighbour`, and are of its group. `row_bases` gives
    the outside row ids of the rows, None if the file format does not store these ids.
    """

    neighbour: DataFile
    sequence: int
    attempt: str
    row_bases: RowBases | None
    codec: str = ""
    cluster: Cluster | None = None
    floor: int | None = None


def rewrite_bin(task: RewriteTask, work: BinWork, attempt: str) -> Rewritten:
    """Rewrite the files of a bin as one new file, or a few."""
    dropped: Bitmaps = {}
    target = Target(
        neighbour=work.bin.files[0],
        sequence=work.position * FILES_A_BIN,
        attempt=attempt,
        row_bases=work.row_bases,
        codec=work.bin.codec,
        cluster=work.bin.cluster,
        floor=work.bin.floor if task.floor is None else task.floor,
    )
    files = write_files(_rows_to_keep(task, work, dropped), task, target)
    return Rewritten(
        replaced=tuple(file.path for file in work.bin.files),
        files=files,
        bytes_read=work.bin.size,
        dropped=dropped,
    )


def row_bases_of(base: Snapshot, files: Iterable[DataFile]) -> RowBases | None:
    """Return the outside row ids of the rows of files; None for ORC."""
    if base.spec.file_format != "parquet":
        return None
    return RowBases.of(base.segments_of(files))


def _rows_to_keep(task: RewriteTask, work: BinWork, dropped: Bitmaps) -> Iterator[pa.Table]:
    """Yield rows of a bin by row groups; add the ids of droppable rows to `dropped`."""
    marks = Marks.of(work.droppable)
    for file in work.bin.files:
        data = read_verified(task.storage, file)
        for rows in decode_parts(data, task.spec, file.path, rows=file.rows, bound=task.bound):
            is_dropped = _is_droppable(rows, marks, task)
            if is_dropped.any():
                add_events(dropped, _ids_of(rows, is_dropped))
                rows = rows.filter(pa.array(~is_dropped))
            yield rows


def _ids_of(rows: pa.Table, chosen: npt.NDArray[np.bool_]) -> Events:
    """Return the ids of chosen rows as events; their times are 0 and do not count."""
    segment = rows[SEGMENT].to_numpy()[chosen]
    offset = rows[OFFSET].to_numpy()[chosen]
    return Events(segment=segment, offset=offset, until=np.zeros(len(segment), np.int64))


def _is_droppable(rows: pa.Table, marks: Marks, task: RewriteTask) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that can be dropped.

    The latest delete of a key stays, as late rows need it. Only the key store knows which delete is
    the latest, because every delete is invisible from its own time on.
    """
    is_marked = marks.at(rows[SEGMENT].to_numpy(), rows[OFFSET].to_numpy())
    if task.floor is None or not is_marked.any() or DELETED not in rows.column_names:
        return is_marked
    is_delete = np.asarray(pc.fill_null(rows[DELETED], False).to_numpy(), np.bool_)
    deletes = np.flatnonzero(is_marked & is_delete)
    if len(deletes):
        assert task.cache is not None
        entries = entries_of_rows(rows.take(pa.array(deletes)), task.spec)
        order = np.argsort(entries.high)
        ordered = entries.take(order)
        # The nearest entry not before a stored row is the row itself: look behind it
        beyond = replace(ordered, offset=ordered.offset + 1)
        neighbours = task.cache.neighbours(task.runs, beyond)
        is_superseded = followed_by(task.floor, ordered, neighbours)
        # Positions of the latest deletes among the rows
        latest = deletes[order[~is_superseded]]
        is_marked[latest] = False
    return is_marked


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenFile:
    """A file that is being written, and the segments of its rows so far."""

    encoder: FileEncoder
    segments: set[int] = field(default_factory=set)


def write_files(
    tables: Iterable[pa.Table], task: RewriteTask, target: Target
) -> tuple[DataFile, ...]:
    """Write the rows of tables in their order; begin a new file when one is full."""
    files: list[DataFile] = []
    with room_errors(), background_puts(task.storage) as storage:
        open_file: _OpenFile | None = None
        for rows in tables:
            if not rows.num_rows:
                continue
            if open_file is None:
                open_file = _OpenFile(encoder=_encoder(task, target))
            if target.row_bases is None:
                open_file.encoder.add(rows)
            else:
                open_file.encoder.add(target.row_bases.numbered(rows))
            open_file.segments.update(pc.unique(rows[SEGMENT]).to_pylist())
            if open_file.encoder.size >= ROLL_SHARE * task.target_bytes:
                files.append(_stored(open_file, task, target, len(files), storage))
                open_file = None
        if open_file is not None:
            files.append(_stored(open_file, task, target, len(files), storage))
    return tuple(files)


def _encoder(task: RewriteTask, target: Target) -> FileEncoder:
    _, _, level = target.codec.partition(":")  # such as zstd:19
    return FileEncoder(
        spec=task.spec,
        level=int(level) if level else None,
        sink=spool(),
        bound=task.bound,
        has_outside_ids=target.row_bases is not None,
    )


def _stored(
    open_file: _OpenFile,
    task: RewriteTask,
    target: Target,
    count: int,
    storage: Storage,
) -> DataFile:
    """Store an open file as the next one after `count` files; return it."""
    encoded = open_file.encoder.finish()
    stem = layout.job_file_name(task.number, target.sequence + count, target.attempt)
    path = layout.next_to(target.neighbour.path, stem, task.spec.file_format)
    storage.put_if_absent(path, encoded.data)
    return DataFile(
        path=path,
        size=len(encoded.data),
        crc32=encoded.crc32,
        footer_bytes=encoded.footer_bytes,
        footer_crc32=encoded.footer_crc32,
        rows=encoded.rows,
        group=target.neighbour.group,
        segments=tuple(sorted(open_file.segments)),
        bounds=encoded.bounds,
        cluster=target.cluster,
        codec=target.codec,
        floor=target.floor,
    )
