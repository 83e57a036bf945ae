"""Macros for templates, such as `macros.lakechime.encode_events` of the plugin.

A DAG may also take them by `DAG(user_defined_macros={"encode_events": encode_events})`. They are
LakeChime's own, so that a job on a cluster, which has no Airflow, decodes what a template encoded.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import DataChangeEvent, LakeChime


def encode_events(events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None") -> str:
    """Return the events of a task as one argument of a command.

    A template gets them by `ti.xcom_pull(task_ids='fetched_events')`.
    """
    from lakechime.triggers import argument

    return argument.encode_events(events)


def decode_events(
    argument: str, client: "LakeChime | None" = None
) -> "tuple[DataChangeEvent, ...]":
    """Return the events of an argument.

    `client` is needed where the events were too many for an argument.
    """
    from lakechime.triggers import argument as codec

    return codec.decode_events(argument, client)


def event_variables(
    events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None",
) -> dict[str, str]:
    """Return events as environment variables, LAKECHIME_EVENTS and others."""
    from lakechime import DataChangeEvent as Event
    from lakechime.triggers import environment

    parsed = [
        event if isinstance(event, Event) else Event.from_json(event) for event in events or ()
    ]
    return environment.event_variables(parsed)
