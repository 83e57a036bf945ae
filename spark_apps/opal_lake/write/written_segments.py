"""The commit of an inline ingest whose tasks wrote rows in their order, not by key hash.

The rule needs all new rows of a key at once. So it is applied here, to one range of the key hash
after the other. For each range, the columns that the rule needs are read from all files, and only
the rows of the range stay in memory.
"""

from collections.abc import Sequence

from opal_lake import layout
from opal_lake.data.column_read import read_columns
from opal_lake.data.segment import DataFile
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.in_process import slots_of
from opal_lake.engine.open_table import OpenTable
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.maintenance.fold_files import fold_if_due
from opal_lake.result import JobResult
from opal_lake.rule.metagen import entries_of_rows, rule_columns
from opal_lake.rule.outputs import JobOutputs, slot_writer
from opal_lake.rule.slot import Slot, process_slot
from opal_lake.storage.protocol import Storage
from opal_lake.write.ingest_job import IngestRun, commit_ingest
from opal_lake.write.ingest_task import IngestOutput

ROWS_AT_ONCE = 1 << 20


def commit_inline(
    table: OpenTable,
    run: IngestRun,
    outputs: Sequence[IngestOutput],
    rows_at_once: int = ROWS_AT_ONCE,
) -> JobResult:
    """Apply the rule to rows that tasks have written, and commit both together."""
    writer = slot_writer(run.base, run.number, table.cache)
    files = [file for output in outputs for file in output.files]
    rows = sum(file.rows for file in files) + writer.merged_entries
    portions = -(-rows // rows_at_once)  # rounded up
    # The next power of two, as ranges of the key hash are halves of halves
    slots = 1 << max(0, portions - 1).bit_length()
    slot_outputs = []
    for number in range(slots):
        stem = layout.job_file_name(run.number, number, "commit")
        slot = Slot(number=number, count=slots, stem=stem)
        entries = _entries_of_slot(table.storage, files, run.base.spec, slot)
        slot_outputs.append(process_slot(entries, writer, slot))
    rule_outputs = JobOutputs(writer=writer, outputs=tuple(slot_outputs), slots=slots)
    result = commit_ingest(table.log, run, outputs, rule_outputs)
    fold_if_due(table.log, run.base, result.version)
    return result


def _entries_of_slot(
    storage: Storage, files: Sequence[DataFile], spec: TableSpec, slot: Slot
) -> Entries:
    """Read the entries of all rows whose key hash is in the range of a slot."""
    parts = [no_entries(len(spec.tie_break))]
    for file in files:
        rows = read_columns(storage, file, spec, rule_columns(spec))
        entries = entries_of_rows(rows, spec)
        is_of_slot = slots_of(entries.high, slot.count) == slot.number
        parts.append(entries.take(is_of_slot))
    return concat_entries(parts)
