"""Functions of the consumers by partition of gate.py."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opal_spark import Change


def report(change: "Change") -> None:
    """Overwrite the report of a day: the ids of its rows."""
    ids = sorted(row["id"] for row in change.rows.collect())
    name = f"{change.arguments['name']}.report-{change.partition_key}.json"
    (Path(change.arguments["to"]) / name).write_text(json.dumps(ids))
