"""Orders of a shop: placed, paid, shipped, some cancelled; a message for each change."""

import random
from collections.abc import Iterator
from typing import Any

COUNTRIES = ("DE", "FR", "NL", "PL", "SE")
SCHEMA = "order_id BIGINT, country STRING, status STRING, total DOUBLE, updated_at TIMESTAMP"
NEXT = {"placed": "paid", "paid": "shipped"}
_CANCELLED, _OPEN = 0.04, 400


def changes(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield changes without an end, and without times: the sender adds its own."""
    dice = random.Random(seed)
    opened: dict[int, dict[str, Any]] = {}
    number = 0
    order: dict[str, Any]
    while True:
        if (len(opened) < _OPEN and dice.random() < 0.5) or not opened:
            number += 1
            order = {
                "order_id": number,
                "country": dice.choice(COUNTRIES),
                "status": "placed",
                "total": round(5 + dice.random() * 200, 2),
            }
        else:
            before = opened[dice.choice([*opened])]
            is_cancelled = dice.random() < _CANCELLED
            status = "cancelled" if is_cancelled else NEXT[before["status"]]
            order = {**before, "status": status}
        if order["status"] in NEXT:
            opened[order["order_id"]] = order
        else:
            opened.pop(order["order_id"], None)
        yield order
