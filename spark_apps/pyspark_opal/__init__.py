"""Spark looks for a `DefaultSource` in top-level packages of such a name: so it finds `format("opal")` without registration."""

from contextlib import suppress

with suppress(
    ImportError
):  # what is not installed must not keep Spark from other sources, for which it looks here too
    from opal_spark.data_source.source import OpalDataSource as DefaultSource

__all__ = ["DefaultSource"]
