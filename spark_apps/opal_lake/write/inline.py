"""One task of an inline ingest: it writes rows and applies the rule to them.

It takes the rows of one range of the key hash, and writes segments, a segment log and a run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from opal_lake import layout
from opal_lake.data.json_rows import JsonForm
from opal_lake.definition.key_hash import hashes_from_bytes
from opal_lake.definition.table_spec import TableSpec
from opal_lake.engine.executor import HASH, Attempt, Batches
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.rule.metagen import entries_of_rows
from opal_lake.rule.slot import Slot, SlotOutput, SlotWriter, process_slot
from opal_lake.write.commit_time import with_commit_time
from opal_lake.write.ingest_task import IngestOutput, IngestTask, ingest_layers
from opal_lake.write.unchanged import KnownTable, filled


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOutput:
    """The output of a task: of writing its rows, and of applying the rule to them."""

    ingested: IngestOutput
    rule_output: SlotOutput


def write_slot(
    batches: Batches,
    attempt: Attempt,
    *,
    spec: TableSpec,
    writer: SlotWriter,
    slots: int,
    quarantine: bool,
    row_form: JsonForm | None,
    known: KnownTable,
    commit_us: int | None = None,
) -> InlineOutput:
    """Ingest the rows of a task and apply the rule to them."""
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
            task=slot.number,
            attempt=attempt.name,
            quarantine=quarantine,
            row_form=row_form,
        )
        rows = with_commit_time(batches, spec, commit_us)
        layers, look_ups = filled(rows, known.snapshot, writer.cache, writer.number)
        output = inline_rows(layers, task, replace(writer, storage=store), slot)
        return replace(output, ingested=replace(output.ingested, look_ups=look_ups))


def inline_rows(
    layers: Iterable[Batches], task: IngestTask, writer: SlotWriter, part: Slot
) -> InlineOutput:
    """Write rows to segments, layer by layer, and apply the rule to all of them.

    A column `_opal_hash` of the rows, if there is one, has the hash of each row's key.
    """
    spec = task.spec
    parts: list[Entries] = [no_entries(len(spec.tie_break))]

    def keep_entries(rows: pa.Table, physical: pa.Table) -> None:
        hashes = None
        if HASH in rows.column_names:
            hashes = hashes_from_bytes(rows[HASH])
        # Only the entries stay in memory: the rows of a range may be too many
        parts.append(entries_of_rows(physical, spec, hashes))

    ingested = ingest_layers(layers, task, keep_entries)
    rule_output = process_slot(concat_entries(parts), writer, part)
    return InlineOutput(ingested=ingested, rule_output=rule_output)
