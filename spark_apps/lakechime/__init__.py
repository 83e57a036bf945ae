"""Data-change events: a record of what changed in the tables of a lake.

Tables of every format are covered. Neither Spark nor Airflow is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime.answers import (
        EventsBetween,
        Found,
        Interest,
        Outbox,
        Page,
        Registered,
        TableState,
        Watermark,
    )
    from lakechime.chains import Chain, chain
    from lakechime.client import LakeChime
    from lakechime.errors import (
        AccessError,
        ChainError,
        ConflictError,
        ExpiredError,
        InvalidEventError,
        LakeChimeError,
        NotFoundError,
        SchemaError,
        UnavailableError,
    )
    from lakechime.event import DataChangeEvent, OperationType, TableFormat

_MODULES = {
    "lakechime.answers": (
        "EventsBetween",
        "Found",
        "Interest",
        "Outbox",
        "Page",
        "Registered",
        "TableState",
        "Watermark",
    ),
    "lakechime.chains": ("Chain", "chain"),
    "lakechime.client": ("LakeChime",),
    "lakechime.errors": (
        "AccessError",
        "ChainError",
        "ConflictError",
        "ExpiredError",
        "InvalidEventError",
        "LakeChimeError",
        "NotFoundError",
        "SchemaError",
        "UnavailableError",
    ),
    "lakechime.event": ("DataChangeEvent", "OperationType", "TableFormat"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AccessError",
    "Chain",
    "ChainError",
    "ConflictError",
    "DataChangeEvent",
    "EventsBetween",
    "ExpiredError",
    "Found",
    "Interest",
    "InvalidEventError",
    "LakeChime",
    "LakeChimeError",
    "NotFoundError",
    "OperationType",
    "Outbox",
    "Page",
    "Registered",
    "SchemaError",
    "TableFormat",
    "TableState",
    "UnavailableError",
    "Watermark",
    "chain",
]


def __getattr__(name: str) -> Any:
    """Import a name on its first use: a DAG file pays only for what it uses."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
