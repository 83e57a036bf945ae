"""A small table for the tests of this room, and what is in it."""

from collections.abc import Sequence

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.storage import Storage
from opal_lake.table import Table, create_on, table_on
from tests.kit.ids import CountingIds

SCHEMA = pa.schema([("sku", pa.string()), ("at", pa.int64()), ("price", pa.int32())])
Row = tuple[str, int, int | None]  # a price of None deletes
# Lists are in files of their own, as those of a large table
LISTS_IN_FILES = Tuning(inline_bytes=0)


def rows(values: Sequence[Row]) -> tuple[pa.Table, list[bool]]:
    columns = {}
    for position, name in enumerate(SCHEMA.names):
        columns[name] = [value[position] for value in values]
    return pa.table(columns, schema=SCHEMA), [value[2] is None for value in values]


def create(
    storage: Storage,
    *,
    file_format: str = "parquet",
    tuning: Tuning = DEFAULT_TUNING,
    **properties: int | str,
) -> Table:
    layout = TableLayout(
        keys=["sku"],
        delta="at",
        deletes="price IS NULL",
        file_format=file_format,
        properties=properties,
    )
    return create_on(storage, plan_spec(SCHEMA, layout), tuning=tuning)


def create_with_pending(storage: Storage) -> Table:
    """Create a table in which a MetaGen has a row to publish."""
    table = create(storage)
    table.ingest(*rows([("waits", 1, 1)]))
    return table


def reopen(storage: Storage, writer: str = "w", *, tuning: Tuning = DEFAULT_TUNING) -> Table:
    """Return a writer with names of its own, as another process would have."""
    return table_on(storage, ManualClock(), CountingIds(prefix=writer), tuning=tuning)


def copied(source: Storage, target: Storage) -> Storage:
    """All objects, so that a table that many begin with is made once."""
    for stored in source.list(""):
        assert target.put_if_absent(stored.path, source.get(stored.path))
    return target


def content(table: Table, **view: object) -> list[Row]:
    return sorted((row["sku"], row["at"], row["price"]) for row in table.read(**view).to_pylist())  # type: ignore[arg-type]  # the views are the tests' own


def latest(batches: Sequence[Sequence[Row]], until: int | None = None) -> list[Row]:
    """Return the expected rows.

    Of each key it is the last one in (delta, arrival), unless that is a delete.
    """
    best: dict[str, tuple[tuple[int, int, int], Row]] = {}
    for number, batch in enumerate(batches):
        for position, row in enumerate(batch):
            order = (row[1], number, position)
            if (until is None or row[1] <= until) and (
                row[0] not in best or order > best[row[0]][0]
            ):
                best[row[0]] = (order, row)
    return sorted(row for _, row in best.values() if row[2] is not None)
