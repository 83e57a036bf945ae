"""UpkeepOperator: what operators share that tend a table's files, and the checks of what they are given."""

import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.secrets import mask
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.job import JobResult
    from opal_lake.table import Table

Span = str | timedelta
MOST_COLUMNS = 8
CODEC = r"zstd(:([1-9]|1[0-9]|2[0-2]))?"
_WEEKS = re.compile(r"([0-9]{1,5})w")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TEMPLATE = re.compile(r"\{[{%]")


class UpkeepOperator(OpalSparkOperator):
    """Tends a table's files and leaves its rows as they are: it has no outlets, wakes nobody, and needs no partition key.

    It may run at any time beside ingests, MetaGens and readers.
    """

    note_level = logging.INFO  # notes say what is due and why

    def __init__(self, *, table: str, arguments: Mapping[str, Any], **kwargs: Any) -> None:
        said = {name: value for name, value in arguments.items() if value is not None}
        super().__init__(table=table, arguments=said, **kwargs)

    def needs_key(self, context: "Context") -> bool:
        """A table is tended as a whole."""
        return False

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """A dry run only reads the table's state: it needs no Spark, and its repeat is harmless."""
        return self._dry_run(context) if self.arguments.get("dry_run") else super().execute(context)

    def rehearse(self, table: "Table") -> "JobResult":
        """What would be done."""
        raise NotImplementedError(f"{self.operation} has no dry run")

    def _dry_run(self, context: "Context") -> dict[str, Any]:
        mask(self.opal.lake.spark_conf().items())
        try:
            found = self.rehearse(self.opal.table(self.table))
        except (InvalidInputError, NotFoundError) as error:
            raise AirflowFailException(str(error)) from error  # to try again would not help
        return self.finish(context, found)


def span_text(name: str, value: Any) -> str | None:
    """A duration as a job takes it, in one unit. A template is left to its run."""
    if value is None or (isinstance(value, str) and _TEMPLATE.search(value)):
        return value
    try:
        parse_duration(text := _text(value), name=name)
    except (InvalidInputError, TypeError) as error:
        raise ValueError(f"{name}={value!r} is no duration; write it as '12h', '30d' or '2w', or as timedelta(days=30)") from error
    return text


def _text(value: Any) -> str:
    if isinstance(value, timedelta) and value.total_seconds() % 1 == 0:
        seconds = int(value.total_seconds())
        return next(f"{seconds // size}{unit}" for unit, size in _SECONDS.items() if seconds % size == 0)
    weeks = _WEEKS.fullmatch(value)
    return f"{int(weeks[1]) * 7}d" if weeks else str(value)


def delta_span(name: str, value: Any) -> str | int | None:
    """A duration; or a whole number in the unit of the delta column, if that holds numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{name}={value!r} reaches into the future; write a whole number of at least 0, or '30d'")
        return value
    return span_text(name, value)


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


def percent(name: str, value: Any) -> int | None:
    """A share, as 30 or 0.3."""
    if isinstance(value, float) and 0 < value < 1:
        return round(value * 100)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100):
        raise ValueError(f"{name}={value!r} is no percentage; write a whole number from 1 to 100, or a fraction, as 0.3")
    return value


def codec(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch(CODEC, value)):
        raise ValueError(f"{name}={value!r} is no codec; write 'zstd:1' to 'zstd:22', the higher the smaller and slower")
    return value
