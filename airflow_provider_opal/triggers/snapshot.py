"""SnapshotTrigger: looks at a table's log from the triggerer until there is more than a consumer has seen."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_opal.hooks.opal import OpalHook


class SnapshotTrigger(BaseTrigger):
    """Fires once with {from, to}: the versions after `after`, up to the newest that changed what can be read.

    A table that is not there yet has none.
    """

    def __init__(
        self,
        *,
        table: str,
        opal_conn_id: str,
        after: int,
        poke_interval_s: float,
        max_versions: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.table = table
        self.opal_conn_id = opal_conn_id
        self.after = after
        self.poke_interval_s = poke_interval_s
        self.max_versions = max_versions

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            name: getattr(self, name)
            for name in ("table", "opal_conn_id", "after", "poke_interval_s", "max_versions")
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        hook = OpalHook(self.opal_conn_id)
        while True:
            versions = await asyncio.to_thread(self._look, hook)
            if versions is not None:
                yield TriggerEvent({"from": versions[0], "to": versions[1]})  # type: ignore[no-untyped-call]  # Airflow's
                return
            await asyncio.sleep(self.poke_interval_s)

    def _look(self, hook: OpalHook) -> tuple[int, int] | None:
        return (
            hook.versions_after(self.table, self.after, self.max_versions)
            if hook.exists(self.table)
            else None
        )
