"""Triggers that wait for data-change events. All of a triggerer look together, once a poll (`events/poller.py`)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_opal.events.interest import interests_of
from airflow_provider_opal.events.poller import poller_of, wait_for_all


class EventsTrigger(BaseTrigger):
    """Fires once with {"seq": n}, when there is an event after `after` of one of the tables, or of each with `mode="all"`.

    With `longest_s` it fires after that time with {"seq": None}.
    """

    def __init__(
        self,
        *,
        lakechime_conn_id: str,
        tables: Sequence[Sequence[str]],
        after: int,
        poke_interval_s: float,
        partition: Sequence[Any] | None = None,
        tags: Mapping[str, str] | None = None,
        mode: str = "any",
        longest_s: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.lakechime_conn_id = lakechime_conn_id
        self.tables = [list(table) for table in tables]
        self.after = after
        self.poke_interval_s = poke_interval_s
        self.partition = None if partition is None else list(partition)
        self.tags = dict(tags or {})
        self.mode = mode
        self.longest_s = longest_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "lakechime_conn_id",
            "tables",
            "after",
            "poke_interval_s",
            "partition",
            "tags",
            "mode",
            "longest_s",
        )
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            name: getattr(self, name) for name in names
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        interests = interests_of(
            self.tables, after=self.after, partition=self.partition, tags=self.tags, mode=self.mode
        )
        seq = None
        with suppress(TimeoutError):
            seq = await asyncio.wait_for(
                wait_for_all(self.lakechime_conn_id, interests, self.poke_interval_s),
                self.longest_s,
            )
        yield TriggerEvent({"seq": seq})  # type: ignore[no-untyped-call]  # Airflow's


class TicksTrigger(BaseTrigger):
    """Looks at `start + n * frequency` alone, and fires at the first of these moments at which there is an event of the partition."""

    def __init__(
        self,
        *,
        lakechime_conn_id: str,
        table: Sequence[str],
        partition: Sequence[Any],
        tags: Mapping[str, str],
        start_ts: int,
        frequency: int,
        frequency_unit: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.lakechime_conn_id = lakechime_conn_id
        self.table = list(table)
        self.partition = list(partition)
        self.tags = dict(tags)
        self.start_ts = start_ts
        self.frequency = frequency
        self.frequency_unit = frequency_unit

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "lakechime_conn_id",
            "table",
            "partition",
            "tags",
            "start_ts",
            "frequency",
            "frequency_unit",
        )
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            name: getattr(self, name) for name in names
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from lakechime.triggers.schedule import tick_at, tick_number

        schedule = (self.start_ts, self.frequency, self.frequency_unit)
        [interest] = interests_of([self.table], partition=self.partition, tags=self.tags)
        seq = None
        while seq is None:
            now_ms = int(datetime.now(UTC).timestamp() * 1000)
            passed = tick_number(*schedule, now_ms)
            await asyncio.sleep(
                (tick_at(*schedule, 0 if passed is None else passed + 1) - now_ms) / 1000
            )
            seq = await poller_of(self.lakechime_conn_id).look(interest)
        yield TriggerEvent({"seq": seq})  # type: ignore[no-untyped-call]  # Airflow's
