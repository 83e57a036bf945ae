"""One task of a MetaGen.

It takes the pending rows of one range of the key hash, and writes a segment log and a key-store
run. It is a module of its own so that a worker does not load `metagen_job`.
"""

from dataclasses import replace

from opal_lake import layout
from opal_lake.engine.executor import Attempt
from opal_lake.key_store.entries import Entries
from opal_lake.rule.slot import Slot, SlotOutput, SlotWriter, process_slot


def process_entries(
    new: Entries, attempt: Attempt, *, writer: SlotWriter, slots: int
) -> SlotOutput:
    """Apply the rule to the entries of one range of the key hash."""
    slot = Slot(
        number=attempt.part,
        count=slots,
        stem=layout.job_file_name(writer.number, attempt.part, attempt.name),
    )
    with attempt.puts(writer.storage) as storage:
        return process_slot(new, replace(writer, storage=storage), slot)
