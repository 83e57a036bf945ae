"""StreamLagSensor, which waits until a stream has caught up to a given lag."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_opal.assets import DEFAULT_CONN_ID
from airflow_provider_opal.hooks.kafka import DEFAULT_KAFKA_CONN_ID
from airflow_provider_opal.sensors.pacing import defer_within, is_deferrable
from airflow_provider_opal.streaming.lag import LagQuestion, ask_lag
from airflow_provider_opal.triggers.stream import LagTrigger
from opal_lake.arguments.values import Span, span_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class StreamLagSensor(BaseSensorOperator):
    """A sensor that succeeds when a stream's lag is small enough.

    The lag is small enough if the table lacks at most `max_messages` messages of Kafka, and the
    oldest of them is at most `max_delay` old. Give one of the two limits, or both. `name` is the
    name of the stream. Without `topics`, the topics that the stream has read count. The sensor
    returns {"messages": n, "delay_s": s, "partitions": n}. While Kafka, the store or the table does
    not answer, it waits.
    """

    template_fields: Sequence[str] = (
        "table",
        "topics",
        "name_of_stream",
        "opal_conn_id",
        "kafka_conn_id",
        "bootstrap_servers",
    )
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        max_messages: int | None = None,
        max_delay: Span | None = None,
        topics: Sequence[str] | str = (),
        name: str = "main",
        opal_conn_id: str = DEFAULT_CONN_ID,
        kafka_conn_id: str | None = None,
        bootstrap_servers: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_messages is None and max_delay is None:
            raise ValueError(
                "StreamLagSensor needs a limit of the lag; "
                "give max_messages=1000, or max_delay='10s', or both"
            )
        if max_messages is not None and max_messages < 0:
            raise ValueError(
                f"max_messages must be at least 0, got {max_messages!r}; "
                "give 0 to wait until all messages are read"
            )
        self.table = table
        self.max_messages = max_messages
        self.max_delay_s: float | None = None
        if max_delay is not None:
            self.max_delay_s = span_of("max_delay", max_delay).total_seconds()
        self.topics = topics
        self.name_of_stream = name
        self.opal_conn_id = opal_conn_id
        # Servers that are named need no connection
        default_conn_id = None if bootstrap_servers else DEFAULT_KAFKA_CONN_ID
        self.kafka_conn_id = kafka_conn_id or default_conn_id
        self.bootstrap_servers = bootstrap_servers
        self.deferrable = is_deferrable(deferrable)

    def execute(self, context: "Context", deadline_s: float | None = None) -> dict[str, Any]:
        """Look once, then defer if the lag is too large."""
        if not self.deferrable:
            return dict(super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return dict(poked.xcom_value or {})
        question = asdict(self._question())
        trigger = LagTrigger(question=question, poke_interval_s=self.poke_interval)
        defer_within(self, trigger, deadline_s)

    def resume(
        self, context: "Context", event: dict[str, Any], deadline_s: float | None = None
    ) -> dict[str, Any]:
        """Return the lag with which the trigger fired."""
        return event

    def poke(self, context: "Context") -> PokeReturnValue:
        question = self._question()
        lag = ask_lag(question, self.log)
        if lag is not None:
            self.log.info(
                "%s is behind by %s messages, the oldest %s s old",
                self.table,
                lag["messages"],
                lag["delay_s"],
            )
        is_done = lag is not None and question.is_small_enough(lag)
        return PokeReturnValue(is_done=is_done, xcom_value=lag)

    def _question(self) -> LagQuestion:
        topics = [self.topics] if isinstance(self.topics, str) else list(self.topics)
        return LagQuestion(
            table=self.table,
            opal_conn_id=self.opal_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            bootstrap_servers=self.bootstrap_servers,
            name=self.name_of_stream,
            topics=topics,
            max_messages=self.max_messages,
            max_delay_s=self.max_delay_s,
        )
