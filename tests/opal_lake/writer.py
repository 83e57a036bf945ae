"""A writer process for the races: `python -m tests.opal_lake.writer URI ingest|inline|metagen NUMBER ROUNDS [option=value ...]`."""

import random
import sys
from dataclasses import replace

from opal_lake import layout
from opal_lake.data_file import decode_file
from opal_lake.key_store.entries import concat_entries
from opal_lake.metagen import entries_of_rows, rule_columns
from opal_lake.metagen_job import MetaGenPlan
from opal_lake.ruled import Ruled, slot_writer
from opal_lake.slot import Slot, process_slot
from opal_lake.storage import open_storage
from opal_lake.table import Table, table_on
from tests.opal_lake.shop import Row, rows

INGESTS, METAGENS = 4, 2


def batch_of(writer: int, turn: int) -> list[Row]:
    """Keys that the writers share, deltas that no two rows of a key share: the result does not depend on who comes first."""
    dice = random.Random(f"{writer}-{turn}")
    keys = dice.sample(range(12), 4)
    return [
        (f"k{key}", (dice.randrange(40) * INGESTS + writer) * 1000 + turn, dice.randrange(1000) if dice.random() < 0.8 else None)
        for key in keys
    ]


def prepare_metagen(table: Table, leave: set[int] = frozenset()) -> tuple[MetaGenPlan, Ruled]:  # type: ignore[assignment]  # never changed
    """All of a MetaGen but its commit; the segments in `leave` are somebody else's."""
    started = table.start_metagen(None)
    assert isinstance(started, MetaGenPlan)
    plan, base = started, started.base
    mine = tuple(segment for segment in plan.segments if segment not in leave)
    files = tuple(file for file in plan.files if not leave.intersection(file.segments))
    plan = replace(plan, segments=mine, files=files)
    found = [decode_file(table.storage.get(file.path), base.spec, rule_columns(base.spec), file.path) for file in files]
    new = concat_entries([entries_of_rows(part, base.spec) for part in found])
    writer, slot = slot_writer(base, plan.number, table.cache), Slot(number=0, count=1, stem=layout.job_file_name(plan.number, 0, "0"))
    return plan, Ruled(writer=writer, outputs=(process_slot(new, writer, slot),), slots=1)


def main(uri: str, verb: str, number: int, rounds: int, options: dict[str, str]) -> None:
    table = table_on(open_storage(uri, options))
    for turn in range(rounds):
        if verb in ("ingest", "inline"):
            table.ingest(*rows(batch_of(number, turn)), token=f"{number}-{turn}", metadata="inline" if verb == "inline" else "batch")
        else:
            table.metagen()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), dict(pair.split("=", 1) for pair in sys.argv[5:]))
