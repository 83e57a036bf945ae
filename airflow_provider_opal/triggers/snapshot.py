"""SnapshotTrigger, which waits for versions of a table that a consumer has not seen."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_opal.events.moments import next_tick
from airflow_provider_opal.hooks.opal import OpalHook


class SnapshotTrigger(BaseTrigger):
    """A trigger that fires once with {"from": a, "to": b}, the range of new versions.

    The range begins after the version `after`, and ends with the newest one that changed the view.
    The trigger also waits for a missing table. With `ticks` (`events/moments.py`) it looks at these
    moments only.
    """

    def __init__(
        self,
        *,
        table: str,
        opal_conn_id: str,
        after: int,
        poke_interval_s: float,
        max_versions: int | None = None,
        ticks: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.table = table
        self.opal_conn_id = opal_conn_id
        self.after = after
        self.poke_interval_s = poke_interval_s
        self.max_versions = max_versions
        self.ticks = None if ticks is None else list(ticks)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("table", "opal_conn_id", "after", "poke_interval_s", "max_versions", "ticks")
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = OpalHook(self.opal_conn_id)
        while True:
            if self.ticks is not None:
                await next_tick(self.ticks)
            # In a thread: a store's answer would stop all triggers of the triggerer
            versions = await asyncio.to_thread(self._look, hook)
            if versions is not None:
                payload = {"from": versions[0], "to": versions[1]}
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's
                return
            if self.ticks is None:
                await asyncio.sleep(self.poke_interval_s)

    def _look(self, hook: OpalHook) -> tuple[int, int] | None:
        if not hook.exists(self.table):
            return None
        return hook.versions_after(self.table, self.after, self.max_versions)
