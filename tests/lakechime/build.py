"""Events for tests."""

from typing import Any

from lakechime import DataChangeEvent, TableFormat

TABLE = "shop.orders"


def made(
    number: int, *, table: str = TABLE, before: int | None = -1, **given: Any
) -> DataChangeEvent:
    """Snapshot `number` of a table, after the one with the number before it."""
    previous = number - 1 if before == -1 else before
    given.setdefault("table_format", TableFormat.ICEBERG)
    given.setdefault("prev_snapshot_id", None if not previous else str(previous))
    return DataChangeEvent(table=table, snapshot_id=str(number), **given)


def hive(partition: tuple[Any, ...], *, table: str = TABLE, **given: Any) -> DataChangeEvent:
    """Return the event of a registered partition: Hive has no snapshots."""
    return DataChangeEvent(table=table, partition=partition, table_format=TableFormat.HIVE, **given)
