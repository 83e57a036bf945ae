"""The demo's shop: three days of changes of orders and customers, as files of JSON lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DAYS = ("2026-11-01", "2026-11-02", "2026-11-03")
ORDERS_A_DAY = 400
COUNTRIES = ("DE", "FR", "NL", "PL")
# Orders that the demo follows: (order, day, hour, status, total, op). The last change comes late,
# with the files of day 3.
FOLLOWED = (
    (1, 0, 9, "placed", "40.00", "I"),
    (2, 0, 10, "placed", "15.50", "I"),
    (3, 0, 11, "placed", "99.90", "I"),
    (1, 1, 8, "paid", "40.00", "U"),
    (3, 1, 12, "placed", "89.90", "U"),
    (4, 1, 15, "placed", "7.25", "I"),
    (2, 2, 9, "placed", "15.50", "D"),
    (4, 2, 11, "paid", "7.25", "U"),
)
LATE = (3, 1, 18, "paid", "89.90", "U")


def write_shop(folder: Path) -> None:
    """Write the files of the shop's systems in three days."""
    for number, day in enumerate(DAYS):
        changes = [change for change in FOLLOWED if change[1] == number]
        if number == 2:
            changes.append(LATE)
        followed = [_order(*change) for change in changes]
        _write(folder / "orders" / day, [*followed, *_many(number)])
    _write(folder / "customers" / DAYS[0], [_customer(number, 0, "I") for number in range(50)])
    _write(folder / "customers" / DAYS[2], [_customer(7, 2, "U"), _customer(8, 2, "D")])


def _many(day: int) -> Iterator[dict[str, Any]]:
    """Yield a day's new orders, and changes of the orders of the day before.

    Every tenth order of the day before is deleted, and the others are paid.
    """
    first = 1_000 + day * ORDERS_A_DAY
    for number in range(first, first + ORDERS_A_DAY):
        yield _order(number, day, 7 + number % 12, "placed", f"{5 + number * 37 % 90}.00", "I")
    if day == 0:
        return
    for number in range(first - ORDERS_A_DAY, first):
        op = "D" if number % 10 == 0 else "U"
        yield _order(number, day, 6 + number % 12, "paid", f"{5 + number * 37 % 90}.00", op)


def _order(order: int, day: int, hour: int, status: str, *more: str) -> dict[str, Any]:
    total, op = more
    return {
        "order_id": order,
        "updated_at": f"{DAYS[day]}T{hour:02}:{order % 60:02}:00Z",
        "country": COUNTRIES[order % len(COUNTRIES)],
        "status": status,
        "total": total,
        "op": op,
    }


def _customer(number: int, day: int, op: str) -> dict[str, Any]:
    name = f"customer {number}" + (" (moved)" if op == "U" else "")
    return {"customer_id": number, "updated_at": f"{DAYS[day]}T12:00:00Z", "name": name, "op": op}


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "changes.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
