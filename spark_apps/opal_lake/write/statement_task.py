"""One task of a statement: it writes rows, applies the rule to them, and checks them.

It takes the rows of one range of the key hash, so that all rows of a key are together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opal_lake import layout
from opal_lake.arrays import BoolArray, Int32Array, Int64Array
from opal_lake.data.rejects import EXAMPLES, json_texts
from opal_lake.definition.key_hash import hashes_from_bytes
from opal_lake.definition.schema import DELETED, ENDED_OFFSET, ENDED_SEGMENT
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Attempt, Batches
from opal_lake.errors import InvalidInputError
from opal_lake.events.bitmap import Bitmaps, Marks, add_rows
from opal_lake.events.segment_log import NO_ROW, RowIds, concat_ids
from opal_lake.ids import STATEMENT_BIT
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.rule.metagen import entries_of_rows
from opal_lake.rule.slot import Slot, SlotOutput, SlotWriter, process_probes, process_slot
from opal_lake.rule.statement import StatementFaults, statement_faults
from opal_lake.write.commit_time import with_commit_time
from opal_lake.write.ingest_task import (
    FILES_A_TASK,
    MAX_TASKS,
    IngestOutput,
    IngestTask,
    ingest_layers,
)

# Tasks of statements have numbers from here on, which gives their segments the STATEMENT_BIT
FIRST_TASK = STATEMENT_BIT // FILES_A_TASK
FAULTS = ("repeated", "existing", "moved", "outlasted")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementOutput:
    """The output of a task of a statement.

    `counts` are the rows that it inserts, updates and deletes. `faults` counts the rows that cannot
    be applied, by reason, and `examples` has the keys of some of them as JSON.
    """

    ingested: IngestOutput
    rule_output: SlotOutput
    counts: Mapping[str, int]
    faults: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of a task as the rule knows them, the rows they end, and their keys."""

    entries: Entries
    ended: RowIds
    keys: pa.Table


def write_statement_slot(
    batches: Batches,
    attempt: Attempt,
    *,
    spec: TableSpec,
    writer: SlotWriter,
    slots: int,
    commit_us: int | None = None,
) -> StatementOutput:
    """Write the rows of a range of the key hash, and apply the rule to them."""
    max_slots = MAX_TASKS - FIRST_TASK
    if slots > max_slots:
        raise InvalidInputError(
            f"a statement has at most {max_slots:,} tasks, and its rows need {slots:,}; "
            "run it in parts, for example with a narrower where"
        )
    slot = Slot(
        number=attempt.part,
        count=slots,
        stem=layout.job_file_name(writer.number, attempt.part, attempt.name),
    )
    with attempt.puts(writer.storage) as store:
        task = IngestTask(
            storage=store,
            spec=spec,
            number=writer.number,
            task=FIRST_TASK + slot.number,
            attempt=attempt.name,
        )
        # An update's row comes with the time of the row that it ends: this job's time replaces it
        timed = with_commit_time(batches, spec, commit_us, replaces=True)
        ingested, rows = _written(timed, task)
        return _applied(ingested, rows, replace(writer, storage=store), slot)


def _written(batches: Batches, task: IngestTask) -> tuple[IngestOutput, _Rows]:
    """Write rows to segments, and return them as the rule knows them."""
    spec = task.spec
    names = [key.name for key in spec.keys]
    entries = [no_entries(len(spec.tie_break))]
    ended: list[RowIds] = []
    keys: list[pa.Table] = []

    def keep(rows: pa.Table, physical: pa.Table) -> None:
        hashes = hashes_from_bytes(rows[HASH]) if HASH in rows.column_names else None
        entries.append(entries_of_rows(physical, spec, hashes))
        ended.append(_ended(rows))
        keys.append(rows.select(names))

    ingested = ingest_layers([_without_repeats(batches)], task, keep)
    key_rows = pa.concat_tables(keys) if keys else pa.table({name: [] for name in names})
    rows = _Rows(entries=concat_entries(entries), ended=concat_ids(ended), keys=key_rows)
    return ingested, rows


def _without_repeats(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield batches without repeated deletes of a row.

    A row may match several rows of a source.
    """
    seen: Bitmaps = {}
    for batch in batches:
        is_delete = pc.fill_null(batch[DELETED], False).to_numpy(zero_copy_only=False)
        positions = np.flatnonzero(is_delete)
        deletes = batch.take(pa.array(positions))
        segment, offset = deletes[ENDED_SEGMENT].to_numpy(), deletes[ENDED_OFFSET].to_numpy()
        is_repeat = Marks.of(seen).at(segment, offset) | _repeats(segment, offset)
        add_rows(seen, segment, offset)
        remains = np.ones(batch.num_rows, np.bool_)
        remains[positions[is_repeat]] = False
        yield batch.filter(pa.array(remains)) if is_repeat.any() else batch


def _repeats(segment: Int64Array, offset: Int32Array) -> BoolArray:
    """Return which row ids are equal to an earlier one."""
    # The sort is stable: of equal row ids the first stays first
    order = np.lexsort((offset, segment))
    is_same = np.zeros(len(order), np.bool_)
    is_same[1:] = (np.diff(segment[order]) == 0) & (np.diff(offset[order]) == 0)
    repeats = np.zeros(len(order), np.bool_)
    repeats[order] = is_same
    return repeats


def _ended(rows: pa.Table) -> RowIds:
    """Return the row that each row ends, or NO_ROW."""
    segment = pc.fill_null(rows[ENDED_SEGMENT], NO_ROW).to_numpy()
    offset = pc.fill_null(rows[ENDED_OFFSET], NO_ROW).to_numpy()
    return RowIds(segment=segment.astype(np.int64), offset=offset.astype(np.int32))


def _applied(
    ingested: IngestOutput, rows: _Rows, writer: SlotWriter, slot: Slot
) -> StatementOutput:
    """Check rows and apply the rule to them."""
    if not len(rows.entries):
        return StatementOutput(
            ingested=ingested, rule_output=process_slot(rows.entries, writer, slot), counts={}
        )
    # Sorted probes read each run from front to back, once
    order = np.argsort(rows.entries.high)
    probes, ended = rows.entries.take(order), rows.ended.take(order)
    stored = writer.cache.neighbours(writer.runs, probes)
    faults = statement_faults(probes, ended, stored)
    counts, examples = _described(faults, rows.keys.take(pa.array(order)))
    return StatementOutput(
        ingested=ingested,
        rule_output=process_probes(probes, stored, writer, slot),
        counts=_counts(probes, ended),
        faults=counts,
        examples=examples,
    )


def _counts(rows: Entries, ended: RowIds) -> dict[str, int]:
    """Return the numbers of inserted, updated and deleted rows."""
    deleted = int(rows.deleted.sum())
    updated = int((ended.is_row & ~rows.deleted).sum())
    return {"inserted": len(rows) - deleted - updated, "updated": updated, "deleted": deleted}


def _described(
    faults: StatementFaults, keys: pa.Table
) -> tuple[Counter[str], dict[str, tuple[str, ...]]]:
    """Return the number of faulty rows by reason, and keys of some of them."""
    counts: Counter[str] = Counter()
    examples: dict[str, tuple[str, ...]] = {}
    for reason in FAULTS:
        mask: BoolArray = getattr(faults, reason)
        if mask.any():
            counts[reason] = int(mask.sum())
            first = np.flatnonzero(mask)[:EXAMPLES]
            examples[reason] = tuple(json_texts(keys.take(pa.array(first))))
    return counts, examples
