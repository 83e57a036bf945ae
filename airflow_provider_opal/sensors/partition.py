"""PartitionTriggerSensor, which waits until a partition of a table is registered.

The table may have any format.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.arguments import takes_arguments_of
from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.handover import hand_over
from airflow_provider_opal.events.interest import checked_partition, checked_tags
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.sensors.pacing import PacedSensor, Pacing, defer_within, is_deferrable
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger


class PartitionTriggerSensor(PacedSensor):
    """A sensor that succeeds when a partition has an event with all of the tags.

    The event may be of any time. The sensor returns the events as a list of plain dicts. It fails
    if the partition had events and all of them expired. With `tags` it warns and goes on waiting
    instead, because the tags of expired events are unknown.

    `partition` has a value for each level, such as ["{{ ds }}", "DE"]; values may be templates. The
    sensor looks every `poke_interval`. With `start_timestamp`, `frequency` and `frequency_unit` it
    looks only when the task begins and at start_timestamp + n * frequency. Before `start_timestamp`
    it does not look. Months have the lengths of the calendar, in UTC.

    `skip_when_empty` looks once, and skips if the partition is missing. Then the schedule of the
    DAG decides how often it looks. With `max_events` only the newest events are returned. XCom also
    has the events as variables for tasks, under the key `environment`.
    """

    template_fields: Sequence[str] = (
        "table",
        "partition",
        "tags",
        "cluster",
        "lakechime_conn_id",
        *PacedSensor.template_fields,
    )
    ui_color = "#d8ecf3"

    @takes_arguments_of(Pacing)
    def __init__(
        self,
        *,
        table: str,
        partition: Sequence[Any],
        tags: Mapping[str, str] | None = None,
        cluster: str = DEFAULT_CLUSTER,
        skip_when_empty: bool = False,
        max_events: int | None = None,
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.partition: Any = partition if is_templated(partition) else checked_partition(partition)
        self.tags: Any = tags if is_templated(tags) else checked_tags(tags)
        self.cluster = cluster
        self.skip_when_empty = skip_when_empty
        self.max_events = max_events
        self.lakechime_conn_id = lakechime_conn_id
        self.deferrable = is_deferrable(deferrable)

    def execute(self, context: "Context", deadline_s: float | None = None) -> list[dict[str, Any]]:
        """Look once, then defer if the partition is missing."""
        if not self.deferrable and not self.skip_when_empty:
            return list(super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return list(poked.xcom_value or [])
        if self.skip_when_empty:
            raise AirflowSkipException(
                f"partition {self.partition} of {self.table} is not registered yet"
            )
        defer_within(self, self._trigger(), deadline_s)

    def resume(
        self, context: "Context", event: Mapping[str, int], deadline_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Look again after the trigger has fired."""
        self.look_again(context)
        return self.execute(context, deadline_s)

    def poke(self, context: "Context") -> PokeReturnValue:
        from lakechime import Interest
        from lakechime.triggers.partition import look_at_partition

        if not self.is_due(context):
            return PokeReturnValue(is_done=False)
        partition = checked_partition(self.partition)
        tags = checked_tags(self.tags)
        interest = Interest(
            tables=((self.cluster, self.table),), partition=tuple(partition), tags=tags
        )
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            look = look_at_partition(client, interest)
        if not look.events:
            warning = look.warning(interest)
            if warning is not None:
                self.log.warning(warning)
            return PokeReturnValue(is_done=False)
        newest = look.events
        if self.max_events is not None:
            newest = newest[-self.max_events :]
        if len(newest) < len(look.events):
            self.log.warning(
                "%s events match; only the newest max_events=%s of them are returned",
                len(look.events),
                self.max_events,
            )
        value = hand_over(context, newest, partition=partition, tags=tags)
        return PokeReturnValue(is_done=True, xcom_value=value)

    def _trigger(self) -> "BaseTrigger":
        from airflow_provider_opal.triggers.events import EventsTrigger

        return EventsTrigger(
            lakechime_conn_id=self.lakechime_conn_id,
            tables=[(self.cluster, self.table)],
            after=0,
            poke_interval_s=self.poke_interval,
            partition=list(self.partition),
            tags=dict(self.tags),
            ticks=self.ticks,
        )
