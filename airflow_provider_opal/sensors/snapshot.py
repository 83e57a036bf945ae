"""SnapshotTriggerSensor: waits until a table has versions that a consumer has not seen, and says which.

Only versions that changed the view count: `OpalHook.versions_after`.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_opal.assets import DEFAULT_CONN_ID, distinct, known_assets, opal_asset
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.triggers.snapshot import SnapshotTrigger
from airflow_provider_opal.watermark import Start, Watermark, checked_start, default_consumer, first_version, wait_for_table, was_waited_for

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context


class SnapshotTriggerSensor(BaseSensorOperator):
    """Returns {"from": a, "to": b}: all versions after a, up to and with b, and nothing is left out between two runs.

    The watermark of a `consumer` (default: DAG and task) is kept with the table's asset, and moves when the sensor succeeds. What a run has
    got stays its own: cleared, it gets the same range again. A new consumer starts at the newest version (`start="head"`: what is there
    counts as seen), at the first one (`start="all"`), or after a version number. `max_versions` cuts a long backlog into several runs.

    A table that is not there yet is waited for; all that it has then is new.
    """

    template_fields: Sequence[str] = ("table", "consumer", "opal_conn_id")
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
        self.inlets = distinct([*self.inlets, *known_assets({"table": table, "opal_conn_id": opal_conn_id})])

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """As Airflow's, with the inlet that the sensor gives itself, if its table is known by now."""
        return super().partial(**{**given, "inlets": distinct([*(given.get("inlets") or ()), *known_assets(given)])})

    @property
    def asset(self) -> "Asset":
        """The asset of the table. ValueError while the table is a template."""
        return opal_asset(self.table, opal_conn_id=self.opal_conn_id)

    def execute(self, context: "Context") -> dict[str, int]:
        """Looks once before it defers: only a running task can reach its state."""
        if not self.deferrable:
            return self._acknowledge(context, super().execute(context))
        poked = self.poke(context)
        if poked.is_done:
            return self._acknowledge(context, poked.xcom_value or {})
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
        return self._acknowledge(context, event)

    def poke(self, context: "Context") -> PokeReturnValue:
        if not OpalHook(self.opal_conn_id).exists(self.table):
            if wait_for_table(context, self.asset, self._consumer(context)):
                self.log.info("%s is not there yet; waiting for it", self.table)
            return PokeReturnValue(is_done=False)
        if (kept := self._watermark(context).given()) is not None:
            return PokeReturnValue(is_done=True, xcom_value=kept)
        versions = OpalHook(self.opal_conn_id).versions_after(self.table, self._seen(context), self.max_versions)
        if versions is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value={"from": versions[0], "to": versions[1]})

    def _consumer(self, context: "Context") -> str:
        return self.consumer or default_consumer(context)

    def _watermark(self, context: "Context") -> Watermark:
        return Watermark.of(context, self.table, self.opal_conn_id, self.consumer)

    def _seen(self, context: "Context") -> int:
        """Of a table that was waited for everything is new, unless the start is a number."""
        waited = was_waited_for(context, self.asset, self._consumer(context))
        start: Start = "all" if waited and self.start == "head" else self.start
        first = partial(first_version, start, self.opal_conn_id, self.table)
        return self._watermark(context).seen(first) if OpalHook(self.opal_conn_id).exists(self.table) else first()

    def _acknowledge(self, context: "Context", versions: Mapping[str, int]) -> dict[str, int]:
        watermark = self._watermark(context)
        given = watermark.give({"from": int(versions["from"]), "to": int(versions["to"])})
        watermark.advance(given["to"])
        return given
