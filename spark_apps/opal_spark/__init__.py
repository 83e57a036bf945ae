"""Opal tables on Spark, through PySpark alone: classic or Connect."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opal_spark.consume import Change
    from opal_spark.data_source import register
    from opal_spark.table import OpalTable

__all__ = ["Change", "OpalTable", "register"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line needs parts of this package that need no Spark."""
    if name == "Change":
        from opal_spark.consume import Change

        return Change
    if name == "OpalTable":
        from opal_spark.table import OpalTable

        return OpalTable
    if name == "register":
        from opal_spark.data_source import register

        return register
    raise AttributeError(name)
