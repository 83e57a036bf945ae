"""SnapshotTriggerSensor: waits until a table has versions that a consumer has not seen, and says which."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.triggers.snapshot import SnapshotTrigger
from airflow_provider_opal.watermark import Start, Watermark, checked_start, first_version

if TYPE_CHECKING:
    from airflow.sdk import Context


class SnapshotTriggerSensor(BaseSensorOperator):
    """Returns {"from": a, "to": b}: all versions after a, up to and with b, and nothing is left out between two runs.

    The watermark of a `consumer` (default: DAG and task) is kept with the table's asset, and moves when the sensor succeeds. What a run has
    got stays its own: cleared, it gets the same range again. A new consumer starts at the newest version (`start="head"`: what is there
    counts as seen), at the first one (`start="all"`), or after a version number. `max_versions` cuts a long backlog into several runs.
    """

    template_fields: Sequence[str] = ("table", "consumer")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        consumer: str | None = None,
        start: Start = "head",
        max_versions: int | None = None,
        opal_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.consumer = consumer
        self.start = checked_start(start)
        self.max_versions = max_versions
        self.opal_conn_id = opal_conn_id
        self.deferrable = conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        self.asset = opal_asset(table, opal_conn_id=opal_conn_id)
        self.inlets = [*(self.inlets or []), self.asset]

    def execute(self, context: "Context") -> dict[str, int]:
        """Looks once before it defers: only a running task can reach its state."""
        if not self.deferrable:
            return self._taken(context, super().execute(context))
        found = self.poke(context)
        if found.is_done:
            return self._taken(context, found.xcom_value or {})
        trigger = SnapshotTrigger(
            table=self.table,
            opal_conn_id=self.opal_conn_id,
            after=self._seen(context),
            poke_interval_s=self.poke_interval,
            max_versions=self.max_versions,
        )
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        raise AssertionError("defer never returns")

    def resume(self, context: "Context", event: Mapping[str, int]) -> dict[str, int]:
        """After the trigger has fired."""
        return self._taken(context, event)

    def poke(self, context: "Context") -> PokeReturnValue:
        if (kept := self._watermark(context).given()) is not None:
            return PokeReturnValue(is_done=True, xcom_value=kept)
        found = OpalHook(self.opal_conn_id).versions_after(self.table, self._seen(context), self.max_versions)
        if found is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value={"from": found[0], "to": found[1]})

    def _watermark(self, context: "Context") -> Watermark:
        return Watermark.of(context, self.table, self.opal_conn_id, self.consumer)

    def _seen(self, context: "Context") -> int:
        return self._watermark(context).seen(partial(first_version, self.start, self.opal_conn_id, self.table))

    def _taken(self, context: "Context", found: Mapping[str, int]) -> dict[str, int]:
        watermark = self._watermark(context)
        taken = watermark.give({"from": int(found["from"]), "to": int(found["to"])})
        watermark.advance(taken["to"])
        return taken
