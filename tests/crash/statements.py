"""Statements as jobs, and the rows that they write by the model."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from opal_lake.result import JobResult
from opal_lake.table import Table
from tests.soak.rows import DELETED, SKUS, TICK, WRITERS, Batch, Columns, arrow_of, columns_of

# An update without a token: after a kill the table is as before it or after it
PLAIN = "plain"
STATEMENTS = ("update", "delete", "insert", "merge", PLAIN)
_SHARES = 7  # a statement by condition changes one of so many rows
_INSERTED = 20


def token_of(name: str, turn: int) -> str:
    return f"{name} {turn}"


def parts_of(token: str) -> tuple[str, int]:
    """Return the statement and the turn of a token."""
    name, turn = token.split(" ")
    return name, int(turn)


def _source(turn: int) -> Columns:
    """Return rows that are later than all rows of earlier turns."""
    return columns_of(Batch(writer=3, turn=turn, tick=turn * 90, orderly=True))


def _new_rows(turn: int) -> Columns:
    skus = np.arange(_INSERTED, dtype=np.int64) + SKUS + turn * _INSERTED
    at = (turn * 90 * WRITERS) * (TICK // WRITERS) + turn
    columns = {"sku": skus, "at": np.full(_INSERTED, at)}
    return {**columns, **dict.fromkeys(("x", "y", "price"), np.full(_INSERTED, turn % 1000))}


def _update(table: Table, turn: int, token: str | None) -> JobResult:
    where = f"sku % {_SHARES} = {turn % _SHARES}"
    return table.update(set={"x": "x + 1"}, where=where, token=token)


def _delete(table: Table, turn: int, token: str | None) -> JobResult:
    skus = ", ".join(map(str, _source(turn)["sku"].tolist()))
    return table.delete(where=f"sku IN ({skus})", token=token)


def _insert(table: Table, turn: int, token: str | None) -> JobResult:
    rows, _ = arrow_of(_new_rows(turn))
    return table.insert(rows, token=token)


def _merge(table: Table, turn: int, token: str | None) -> JobResult:
    rows, _ = arrow_of(_source(turn))
    merge = table.merge(rows, on="t.sku = s.sku").when_matched_delete(where="s.price IS NULL")
    merge = merge.when_matched_update({"y": "t.y + s.y"})
    return merge.when_not_matched_insert_all(where="s.price IS NOT NULL").execute(token=token)


RUNS: dict[str, Callable[[Table, int, str | None], JobResult]] = {
    "update": _update,
    "delete": _delete,
    "insert": _insert,
    "merge": _merge,
}


def run(table: Table, token: str) -> JobResult:
    """Run the statement of a token."""
    name, turn = parts_of(token)
    if name == PLAIN:
        return _update(table, turn, None)
    return RUNS[name](table, turn, token)


def rows_of(token: str, shown: Columns) -> Columns:
    """Return the rows that a statement writes, given the visible rows; DELETED is its price."""
    name, turn = parts_of(token)
    if name in ("update", PLAIN):
        rows = _chosen(shown, shown["sku"] % _SHARES == turn % _SHARES)
        return {**rows, "x": rows["x"] + 1}
    if name == "insert":
        return _new_rows(turn)
    source = _source(turn)
    matched = _chosen(shown, np.isin(shown["sku"], source["sku"]))
    if name == "delete":
        return {**matched, "price": np.full(len(matched["sku"]), DELETED)}
    order = np.argsort(source["sku"])
    partner = order[np.searchsorted(source["sku"], matched["sku"], sorter=order)]
    is_delete = source["price"][partner] == DELETED
    updated = {
        **matched,
        "y": matched["y"] + np.where(is_delete, 0, source["y"][partner]),
        "price": np.where(is_delete, DELETED, matched["price"]),
    }
    is_new = ~np.isin(source["sku"], shown["sku"]) & (source["price"] != DELETED)
    new = _chosen(source, is_new)
    return {column: np.concatenate([updated[column], new[column]]) for column in updated}


def _chosen(columns: Columns, mask: npt.NDArray[np.bool_]) -> Columns:
    return {name: values[mask] for name, values in columns.items()}
