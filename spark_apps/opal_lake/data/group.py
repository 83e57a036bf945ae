"""Groups: sets of segments that are rewritten together. New segments join the newest group until it is full."""

from collections.abc import Mapping, Sequence


def plan_groups(filled: Mapping[int, int], sizes: Sequence[int], group_rows: int) -> list[int]:
    """The group of each new segment, in order. A segment larger than a whole group gets one of its own."""
    newest = max(filled, default=0)
    rows = filled.get(newest, 0)
    chosen = []
    for size in sizes:
        if rows and rows + size > group_rows:
            newest, rows = newest + 1, 0
        rows += size
        chosen.append(newest)
    return chosen
