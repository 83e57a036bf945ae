"""Range queries: what part of a table each of them wants, in the words of every system."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.peers.rows import BEGAN_MS

Box = Mapping[str, tuple[float, float]]  # column -> from, and up to but without
COUNT = 20
_SIDE, _SLICE = 0.2, 0.05


def boxes(columns: Sequence[str], rows: int) -> list[Box]:
    """Return boxes of a fifth of all columns, and slices of a twentieth of one column.

    They alternate, and are the same at each call.
    """
    chance = random.Random(20)
    boxes_made: list[Box] = []
    for number in range(COUNT):
        selected = columns if number % 2 == 0 else [columns[number // 2 % len(columns)]]
        share = _SIDE if number % 2 == 0 else _SLICE
        boxes_made.append(
            {column: _range(column, rows, share, chance.random()) for column in selected}
        )
    return boxes_made


def _range(column: str, rows: int, share: float, start: float) -> tuple[float, float]:
    low, width, kind = {
        "v1": (0.0, 1.0, float),
        "v2": (0, 1000, int),
        "mod_time": (BEGAN_MS, rows, int),
    }[column]
    return kind(low + width * start * (1 - share)), kind(
        low + width * (start * (1 - share) + share)
    )


def box_sql(box: Box) -> str:
    return " AND ".join(
        f"{column} >= {_literal(low)} AND {column} < {_literal(high)}"
        for column, (low, high) in box.items()
    )


def _literal(value: float) -> str:
    return f"{value:.16e}" if isinstance(value, float) else str(value)


def meets(path: Path, box: Box) -> bool:
    """Return whether a Parquet file may have rows of the box, by its footer."""
    import pyarrow.parquet as pq  # Hudi's own environment has none, and needs none

    footer = pq.read_metadata(path)
    for column, (low, high) in box.items():
        position = footer.schema.to_arrow_schema().names.index(column)
        parts = [
            footer.row_group(group).column(position).statistics
            for group in range(footer.num_row_groups)
        ]
        if max(part.max for part in parts) < low or min(part.min for part in parts) >= high:
            return False
    return True
