"""Triggers that wait for data-change events.

All triggers of a triggerer look together, once a poll (`events/poller.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_opal.events.interest import interests_of
from airflow_provider_opal.events.moments import next_tick
from airflow_provider_opal.events.poller import poller_of, wait_for_all

if TYPE_CHECKING:
    from lakechime import Interest


class EventsTrigger(BaseTrigger):
    """A trigger that fires once with {"seq": n}, for events after the seq `after`.

    With `mode="any"` one of the tables needs an event, with `mode="all"` each. With `ticks`
    (`events/moments.py`) it looks at these moments only. After `longest_s` without an event it
    fires with {"seq": None}.
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
        ticks: Sequence[Any] | None = None,
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
        self.ticks = None if ticks is None else list(ticks)
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
            "ticks",
            "longest_s",
        )
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        interests = interests_of(
            self.tables, after=self.after, partition=self.partition, tags=self.tags, mode=self.mode
        )
        # None stands for a timeout without an event
        seq = None
        with suppress(TimeoutError):
            seq = await asyncio.wait_for(self._first_after(interests), self.longest_s)
        yield TriggerEvent({"seq": seq})  # type: ignore[no-untyped-call]  # Airflow's

    async def _first_after(self, interests: "Sequence[Interest]") -> int:
        """Wait until each of the interests has an event; return the seq of the last one."""
        if self.ticks is None:
            return await wait_for_all(self.lakechime_conn_id, interests, self.poke_interval_s)
        poller = poller_of(self.lakechime_conn_id)
        while True:
            await next_tick(self.ticks)
            seqs = await asyncio.gather(*map(poller.look, interests))
            matching = [seq for seq in seqs if seq is not None]
            if len(matching) == len(seqs):
                return max(matching)
