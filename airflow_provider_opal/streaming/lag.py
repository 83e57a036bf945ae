"""How far a stream is behind, asked of the table and of Kafka."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_opal.hooks.kafka import kafka_access
from airflow_provider_opal.hooks.opal import OpalHook


@dataclass(frozen=True, slots=True, kw_only=True)
class LagQuestion:
    """Of which stream, and how far behind it may be. What is None is not asked."""

    table: str
    opal_conn_id: str
    kafka_conn_id: str | None
    bootstrap_servers: str | None = None
    name: str = "main"
    topics: Sequence[str] = ()
    max_messages: int | None = None
    max_delay_s: float | None = None

    def is_small_enough(self, lag: dict[str, Any]) -> bool:
        few = self.max_messages is None or lag["messages"] <= self.max_messages
        young = self.max_delay_s is None or lag["delay_s"] <= self.max_delay_s
        return few and young


def ask_lag(question: LagQuestion, log: Any) -> dict[str, Any] | None:
    """{"messages": n, "delay_s": s, "partitions": n}; None while Kafka, the store or the table is not there."""
    from opal_lake.errors import NotFoundError, StorageError
    from opal_stream.kafka.connection import Connection
    from opal_stream.tracking.lag import read_lag

    access = kafka_access(question.kafka_conn_id, question.bootstrap_servers)
    connection = Connection(bootstrap_servers=access.bootstrap_servers, settings=access.settings)
    try:
        return asdict(
            read_lag(
                OpalHook(question.opal_conn_id).table(question.table),
                connection,
                question.name,
                question.topics,
            )
        )
    except (NotFoundError, StorageError) as error:
        log.warning("%s; asked again", error)
        return None
