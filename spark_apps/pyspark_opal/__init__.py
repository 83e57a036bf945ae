"""The package in which Spark finds `format("opal")` without registration.

Spark looks for a `DefaultSource` in top-level packages whose name begins with `pyspark_`.
"""

from contextlib import suppress

# Spark imports these packages for every unknown format: a missing dependency of ours must not keep
# it from the sources of others.
with suppress(ImportError):
    from opal_spark.data_source.source import OpalDataSource as DefaultSource

__all__ = ["DefaultSource"]
