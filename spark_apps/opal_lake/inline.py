"""One task of an ingest that applies the rule as it writes: rows of one range of the key hash in, segments, a log and a run out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from opal_lake import ingest, slot
from opal_lake.ingest import IngestOutput, IngestTask, ingest_rows
from opal_lake.key_hash import hashes_from_bytes
from opal_lake.key_store.entries import Entries, concat_entries, no_entries
from opal_lake.metagen import entries_of_rows
from opal_lake.slot import Slot, SlotOutput, SlotWriter, process_slot

HASH = "_opal_hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOutput:
    """Both halves of what a task did."""

    ingested: IngestOutput
    ruled: SlotOutput


def output_to_json(output: InlineOutput) -> dict[str, Any]:
    return {"ingested": ingest.output_to_json(output.ingested), "ruled": slot.output_to_json(output.ruled)}


def output_from_json(data: dict[str, Any]) -> InlineOutput:
    return InlineOutput(ingested=ingest.output_from_json(data["ingested"]), ruled=slot.output_from_json(data["ruled"]))


def inline_rows(batches: Iterable[pa.RecordBatch], task: IngestTask, writer: SlotWriter, part: Slot) -> InlineOutput:
    """Rows may bring the hash of their key as a column `_opal_hash`. Of all rows only what the rule needs is held."""
    spec = task.spec
    found: list[Entries] = [no_entries(len(spec.tie_break))]

    def keep(rows: pa.Table, physical: pa.Table) -> None:
        hashes = hashes_from_bytes(rows[HASH]) if HASH in rows.column_names else None
        found.append(entries_of_rows(physical, spec, hashes))

    ingested = ingest_rows(batches, task, keep)
    return InlineOutput(ingested=ingested, ruled=process_slot(concat_entries(found), writer, part))
