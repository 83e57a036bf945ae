"""Opal tables on Spark, through PySpark alone: classic or Connect."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opal_lake.source import Files, Jdbc
    from opal_spark.data_source.available_now import run_available
    from opal_spark.data_source.source import register
    from opal_spark.spark_sql.catalog import catalog
    from opal_spark.spark_sql.run import sql
    from opal_spark.table import Change, OpalTable

__all__ = [
    "Change",
    "Files",
    "Jdbc",
    "OpalTable",
    "catalog",
    "register",
    "run_available",
    "sql",
]

_MODULES = {
    "Change": "opal_spark.table",
    "Files": "opal_lake.source",
    "Jdbc": "opal_lake.source",
    "OpalTable": "opal_spark.table",
    "catalog": "opal_spark.spark_sql.catalog",
    "register": "opal_spark.data_source.source",
    "run_available": "opal_spark.data_source.available_now",
    "sql": "opal_spark.spark_sql.run",
}


def load_ipython_extension(ipython: Any) -> None:
    """Register the magic `%%opal` in a notebook: `%load_ext opal_spark`."""
    from opal_spark.cli.notebook import register_magic

    register_magic(ipython)


def __getattr__(name: str) -> Any:
    """Import a public name on its first use.

    The command line uses parts of this package where Spark is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    if module.startswith("opal_spark."):
        from opal_spark.engine.versions import check_installed_spark

        check_installed_spark()
    return getattr(import_module(module), name)
