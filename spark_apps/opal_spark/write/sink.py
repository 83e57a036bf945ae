"""The sink of a streaming query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from opal_lake.errors import InvalidInputError
from opal_lake.operations.ingest import Ingest
from opal_lake.table import Table
from opal_spark.spark_engine import on_spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The function that `foreachBatch` calls with each micro-batch, to ingest it.

    A micro-batch that was ingested before is not ingested again.
    """

    table: Table[Any]
    application: str
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.application:
            raise InvalidInputError(
                "application is empty; give each streaming query a name of its own, "
                "for example sink(application='orders-to-daily')"
            )

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Ingest a micro-batch, with the session of its rows.

        Over Connect this runs on the server, in another session than the caller's.
        """
        job = Ingest(source=rows, **{**self.arguments, "application": (self.application, batch)})
        job.run(on_spark(rows.sparkSession, self.table))
