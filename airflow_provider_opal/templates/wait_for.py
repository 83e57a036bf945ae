"""`wait_for`: a pipeline or a consumer waits for a foreign table before it begins."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_opal.assets import DEFAULT_CLUSTER, DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.interest import checked_partition, checked_tags
from airflow_provider_opal.sensors.pacing import Pacing
from airflow_provider_opal.templated import is_templated
from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Span, span_of

if TYPE_CHECKING:
    from airflow_provider_opal.sensors.partition import PartitionTriggerSensor
    from airflow_provider_opal.sensors.snapshot import SnapshotTriggerSensor

TIMEOUT = timedelta(days=7)  # the default of Airflow's sensors
# Short, because all sensors that wait in a triggerer share one query
POKE_INTERVAL = timedelta(seconds=10)


@declaration
class WaitFor(Pacing):
    """The event of another table, of any format, that a run waits for.

    `partition` has a value for each level, such as ["{{ partition_key }}"]. The run waits until an
    event of this partition is registered; an earlier event is enough. Without `partition` the run
    waits for an event since the last run, and the first run accepts every registered event. The
    event must have all of `tags`. After `timeout` the run fails. With `skip` it looks once, and
    skips if no such event exists. With `start_timestamp`, `frequency` and `frequency_unit` it looks
    only when the task begins and at start_timestamp + n * frequency.
    """

    name: ClassVar[str] = "wait_for"

    table: str
    partition: Sequence[Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = DEFAULT_CLUSTER
    timeout: Span = TIMEOUT
    skip: bool = False
    lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError(
                f"wait_for: table={self.table!r} is not the name of a table; write 'shop.raw'"
            )
        if self.partition is not None:
            checked_partition(self.partition)
        checked_tags(self.tags)
        Pacing.checked(Pacing.among(vars(self)), is_templated)
        span_of("timeout", self.timeout)

    def sensor(
        self, task_id: str, consumer: str
    ) -> "PartitionTriggerSensor | SnapshotTriggerSensor":
        """Add the waiting task to the current DAG, and return it; it is deferrable."""
        given: dict[str, Any] = {
            "task_id": task_id,
            "tags": self.tags,
            "cluster": self.cluster,
            "lakechime_conn_id": self.lakechime_conn_id,
            "timeout": span_of("timeout", self.timeout).total_seconds(),
            "poke_interval": POKE_INTERVAL.total_seconds(),
            "deferrable": True,
            "skip_when_empty": self.skip,
            **Pacing.among(vars(self)),
        }
        if self.partition is not None:
            from airflow_provider_opal.sensors.partition import PartitionTriggerSensor

            return PartitionTriggerSensor(table=self.table, partition=self.partition, **given)
        from airflow_provider_opal.sensors.snapshot import SnapshotTriggerSensor

        return SnapshotTriggerSensor(tables=[self.table], consumer=consumer, start="all", **given)


def wait_for_of(given: Any) -> WaitFor | None:
    """Return the WaitFor of a `wait_for=` argument, which may be a mapping, or None."""
    if given is None or isinstance(given, WaitFor):
        return given
    known = [*WaitFor.fields()]
    if not isinstance(given, Mapping):
        raise ValueError(
            f"wait_for={given!r} is not a WaitFor; "
            "write WaitFor(table='shop.raw', partition=['{{ partition_key }}'])"
        )
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"wait_for has no argument {', '.join(map(repr, unknown))}; "
            f"use one of {', '.join(known)}"
        )
    if "table" not in given:
        raise ValueError("wait_for does not name a table; add 'table': 'shop.raw'")
    return WaitFor(**given)
