"""Trigger.AvailableNow in several micro-batches, on Spark 4.1 and later.

Spark 4.1 asks a Python source for its newest offset once, and ends the query at that offset. With
`maxVersionsPerTrigger` such a query would end after one micro-batch. So on Spark 4.1
`run_available` starts the query with a trigger that does not end, and stops the query when it has
read everything. Spark 4.2 supports several micro-batches itself.
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
    """Return a maximum of versions as Spark's ReadLimit for each micro-batch.

    Spark has no limit of versions: the limit of files carries the number of versions.
    """
    assert since_4_2 is not None
    if max_versions is None:
        return since_4_2.ReadAllAvailable()
    return since_4_2.ReadMaxFiles(max_versions)


def is_unlimited(limit: object) -> bool:
    """Return whether a limit of Spark asks for everything, as Trigger.Once does.

    Such a limit overrides the option `maxVersionsPerTrigger`.
    """
    return since_4_2 is not None and isinstance(limit, since_4_2.ReadAllAvailable)


def run_available(writer: DataStreamWriter) -> None:
    """Start a query, and return when it has read everything that its sources have.

    On Spark 4.1 the query continues while new versions arrive faster than it reads them.
    """
    if since_4_2 is not None:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
