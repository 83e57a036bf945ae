"""Trigger.AvailableNow in several micro-batches, where Spark makes one of it.

Spark 4.1 asks a source in Python once for its newest offset, and ends the query when that is reached: with `maxVersionsPerTrigger` so many
versions a run. So the query runs with the trigger that goes on, until there is nothing new, and is stopped.
"""

from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until its sources have nothing new. While new versions come faster than it reads them, it goes on."""
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
