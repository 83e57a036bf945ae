"""Macros for templates, such as `macros.lakechime.encode_events` of the plugin.

A DAG may also get them by `DAG(user_defined_macros={"encode_events": encode_events})`. They call
LakeChime's functions, so a job on a cluster without Airflow can decode the events of a template.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import DataChangeEvent, LakeChime


def encode_events(events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None") -> str:
    """Return the events of a task as one argument of a command.

    A template gets the events by `ti.xcom_pull(task_ids='fetched_events')`.
    """
    from lakechime.triggers import argument

    return argument.encode_events(events)


def decode_events(
    argument: str, client: "LakeChime | None" = None
) -> "tuple[DataChangeEvent, ...]":
    """Return the events that `encode_events` put into an argument.

    Give a `client` for an argument that had room only for a query of its events.
    """
    from lakechime.triggers import argument as codec

    return codec.decode_events(argument, client)


def event_variables(
    events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None",
) -> dict[str, str]:
    """Return environment variables that hold events: LAKECHIME_EVENTS and others."""
    from lakechime import DataChangeEvent as Event
    from lakechime.triggers import environment

    def parsed(event: "Event | Mapping[str, Any]") -> Event:
        if isinstance(event, Event):
            return event
        return Event.from_json(event)

    return environment.event_variables([parsed(event) for event in events or ()])
