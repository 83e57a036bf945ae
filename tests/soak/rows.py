"""The rows of a soak.

A batch follows from its token alone, so that the token in a commit is enough to know its rows.

No two rows of a key share a delta: what is visible does not depend on who came first.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("sku", pa.int64()),
        ("at", pa.int64()),
        ("x", pa.int32()),
        ("y", pa.int32()),
        ("price", pa.int32()),
    ]
)
DELETES = "price IS NULL"
SKUS = 5_000
WRITERS = 8
TURNS = 1 << 20
TICK = WRITERS * TURNS  # of the delta: a tenth of a second
DELETED = -1
_MAX_ROWS = 300
_LATE_TICKS, _VERY_LATE_TICKS = 50, 3_000

Columns = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one upsert.

    `tick` says when, in tenths of seconds since the soak began; only an orderly batch has no late
    rows.
    """

    writer: int
    turn: int
    tick: int
    orderly: bool = False

    @property
    def token(self) -> str:
        return f"{self.writer}-{self.turn}-{self.tick}"


def batch_of(token: str) -> Batch:
    writer, turn, tick = map(int, token.split("-"))
    return Batch(writer=writer, turn=turn, tick=tick)


def columns_of(batch: Batch) -> Columns:
    """Draw the columns of a batch.

    A tenth of the rows deletes (price -1), three tenths are late, some of them below every floor.
    """
    dice = np.random.default_rng([batch.writer, batch.turn, batch.tick])
    count = int(dice.integers(1, _MAX_ROWS))
    late = np.where(dice.random(count) < 0.25, dice.integers(0, _LATE_TICKS, count), 0)
    late = np.where(dice.random(count) < 0.05, dice.integers(0, _VERY_LATE_TICKS, count), late)
    tick = np.maximum(0, batch.tick - (np.zeros(count, np.int64) if batch.orderly else late))
    return {
        "sku": dice.choice(SKUS, count, replace=False).astype(np.int64),
        "at": (tick * WRITERS + batch.writer) * TURNS + batch.turn,
        "x": dice.integers(0, 1000, count),
        "y": dice.integers(0, 1000, count),
        "price": np.where(dice.random(count) < 0.1, DELETED, dice.integers(0, 10_000, count)),
    }


def arrow_of(columns: Columns) -> tuple[pa.Table, list[bool]]:
    """Return the rows and their delete flags as `Table.ingest` takes them."""
    deleted = columns["price"] == DELETED
    price = pa.array(columns["price"], pa.int32(), mask=deleted)
    rest = [
        pa.array(columns[field.name]).cast(field.type) for field in SCHEMA if field.name != "price"
    ]
    return pa.table([*rest, price], schema=SCHEMA), deleted.tolist()


def columns_from(rows: pa.Table) -> Columns:
    """Return the columns of rows that were read, in the order of keys."""
    columns = {
        name: rows[name].combine_chunks().cast(pa.int64()).fill_null(DELETED).to_numpy()
        for name in SCHEMA.names
    }
    order = np.lexsort((columns["at"], columns["sku"]))
    return {name: values[order] for name, values in columns.items()}
