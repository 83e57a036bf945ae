"""The forms in which tasks get data-change events: plain dicts in XCom, and variables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakechime import DataChangeEvent

EVENTS_KEY, ENVIRONMENT_KEY = "events", "environment"


def hand_over(
    context: "Context",
    events: Sequence["DataChangeEvent"],
    *,
    partition: Sequence[Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Push the variables for tasks' `env=`, and return the events as plain dicts.

    `partition` and `tags` are the filter that found the events. If the events are too many for a
    variable, the variables hold this filter instead.
    """
    from lakechime.triggers.environment import Query, event_variables

    values = None if partition is None else tuple(partition)
    query = Query(partition=values, tags=dict(tags or {}))
    context["ti"].xcom_push(key=ENVIRONMENT_KEY, value=event_variables(events, query=query))
    return [event.to_json() for event in events]
