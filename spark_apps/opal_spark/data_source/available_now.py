"""Trigger.AvailableNow in several micro-batches, also where Spark makes one of it; and what Spark 4.2 has for that.

Spark 4.1 asks a source in Python once for its newest offset, and ends the query when that is reached: with `maxVersionsPerTrigger` so many
versions a run. So there the query runs with the trigger that goes on, until there is nothing new, and is stopped.
"""

from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

try:
    from pyspark.sql.streaming import datasource as since_4_2  # type: ignore[attr-defined,unused-ignore]  # 4.1 has none
except ImportError:
    since_4_2 = None

SupportsTriggerAvailableNow: Any = (
    object if since_4_2 is None else since_4_2.SupportsTriggerAvailableNow
)


def read_limit(most_versions: int | None) -> Any:
    """For Spark, which has no limit of versions, and gives it back when a micro-batch is to keep to it."""
    assert since_4_2 is not None
    return (
        since_4_2.ReadAllAvailable()
        if most_versions is None
        else since_4_2.ReadMaxFiles(most_versions)
    )


def is_unlimited(limit: object) -> bool:
    """Whether Spark wants all there is, whatever the options say, as with Trigger.Once."""
    return since_4_2 is not None and isinstance(limit, since_4_2.ReadAllAvailable)


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until its sources have nothing new. On Spark 4.1 it goes on while new versions come faster than it reads them."""
    if since_4_2 is not None:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
