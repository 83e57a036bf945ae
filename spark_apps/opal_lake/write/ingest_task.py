"""One task of an ingest: it checks rows, gives them row ids, and writes a file for each segment.

FORMAT describes these files under data files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake import layout
from opal_lake.data.columns import physical_schema, to_physical
from opal_lake.data.data_file import encode_file
from opal_lake.data.decoded_size import BOUND, SizeBound, decoded_bytes
from opal_lake.data.json_rows import JsonForm
from opal_lake.data.large_rows import unreadable_rows
from opal_lake.data.rejects import Rejects, split_bad_rows
from opal_lake.data.segment import DataFile
from opal_lake.definition.schema import DELETED, ENDED_SEGMENT, OFFSET, SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import Attempt, Batches
from opal_lake.errors import InvalidInputError
from opal_lake.ids import segment_id
from opal_lake.storage.protocol import Storage
from opal_lake.write.partitions import partition_text, split_by_partition
from opal_lake.write.unchanged import LookUps

# Called with the rows of a segment as they were read, and as they are stored
OnSegment = Callable[[pa.Table, pa.Table], None]
# Their product is the number of sequences in a segment's id, which have 32 bits
FILES_A_TASK = MAX_TASKS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTask:
    """One task of an ingest.

    With `quarantine`, bad rows are put aside and good rows are ingested. Without it, nothing more
    is written after a bad row, but all bad rows are counted.
    """

    storage: Storage
    spec: TableSpec
    number: int
    task: int
    attempt: str
    quarantine: bool = False
    row_form: JsonForm | None = None
    bound: SizeBound = BOUND

    def stem(self, sequence: int) -> str:
        """Return the name of a file of this task, without its folder and suffix."""
        return layout.job_file_name(self.number, sequence, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOutput:
    """The files that a task wrote, and the rows that it rejected.

    Of the rows in the files, `ended` are deletes of rows that the source no longer has.
    """

    files: tuple[DataFile, ...] = ()
    ended: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()
    look_ups: LookUps | None = None


def write_partition(
    batches: Batches,
    attempt: Attempt,
    *,
    storage: Storage,
    spec: TableSpec,
    number: int,
    quarantine: bool,
    row_form: JsonForm | None,
) -> IngestOutput:
    """Ingest the rows of one partition of the source."""
    with attempt.puts(storage) as store:
        task = IngestTask(
            storage=store,
            spec=spec,
            number=number,
            task=attempt.part,
            attempt=attempt.name,
            quarantine=quarantine,
            row_form=row_form,
        )
        return ingest_rows(batches, task)


def ingest_rows(batches: Batches, task: IngestTask) -> IngestOutput:
    """Write rows to segments.

    The rows have the table's logical columns, and `_opal_deleted` if the table has deletes.
    """
    return ingest_layers([batches], task, lambda rows, physical: None)


def ingest_layers(
    layers: Iterable[Batches], task: IngestTask, on_segment: OnSegment
) -> IngestOutput:
    """Write rows to segments, layer by layer: row ids increase from layer to layer.

    Within a layer, only rows of one partition get row ids in the order of the layer. `on_segment`
    is called for each segment. The rows as read may have columns that the table does not have.
    """
    if task.task >= MAX_TASKS:
        raise InvalidInputError(
            f"an ingest has at most {MAX_TASKS:,} tasks; reduce the partitions of the rows to that "
            "number, for example by coalesce()"
        )
    keys = [key.name for key in task.spec.keys]
    rejects = Rejects(keep=task.quarantine, keys=keys, form=task.row_form)
    files: list[DataFile] = []
    ended = 0
    sequence = task.task * FILES_A_TASK
    portions = chain.from_iterable(_portions(layer, task.spec) for layer in layers)
    for rows in portions:
        well_formed = split_bad_rows(rows, task.spec, rejects)
        good, physical = _readable_rows(well_formed, task, rejects)
        if rejects.counts and not task.quarantine:
            # The ingest fails, so nothing more is written; the error counts all bad rows
            continue
        if ENDED_SEGMENT in good.column_names:
            ended += good.num_rows - good[ENDED_SEGMENT].null_count
        for part in split_by_partition(good, task.spec):
            if len(files) == FILES_A_TASK:
                raise _too_many_files(task.spec)
            physical_part = physical if part is good else to_physical(part, task.spec)
            file, stored = _write_segment(part, physical_part, task, sequence + len(files))
            files.append(file)
            on_segment(part, stored)
    if rejects.quarantined:
        path = layout.rejected_path(task.stem(sequence))
        task.storage.put_if_absent(path, rejects.encode())
    return IngestOutput(
        files=tuple(files),
        ended=ended,
        rejected=dict(rejects.counts),
        examples=tuple(rejects.examples),
    )


def _too_many_files(spec: TableSpec) -> InvalidInputError:
    names = ", ".join(repr(field.name) for field in spec.partition_by)
    return InvalidInputError(
        f"one task would write more than {FILES_A_TASK:,} files, because the partition columns "
        f"{names} have too many values; partition by fewer or coarser columns"
    )


def _readable_rows(rows: pa.Table, task: IngestTask, rejects: Rejects) -> tuple[pa.Table, pa.Table]:
    """Return the rows that readers accept: as they were read, and in physical form.

    All other rows are added to `rejects`.
    """
    physical = to_physical(rows, task.spec)
    if decoded_bytes(physical) <= task.bound.cut_bytes:
        return rows, physical
    reasons = unreadable_rows(_with_row_ids(physical, task.spec, 0), task.spec, task.bound)
    if not reasons:
        return rows, physical
    is_good = np.ones(rows.num_rows, np.bool_)
    is_good[list(reasons)] = False
    rejects.add(rows.filter(pa.array(~is_good)), list(reasons.values()))
    mask = pa.array(is_good)
    return rows.filter(mask), physical.filter(mask)


def _portions(batches: Batches, spec: TableSpec) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of up to the size of a segment."""
    max_rows, max_bytes = spec.integer("segment_rows"), spec.integer("segment_bytes")
    pieces: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while batch.num_rows:
            room = max_rows - rows
            piece, batch = batch.slice(0, room), batch.slice(room)
            pieces.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= max_rows or size >= max_bytes:
                yield pa.Table.from_batches(pieces)
                pieces, rows, size = [], 0, 0
    if pieces:
        yield pa.Table.from_batches(pieces)


def _write_segment(
    rows: pa.Table, physical: pa.Table, task: IngestTask, sequence: int
) -> tuple[DataFile, pa.Table]:
    """Write rows of one partition as one file; return it and the rows as stored.

    The group is -1: the commit assigns it, because it depends on the head.
    """
    spec = task.spec
    segment = segment_id(task.number, sequence)
    physical = _with_row_ids(physical, spec, segment)
    encoded = encode_file(physical, spec, task.bound)
    partition = [(column.name, partition_text(rows[column.name])) for column in spec.partition_by]
    path = layout.data_path(partition, task.stem(sequence), spec.file_format)
    task.storage.put_if_absent(path, encoded.data)
    file = DataFile(
        path=path,
        size=len(encoded.data),
        crc32=encoded.crc32,
        footer_bytes=encoded.footer_bytes,
        footer_crc32=encoded.footer_crc32,
        rows=encoded.rows,
        group=-1,
        segments=(segment,),
        bounds=encoded.bounds,
    )
    return file, physical


def _with_row_ids(physical: pa.Table, spec: TableSpec, segment: int) -> pa.Table:
    """Return rows with their row ids, and without nulls in the column of deletes."""
    rows = physical.num_rows
    columns = {name: physical[name] for name in physical.column_names}
    columns[SEGMENT] = pa.array(np.full(rows, segment, np.int64))
    columns[OFFSET] = pa.array(np.arange(rows, dtype=np.int32))
    if DELETED in columns:
        columns[DELETED] = pc.fill_null(columns[DELETED], False)
    elif spec.deletes is not None:
        columns[DELETED] = pa.array(np.zeros(rows, np.bool_))
    names = physical_schema(spec).names
    return pa.table({name: columns[name] for name in names})
