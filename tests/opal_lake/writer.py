"""A writer process for the races.

python -m tests.opal_lake.writer URI ingest|inline|metagen NUMBER ROUNDS [option=value ...]
"""

import random
import sys
from dataclasses import replace

from opal_lake.rule.outputs import JobOutputs
from opal_lake.storage import open_storage
from opal_lake.table import Table, table_on
from opal_lake.write.metagen_job import MetaGenPlan, apply_to_pending, start_metagen
from tests.opal_lake.shop import Row, rows

INGESTS, METAGENS = 4, 2


def batch_of(writer: int, turn: int) -> list[Row]:
    """Return rows with keys that the writers share, and deltas that differ.

    So the result does not depend on which writer comes first.
    """
    dice = random.Random(f"{writer}-{turn}")
    keys = dice.sample(range(12), 4)
    return [
        (
            f"k{key}",
            (dice.randrange(40) * INGESTS + writer) * 1000 + turn,
            dice.randrange(1000) if dice.random() < 0.8 else None,
        )
        for key in keys
    ]


def prepare_metagen(table: Table, leave: set[int] = frozenset()) -> tuple[MetaGenPlan, JobOutputs]:  # type: ignore[assignment]  # never changed
    """All of a MetaGen but its commit; the segments in `leave` are somebody else's."""
    started = start_metagen(table, None)
    assert isinstance(started, MetaGenPlan)
    mine = tuple(segment for segment in started.segments if segment not in leave)
    files = tuple(file for file in started.files if not leave.intersection(file.segments))
    plan = replace(started, segments=mine, files=files)
    return plan, apply_to_pending(table, plan)


def main(uri: str, verb: str, number: int, rounds: int, options: dict[str, str]) -> None:
    table = table_on(open_storage(uri, options))
    for turn in range(rounds):
        if verb in ("ingest", "inline"):
            table.ingest(
                *rows(batch_of(number, turn)),
                token=f"{number}-{turn}",
                metadata="inline" if verb == "inline" else "batch",
            )
        else:
            table.metagen()


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        dict(pair.split("=", 1) for pair in sys.argv[5:]),
    )
