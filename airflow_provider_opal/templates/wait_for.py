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

TIMEOUT = timedelta(days=7)  # as Airflow's sensors
POKE_INTERVAL = timedelta(seconds=10)  # one query for all that wait


@declaration
class WaitFor(Pacing):
    """What must have happened to a table that others write, of any format.

    With `partition`, a value a level, as ["{{ partition_key }}"]: that this partition was registered, ever. Without it: that something was
    registered since the last run; the first run takes what is there. `tags` must be among those of the event. After `timeout` the run
    fails; with `skip` it looks once, and skips if there is nothing. With `start_timestamp`, `frequency` and `frequency_unit` it looks when
    the task begins and at these moments alone.
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
            raise ValueError(f"wait_for: table={self.table!r} is no table; write 'shop.raw'")
        if self.partition is not None:
            checked_partition(self.partition)
        checked_tags(self.tags)
        Pacing.checked(Pacing.among(vars(self)), is_templated)
        span_of("timeout", self.timeout)

    def sensor(
        self, task_id: str, consumer: str
    ) -> "PartitionTriggerSensor | SnapshotTriggerSensor":
        """The task that waits, in the DAG that is open. It takes no worker while it does."""
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
    """What `wait_for=` may be: a WaitFor, or a mapping of its arguments."""
    if given is None or isinstance(given, WaitFor):
        return given
    known = [*WaitFor.fields()]
    if not isinstance(given, Mapping):
        raise ValueError(
            f"wait_for={given!r}; write WaitFor(table='shop.raw', partition=['{{{{ partition_key }}}}'])"
        )
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(
            f"wait_for has no {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )
    if "table" not in given:
        raise ValueError("wait_for names no table; add 'table': 'shop.raw'")
    return WaitFor(**given)
