"""The engines that a table may have, as the contract suite needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from opal_lake.table import Table

SCHEMA = pa.schema([("sku", pa.string()), ("at", pa.int64()), ("price", pa.int32())])
LAYOUT: Mapping[str, Any] = {"keys": ["sku"], "delta": "at", "deletes": "price IS NULL"}
Values = Sequence[tuple[str, int, int | None]]  # a price of None deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Makes tables with an engine, and rows in its frames; `spark` is None in this process."""

    spark: Any = None

    def create(
        self, path: Path, *, partition_by: Sequence[str] = (), **properties: int | str
    ) -> Table[Any]:
        layout = {**LAYOUT, "partition_by": partition_by, "properties": properties}
        if self.spark is None:
            return Table.create(str(path), SCHEMA, **layout)
        # Imported here: the tests of this process need no Spark
        from opal_spark import OpalTable

        schema = self.spark.createDataFrame([], "sku STRING, at BIGINT, price INT").schema
        return OpalTable.create(self.spark, str(path), schema, **layout)

    def frame(self, values: Values, **more: Sequence[Any]) -> Any:
        """Return rows to ingest, with texts in more columns.

        They are in one partition, so that an ingest makes one segment of them.
        """
        columns = zip(*values, strict=True)
        named = dict(zip(SCHEMA.names, columns, strict=True))
        rows = pa.table({name: [*column] for name, column in named.items()}, schema=SCHEMA)
        for name, texts in more.items():
            rows = rows.append_column(name, pa.array(texts, pa.string()))
        return rows if self.spark is None else self.spark.createDataFrame(rows).coalesce(1)

    def rows(self, frame: Any, *columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of a frame of the engine, in order."""
        columns = columns or tuple(SCHEMA.names)
        if self.spark is None:
            assert isinstance(frame, pa.Table), f"a {type(frame).__name__} is not a table of Arrow"
            rows = frame.to_pylist()
        else:
            rows = [row.asDict() for row in frame.select(*columns).collect()]
        return sorted(tuple(map(row.__getitem__, columns)) for row in rows)
