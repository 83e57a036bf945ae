"""AcknowledgeOperator: the end of a flow that consumes data-change events. What the flow was given counts as done when it has succeeded."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import DEFAULT_LAKECHIME_CONN_ID
from airflow_provider_opal.events.runs import give_to, given_to
from airflow_provider_opal.hooks.lakechime import LakeChimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

_ALONE = "Let one run at a time (max_active_runs=1), and give each flow a consumer= of its own"


class AcknowledgeOperator(BaseOperator):
    """Moves the watermark of a SnapshotTriggerSensor with `acknowledge=False`, the task `sensor`, over the range that it returned.

    Put it behind all that may fail. Until it has succeeded, the next run of the DAG gets the same events again, with what is newer; so let
    one run at a time (`max_active_runs=1`). Fails if another flow has moved the watermark meanwhile; but a run that has acknowledged its
    range before, and is cleared, succeeds wherever the watermark is now.
    """

    template_fields: Sequence[str] = ("consumer", "lakechime_conn_id")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        sensor: str,
        consumer: str | None = None,
        lakechime_conn_id: str = DEFAULT_LAKECHIME_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sensor = sensor
        self.consumer = consumer
        self.lakechime_conn_id = lakechime_conn_id

    def execute(self, context: "Context") -> int:
        """Returns where the range ends: the watermark is there, or was."""
        from airflow_provider_opal.events.consumer import seq_of
        from lakechime import ConflictError
        from lakechime.answers import SEEN_EVENTS

        given = context["ti"].xcom_pull(task_ids=self.sensor)
        if not isinstance(given, dict) or not {"from", "to"} <= given.keys():
            raise AirflowFailException(
                f"task {self.sensor!r} returned {given!r}, which is no range of events; name the sensor's task: sensor="
            )
        consumer = self.consumer or f"{context['ti'].dag_id}.{self.sensor}"
        done = {"consumer": consumer, "from": given["from"], "to": given["to"]}
        if given_to(context) == done:
            return int(given["to"])
        with closing(LakeChimeHook(self.lakechime_conn_id).get_conn()) as client:
            before = client.watermark(consumer, SEEN_EVENTS)
            seen = -1 if before is None else seq_of(before)
            if before is None or seen not in (given["from"], given["to"]):
                raise AirflowFailException(
                    f"this flow was given what came after {given['from']}, but the watermark of consumer {consumer!r} is "
                    f"{'gone' if before is None else seen} now: another flow moved it. {_ALONE}"
                )
            try:
                if seen != given["to"]:
                    client.put_watermark(
                        consumer, SEEN_EVENTS, given["to"], expected=before.revision
                    )
            except ConflictError as error:
                raise AirflowFailException(
                    f"another flow moved the watermark of consumer {consumer!r} at the same time. {_ALONE}"
                ) from error
        return int(give_to(context, done)["to"])
