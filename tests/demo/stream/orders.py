"""Orders of a shop as they happen: placed, paid, shipped, some cancelled; a message for each change."""

import random
from collections.abc import Iterator
from typing import Any

COUNTRIES = ("DE", "FR", "NL", "PL", "SE")
SCHEMA = "order_id BIGINT, country STRING, status STRING, total DOUBLE, updated_at TIMESTAMP"
NEXT = {"placed": "paid", "paid": "shipped"}
_CANCELLED, _OPEN = 0.04, 400


def changes(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Without an end, and without times: whoever sends one knows when it is."""
    dice, opened, number = random.Random(seed), dict[int, dict[str, Any]](), 0
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
            order = opened[dice.choice([*opened])]
            order = {
                **order,
                "status": "cancelled" if dice.random() < _CANCELLED else NEXT[order["status"]],
            }
        if order["status"] in NEXT:
            opened[order["order_id"]] = order
        else:
            opened.pop(order["order_id"], None)
        yield order
