"""Opal tables over Arrow, numpy and roaring bitmaps: format, rules and API.

`from opal_lake import Table`. Names are loaded when they are first used. Spark and Airflow are not
needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opal_lake.operations.create import NewTable
    from opal_lake.operations.job_spec import JobSpec
    from opal_lake.result import JobResult
    from opal_lake.source import Files, Jdbc
    from opal_lake.table import Table

__version__ = "0.1.0"

__all__ = ["Files", "Jdbc", "JobResult", "JobSpec", "NewTable", "Table"]

_MODULES = {
    "Files": "opal_lake.source",
    "Jdbc": "opal_lake.source",
    "JobResult": "opal_lake.result",
    "JobSpec": "opal_lake.operations.job_spec",
    "NewTable": "opal_lake.operations.create",
    "Table": "opal_lake.table",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
