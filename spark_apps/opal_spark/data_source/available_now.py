"""Trigger.AvailableNow in several micro-batches, and what Spark 4.2 has for that.

Spark 4.1 asks a source in Python once for its newest offset, and ends the query when that is
reached: with `maxVersionsPerTrigger` one run of the query would read so many versions and end. So
there the query runs with a trigger that does not end, and is stopped when nothing new is left.
"""

from importlib import import_module
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

try:
    since_4_2: Any = import_module("pyspark.sql.streaming.datasource")
except ImportError:
    # Spark 4.1 has no such module
    since_4_2 = None

SupportsTriggerAvailableNow: Any = (
    object if since_4_2 is None else since_4_2.SupportsTriggerAvailableNow
)


def read_limit(max_versions: int | None) -> Any:
    """Return Spark's form of a limit, which Spark gives back for each micro-batch.

    Spark has limits of rows and of files, but not of versions: these are its files.
    """
    assert since_4_2 is not None
    if max_versions is None:
        return since_4_2.ReadAllAvailable()
    return since_4_2.ReadMaxFiles(max_versions)


def is_unlimited(limit: object) -> bool:
    """Return whether Spark wants everything, whatever the options say (Trigger.Once)."""
    return since_4_2 is not None and isinstance(limit, since_4_2.ReadAllAvailable)


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until its sources have nothing new.

    On Spark 4.1 it continues while new versions arrive faster than it reads them.
    """
    if since_4_2 is not None:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
