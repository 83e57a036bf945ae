"""The counts of pageviews.py from a Delta table: a day's views, and the rows of some events."""

import sys

from deltalake import DeltaTable

from lakechime import chain
from lakechime.triggers.argument import decode_events


def views_of(path: str, day: str) -> dict[str, int]:
    """Return the views by page."""
    rows = DeltaTable(path).to_pyarrow_table(partitions=[("day", "=", day)], columns=["page"])
    counts = rows.group_by("page").aggregate([([], "count_all")])
    return {row["page"]: row["count_all"] for row in counts.to_pylist()}


def count_new_rows(path: str, argument: str) -> int:
    """Return the number of rows that events added to an append-only table."""
    # `chain` fails where an event is missing between the first and the last one
    snapshots = chain(decode_events(argument))
    before = 0 if snapshots.start is None else _rows(path, snapshots.start)
    return _rows(path, snapshots.end) - before


def _rows(path: str, version: str) -> int:
    return int(DeltaTable(path, version=int(version)).to_pyarrow_dataset().count_rows())


if __name__ == "__main__":
    print(count_new_rows(*sys.argv[1:]))  # noqa: T201  the last line is what the task returns
