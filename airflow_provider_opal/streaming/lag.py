"""The lag of a stream, by the table and by Kafka."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_opal.hooks.kafka import kafka_access
from airflow_provider_opal.hooks.opal import OpalHook


@dataclass(frozen=True, slots=True, kw_only=True)
class LagQuestion:
    """A stream, and the limits of its lag. A limit of None is not checked."""

    table: str
    opal_conn_id: str
    kafka_conn_id: str | None
    bootstrap_servers: str | None = None
    name: str = "main"
    topics: Sequence[str] = ()
    max_messages: int | None = None
    max_delay_s: float | None = None

    def is_small_enough(self, lag: dict[str, Any]) -> bool:
        """Return whether a lag is within both limits."""
        if self.max_messages is not None and lag["messages"] > self.max_messages:
            return False
        return self.max_delay_s is None or bool(lag["delay_s"] <= self.max_delay_s)


def ask_lag(question: LagQuestion, log: Any) -> dict[str, Any] | None:
    """Return the lag as {"messages": n, "delay_s": s, "partitions": n}.

    Returns None while Kafka, the store or the table does not answer.
    """
    from opal_lake.errors import NotFoundError, StorageError
    from opal_stream.kafka.connection import Connection
    from opal_stream.tracking.lag import read_lag

    access = kafka_access(question.kafka_conn_id, question.bootstrap_servers)
    connection = Connection(bootstrap_servers=access.bootstrap_servers, settings=access.settings)
    try:
        table = OpalHook(question.opal_conn_id).table(question.table)
        return asdict(read_lag(table, connection, question.name, question.topics))
    except (NotFoundError, StorageError) as error:
        log.warning("the lag of %s is unknown and asked for again: %s", question.table, error)
        return None
