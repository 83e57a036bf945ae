"""How data-change events reach the tasks of a flow: as plain dicts in XCom, and as environment variables."""

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
    """Pushes the variables for other tasks' `env=`, and returns the events as plain dicts.

    `partition` and `tags` are what they were found by: they name the events where those are too many for a variable.
    """
    from lakechime.triggers.environment import Query, event_variables

    query = Query(partition=None if partition is None else tuple(partition), tags=dict(tags or {}))
    context["ti"].xcom_push(key=ENVIRONMENT_KEY, value=event_variables(events, query=query))
    return [event.to_json() for event in events]
