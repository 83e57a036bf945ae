"""What the DAGs of pageviews.py do with a Delta table: count the views of a day, and the rows that came with some events."""

import sys

from deltalake import DeltaTable

from lakechime import chain
from lakechime.triggers.argument import decode_events


def views_of(path: str, day: str) -> dict[str, int]:
    """Views by page."""
    rows = DeltaTable(path).to_pyarrow_table(partitions=[("day", "=", day)], columns=["page"])
    return {
        page.as_py(): count.as_py()
        for page, count in zip(
            *rows.group_by("page").aggregate([([], "count_all")]).columns, strict=True
        )
    }


def count_new_rows(path: str, argument: str) -> int:
    """Of a table that rows are only added to. `chain` fails where an event is missing between the first and the last one."""
    snapshots = chain(decode_events(argument))
    before = 0 if snapshots.start is None else _rows(path, snapshots.start)
    return _rows(path, snapshots.end) - before


def _rows(path: str, version: str) -> int:
    return int(DeltaTable(path, version=int(version)).to_pyarrow_dataset().count_rows())


if __name__ == "__main__":
    print(count_new_rows(*sys.argv[1:]))  # noqa: T201  the last line is what the task returns
