"""The package in which Spark finds `format("opal")` without registration.

Spark looks for a `DefaultSource` in top-level packages whose name begins with `pyspark_`.
"""

from contextlib import suppress

# Spark imports all these packages to find an unknown format. An ImportError here would hide the
# data sources of other packages.
with suppress(ImportError):
    from opal_spark.data_source.source import OpalDataSource as DefaultSource

__all__ = ["DefaultSource"]
