"""Macros for templates: `DAG(user_defined_macros={"encode_events": encode_events})`, or `macros.lakechime.encode_events` of the plugin.

Both are LakeChime's own, so that a job on a cluster, which has no Airflow, decodes what a template has encoded.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import DataChangeEvent, LakeChime


def encode_events(events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None") -> str:
    """What a task returned, as `ti.xcom_pull(task_ids='fetched_events')` has it, as one argument of a command."""
    from lakechime.triggers import argument

    return argument.encode_events(events)


def decode_events(
    argument: str, client: "LakeChime | None" = None
) -> "tuple[DataChangeEvent, ...]":
    """The events of an argument. `client`: needed where there were too many for one."""
    from lakechime.triggers import argument as codec

    return codec.decode_events(argument, client)


def event_variables(
    events: "Iterable[DataChangeEvent | Mapping[str, Any]] | None",
) -> dict[str, str]:
    """The same as environment variables, LAKECHIME_EVENTS and others."""
    from lakechime import DataChangeEvent as Event
    from lakechime.triggers import environment

    return environment.event_variables(
        [event if isinstance(event, Event) else Event.from_json(event) for event in events or ()]
    )
