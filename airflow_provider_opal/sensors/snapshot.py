"""SnapshotTriggerSensor: waits until a table has versions that a consumer has not seen, and says which."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_opal.assets import DEFAULT_CONN_ID, opal_asset
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.triggers.snapshot import SnapshotTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

RANGE_KEY = "opal_range"


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
        start: str | int = "head",
        max_versions: int | None = None,
        opal_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not (start in ("head", "all") or (isinstance(start, int) and start >= 0)):
            raise ValueError(f"start={start!r} is unknown; use 'head', 'all' or the number of the last version that counts as seen")
        self.table = table
        self.consumer = consumer
        self.start = start
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
            after=self._watermark(context),
            poke_interval_s=self.poke_interval,
            max_versions=self.max_versions,
        )
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        raise AssertionError("defer never returns")

    def resume(self, context: "Context", event: Mapping[str, int]) -> dict[str, int]:
        """After the trigger has fired."""
        return self._taken(context, event)

    def poke(self, context: "Context") -> PokeReturnValue:
        kept = context["task_state_store"].get(RANGE_KEY)
        if isinstance(kept, dict):
            return PokeReturnValue(is_done=True, xcom_value=kept)
        found = OpalHook(self.opal_conn_id).versions_after(self.table, self._watermark(context), self.max_versions)
        if found is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value={"from": found[0], "to": found[1]})

    def _watermark(self, context: "Context") -> int:
        """The last version that was seen; fixed at the first look of a new consumer, so that what comes meanwhile is new."""
        store, key = context["asset_state_store"][self.asset], self._key(context)
        seen = store.get(key)
        if isinstance(seen, int):
            return seen
        first = OpalHook(self.opal_conn_id).head(self.table) if self.start == "head" else 0 if self.start == "all" else int(self.start)
        store.set(key, first)
        return first

    def _taken(self, context: "Context", found: Mapping[str, int]) -> dict[str, int]:
        taken: dict[str, Any] = {"from": int(found["from"]), "to": int(found["to"])}
        context["task_state_store"].set(RANGE_KEY, taken, retention=NEVER_EXPIRE)
        store, key = context["asset_state_store"][self.asset], self._key(context)
        seen = store.get(key)
        if not isinstance(seen, int) or seen < taken["to"]:
            store.set(key, taken["to"])
        return taken

    def _key(self, context: "Context") -> str:
        ti = context["ti"]
        return f"seen/{self.consumer or f'{ti.dag_id}.{ti.task_id}'}"
