"""AcknowledgeOperator: the end of a flow that consumes data-change events.

The events of the flow count as consumed when this task has succeeded.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.runs import give_to, given_to
from airflow_provider_opal.hooks.lakechime import LakeChimeHook
from airflow_provider_opal.sensors.snapshot import SnapshotTriggerSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

_ALONE = "Allow one run at a time (max_active_runs=1), and give each flow its own consumer="


class AcknowledgeOperator(BaseOperator):
    """A task that moves a SnapshotTriggerSensor's watermark over its events.

    `sensor` is the task of a sensor with `acknowledge=False`. This task uses the consumer and the
    connection of the sensor, and becomes downstream of it. `sensor` may also be the sensor's task
    id. Then name its `consumer` and `lakechime_conn_id` here, unless the sensor has the defaults.

    Put this task after all tasks that may fail. If it does not succeed, the next run of the DAG
    gets the same events again, together with newer ones. So allow one run at a time
    (`max_active_runs=1`).

    The task fails if another flow has moved the watermark meanwhile. A cleared run that has
    acknowledged its range before succeeds at any watermark.
    """

    template_fields: Sequence[str] = ("consumer", "lakechime_conn_id")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        sensor: SnapshotTriggerSensor | str,
        consumer: str | None = None,
        lakechime_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(sensor, SnapshotTriggerSensor):
            consumer, lakechime_conn_id = _settings_of(sensor, consumer, lakechime_conn_id)
            if self.has_dag() or sensor.has_dag():  # type: ignore[no-untyped-call]  # Airflow's
                self.set_upstream(sensor)
        elif not isinstance(sensor, str):
            raise ValueError(
                f"sensor={sensor!r} is not a SnapshotTriggerSensor; "
                "give the sensor's task or its task id"
            )
        self.sensor = sensor if isinstance(sensor, str) else sensor.task_id
        self.consumer = consumer
        self.lakechime_conn_id = lakechime_conn_id or DEFAULT_LAKECHIME_CONN_ID

    def execute(self, context: "Context") -> int:
        """Move the watermark, and return the end of the range."""
        from airflow_provider_opal.events.consumer import seq_of
        from lakechime import ConflictError
        from lakechime.answers import SEEN_EVENTS

        given = context["ti"].xcom_pull(task_ids=self.sensor)
        if not isinstance(given, dict) or not {"from", "to"} <= given.keys():
            raise AirflowFailException(
                f"task {self.sensor!r} returned {given!r}, and not a range of events; "
                "name the task of a SnapshotTriggerSensor with sensor="
            )
        consumer = self.consumer or f"{context['ti'].dag_id}.{self.sensor}"
        done = {"consumer": consumer, "from": given["from"], "to": given["to"]}
        if given_to(context) == done:  # before this run was cleared
            return int(given["to"])
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            before = client.watermark(consumer, SEEN_EVENTS)
            seen = -1 if before is None else seq_of(before)
            if before is None or seen not in (given["from"], given["to"]):
                now = "gone" if before is None else seen
                raise AirflowFailException(
                    f"this flow has the events after {given['from']}, but the watermark of "
                    f"consumer {consumer!r} is now {now}: another flow has moved it. {_ALONE}"
                )
            try:
                if seen != given["to"]:
                    client.put_watermark(
                        consumer, SEEN_EVENTS, given["to"], expected=before.revision
                    )
            except ConflictError as error:
                raise AirflowFailException(
                    f"another flow moved the watermark of consumer {consumer!r} at the same time. "
                    f"{_ALONE}"
                ) from error
        return int(give_to(context, done)["to"])


def _settings_of(
    sensor: SnapshotTriggerSensor, consumer: str | None, lakechime_conn_id: str | None
) -> tuple[str | None, str]:
    """Return the sensor's consumer and connection; refuse other given ones."""
    if sensor.acknowledge:
        raise ValueError(
            f"the sensor {sensor.task_id!r} moves its watermark itself; "
            "give it tables=[...] and acknowledge=False, or remove the AcknowledgeOperator"
        )
    sensors_consumer = sensor.consumer or f"{sensor.dag_id}.{sensor.task_id}"
    sensors_conn_id = sensor.lakechime_conn_id or DEFAULT_LAKECHIME_CONN_ID
    given = {
        "consumer": (consumer, sensors_consumer),
        "lakechime_conn_id": (lakechime_conn_id, sensors_conn_id),
    }
    for name, (own, of_sensor) in given.items():
        if own not in (None, of_sensor):
            raise ValueError(
                f"{name}={own!r} contradicts the sensor {sensor.task_id!r}, "
                f"which has {of_sensor!r}; leave out {name}="
            )
    return sensor.consumer, sensors_conn_id
