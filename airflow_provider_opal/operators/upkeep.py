"""UpkeepOperator: what operators share that tend a table's files, and the checks of what they are given."""

import re
from collections.abc import Mapping
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.operators.spark import OpalSparkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

Span = str | timedelta
MOST_COLUMNS = 8
_SPAN = re.compile(r"([0-9]{1,6})([wdhms])")
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TEMPLATE = re.compile(r"\{[{%]")


class UpkeepOperator(OpalSparkOperator):
    """Tends a table's files and leaves its rows as they are: it has no outlets, wakes nobody, and needs no partition key.

    It may run at any time beside ingests, MetaGens and readers.
    """

    def __init__(self, *, table: str, arguments: Mapping[str, Any], **kwargs: Any) -> None:
        said = {name: value for name, value in arguments.items() if value is not None}
        super().__init__(table=table, arguments=said, **kwargs)

    def needs_key(self, context: "Context") -> bool:
        """A table is tended as a whole."""
        return False


def span_text(name: str, value: Any) -> str | None:
    """A duration as a job takes it, in one unit. A template is left to its run."""
    if value is None or (isinstance(value, str) and _TEMPLATE.search(value)):
        return value
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    else:
        found = _SPAN.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{name}={value!r} is no duration; write it as '12h', '30d' or '2w', or as timedelta(days=30)")
        seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds < 0 or seconds % 1:
        raise ValueError(f"{name}={value!r} is negative or no whole number of seconds; write it as '12h' or '30d'")
    unit = next(unit for unit, size in _SECONDS.items() if unit != "w" and seconds % size == 0)
    return f"{int(seconds) // _SECONDS[unit]}{unit}"


def look_back_value(value: Any) -> str | float | None:
    """A duration; or a number in the unit of the delta column, if that holds numbers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < inf:
            raise ValueError(f"look_back={value!r} reaches into the future or beyond all; write a number of at least 0, or '30d'")
        return value
    return span_text("look_back", value)


def cluster_columns(name: str, columns: Any) -> list[str]:
    """What a Z-order can go by."""
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) and column for column in columns):
        raise ValueError(f"{name}={columns!r} is no list of columns; write {name}=['customer_id', 'created_at']")
    if not 1 <= len(columns) <= MOST_COLUMNS:
        raise ValueError(
            f"{name} has {len(columns)} columns; give 1 to {MOST_COLUMNS}, those that queries filter by most: each more weakens the others"
        )
    if twice := sorted({column for column in columns if list(columns).count(column) > 1}):
        raise ValueError(f"{name} names {', '.join(twice)} twice; take one out")
    return list(columns)


def at_least(name: str, value: Any, least: int = 1) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ValueError(f"{name}={value!r}; write a whole number of at least {least}")
    return value


def share(name: str, value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise ValueError(f"{name}={value!r} is no share; write a number from 0 to 1, as 0.3")
    return value
