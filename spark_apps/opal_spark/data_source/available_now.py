"""Trigger.AvailableNow in several micro-batches, where Spark makes one of it.

Spark 4.1 asks a source in Python once for its newest offset, and ends the query when that is reached: with `maxVersionsPerTrigger` so many
versions a run. So the query is run until a run finds nothing.
"""

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until its sources have nothing new. It needs a `checkpointLocation`, where each run finds what the last one read."""
    read, before = _run(writer), None
    while read != before:
        read, before = _run(writer) or read, read


def _run(writer: DataStreamWriter) -> list[Any] | None:
    """Up to where the sources were read; None if nothing was."""
    query: StreamingQuery = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = query.lastProgress
    return None if progress is None else [source["endOffset"] for source in progress["sources"]]
