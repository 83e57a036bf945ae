"""PartitionTriggerSensor: waits until a partition of a table was registered, of a table of any format."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.handover import hand_over
from airflow_provider_opal.events.interest import checked_partition, checked_tags
from airflow_provider_opal.events.moments import moment_ms
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.sensors.waiting import defer_within
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger
    from pydantic import JsonValue

LOOKED_AT = "opal_looked_at"
UNITS = ("minute", "hour", "day", "week", "month")


class PartitionTriggerSensor(BaseSensorOperator):
    """Succeeds when there is an event of the partition, ever, with all of the tags; returns the events as a list of plain dicts.

    It fails where the partition had events and all of them expired. With `tags` it warns and waits on: one of those may have had the tags.

    `partition` has a value a level, as ["{{ ds }}", "DE"]: templates of the run. It is looked for every `poke_interval`; or, with
    `start_timestamp`, `frequency` and `frequency_unit`, when the task begins and at start_timestamp + n * frequency alone. Before
    `start_timestamp` nothing is looked for. Months have the lengths of the calendar, in UTC.

    `skip_when_empty` looks once, and skips if the partition is not there: the schedule of the DAG is the frequency then. With `max_events`
    only so many are returned, the newest. The events are variables for tasks, too, in XCom as `environment`.
    """

    template_fields: Sequence[str] = (
        "table",
        "partition",
        "tags",
        "cluster",
        "start_timestamp",
        "lakechime_conn_id",
    )
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        partition: Sequence[Any],
        tags: Mapping[str, str] | None = None,
        cluster: str = DEFAULT_CLUSTER,
        start_timestamp: datetime | int | str | None = None,
        frequency: int | None = None,
        frequency_unit: str | None = None,
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
        self.start_timestamp = start_timestamp
        self.frequency, self.frequency_unit = checked_frequency(
            start_timestamp, frequency, frequency_unit
        )
        self.skip_when_empty = skip_when_empty
        self.max_events = max_events
        self.lakechime_conn_id = lakechime_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None
            else deferrable
        )

    def execute(self, context: "Context", deadline_s: float | None = None) -> list[dict[str, Any]]:
        """Looks once before it defers."""
        if not self.deferrable and not self.skip_when_empty:
            return list(super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return list(poked.xcom_value or [])
        if self.skip_when_empty:
            raise AirflowSkipException(
                f"partition {self.partition} of {self.table} is not there yet"
            )
        defer_within(self, self._trigger(), deadline_s)

    def resume(
        self, context: "Context", event: Mapping[str, int], deadline_s: float | None = None
    ) -> list[dict[str, Any]]:
        """After the trigger has fired."""
        context["task_state_store"].set(LOOKED_AT, {})
        return self.execute(context, deadline_s)

    def poke(self, context: "Context") -> PokeReturnValue:
        from lakechime import Interest
        from lakechime.triggers.partition import look_at_partition

        if not self._is_due(context):
            return PokeReturnValue(is_done=False)
        partition, tags = checked_partition(self.partition), checked_tags(self.tags)
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            interest = Interest(
                tables=((self.cluster, self.table),), partition=tuple(partition), tags=tags
            )
            look = look_at_partition(client, interest)
        found = look.events
        if not found:
            if (warning := look.warning(interest)) is not None:
                self.log.warning(warning)
            return PokeReturnValue(is_done=False)
        newest = found if self.max_events is None else found[-self.max_events :]
        if len(newest) < len(found):
            self.log.warning(
                "%s events match, and max_events=%s of them are returned: the newest",
                len(found),
                self.max_events,
            )
        return PokeReturnValue(
            is_done=True, xcom_value=hand_over(context, newest, partition=partition, tags=tags)
        )

    def _is_due(self, context: "Context") -> bool:
        """Every time; or once for each tick, a try's first time for the last one that has passed. Between two looks the process may end."""
        if self.frequency is None or self.frequency_unit is None:
            return True
        from lakechime.triggers.schedule import tick_number

        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        tick = tick_number(
            moment_ms("start_timestamp", self.start_timestamp),
            self.frequency,
            self.frequency_unit,
            now_ms,
        )
        look: dict[str, JsonValue] = {"try": context["ti"].try_number, "tick": tick}
        if tick is None or context["task_state_store"].get(LOOKED_AT) == look:
            return False
        context["task_state_store"].set(LOOKED_AT, look)
        return True

    def _trigger(self) -> "BaseTrigger":
        from airflow_provider_opal.triggers.events import EventsTrigger, TicksTrigger

        what: dict[str, Any] = {
            "lakechime_conn_id": self.lakechime_conn_id,
            "partition": list(self.partition),
            "tags": dict(self.tags),
        }
        if self.frequency is None or self.frequency_unit is None:
            return EventsTrigger(
                tables=[(self.cluster, self.table)],
                after=0,
                poke_interval_s=self.poke_interval,
                **what,
            )
        return TicksTrigger(
            table=(self.cluster, self.table),
            start_ts=moment_ms("start_timestamp", self.start_timestamp),
            frequency=self.frequency,
            frequency_unit=self.frequency_unit,
            **what,
        )


def checked_frequency(
    start_timestamp: Any, frequency: Any, unit: str | None
) -> tuple[int | None, str | None]:
    """All three, or none of them."""
    given = [value is not None for value in (start_timestamp, frequency, unit)]
    if any(given) and not all(given):
        raise ValueError(
            "start_timestamp, frequency and frequency_unit belong together: give all three, as '2026-11-01T00:00:00Z', 1 and 'hour'"
        )
    if frequency is None or unit is None:
        return None, None
    name = str(unit).lower().removesuffix("s")
    if name not in UNITS:
        raise ValueError(f"frequency_unit={unit!r} is unknown; use one of {', '.join(UNITS)}")
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
        raise ValueError(f"frequency={frequency!r} is no whole number from 1 on; write 1")
    return frequency, name.upper()
