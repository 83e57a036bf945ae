"""ConsumeOperator: hands what came to a table to a function of the user's, in a Spark job."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.hooks.submit import OpalSubmitHook
from airflow_provider_opal.operators.spark import KEY_HINT, OpalSparkOperator
from airflow_provider_opal.watermark import Start, Watermark, checked_start, default_consumer, first_version
from opal_lake.job import JobResult

if TYPE_CHECKING:
    from airflow.sdk import Context

BY = ("partition", "version")


class ConsumeOperator(OpalSparkOperator):
    """Calls `function` ("package.module:function") with a `Change`: the table, and the rows that are new.

    By partition: the rows that were ingested under the run's partition key; idempotent, in any order. By version: all that became visible
    since the consumer's last run, from version to version without a gap (`start`, as a SnapshotTriggerSensor's, says where a new consumer
    begins); the range is fixed at a run's first try, and acknowledged after success, so let one run at a time (`max_active_runs=1`).

    The function is called at least once: when a worker dies right after it, a retry calls it again. In client mode its module is found
    beside the DAG file and in the DAG bundle; to a cluster it goes by `py_files=` or the archive of `opal pack`.
    """

    operation = "consume"
    template_fields: Sequence[str] = ("consumer", *OpalSparkOperator.template_fields)

    def __init__(
        self,
        *,
        table: str,
        function: str,
        by: str = "partition",
        consumer: str | None = None,
        start: Start = "all",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if by not in BY:
            raise ValueError(f"by={by!r} is unknown; use 'partition' (the rows of a partition key) or 'version' (all since the last run)")
        module, _, name = function.partition(":")
        if not module or not name:
            raise ValueError(f"function={function!r} is no function; write it as 'package.module:function'")
        super().__init__(table=table, arguments={"function": function, "arguments": dict(arguments or {})}, **kwargs)
        self.by = by
        self.consumer = consumer
        self.start = checked_start(start)
        self.asset = opal_asset(table, opal_conn_id=self.opal_conn_id)
        self.inlets = [*(self.inlets or []), self.asset]

    def needs_key(self, context: "Context") -> bool:
        """By version a run by hand is as good as any."""
        return self.by == "partition" and super().needs_key(context)

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """Fix what is new, run the function, acknowledge."""
        watermark = Watermark(context=context, asset=self.asset, consumer=self.consumer or default_consumer(context))
        return self._by_partition(context, watermark) if self.by == "partition" else self._by_version(context, watermark)

    def _by_partition(self, context: "Context", watermark: Watermark) -> dict[str, Any]:
        key = context.get("partition_key")
        if key is None:
            raise AirflowFailException(f"task {self.task_id!r} consumes by partition, and this run has no partition key. {KEY_HINT}")
        if not is_meant(context, watermark.consumer, key):
            return self._nothing(context, f"partition key {key!r} was told again for other consumers only; nothing to do")
        head = self.opal.head(self.table)
        told = self._run(context, partition_key=key, version=head)
        watermark.did_partition(key, told["version"])
        return told

    def _by_version(self, context: "Context", watermark: Watermark) -> dict[str, Any]:
        given = watermark.kept()
        if given is None:
            seen = watermark.seen(partial(first_version, self.start, self.opal_conn_id, self.table))
            found = self.opal.versions_after(self.table, seen)
            if found is None:
                return self._nothing(context, f"nothing new after version {seen}", seen)
            given = watermark.keep({"from": found[0], "to": found[1]})
        self.log.info("consuming versions after %s, up to and with %s", given["from"], given["to"])
        told = self._run(context, after=given["from"], version=given["to"])
        watermark.advance(given["to"])
        return told

    def _nothing(self, context: "Context", note: str, version: int | None = None) -> dict[str, Any]:
        return self.finish(context, JobResult(operation="consume", table=self.opal.lake.uri(self.table), version=version, notes=(note,)))

    def _run(self, context: "Context", **what: Any) -> dict[str, Any]:
        self.arguments = {**self.arguments, **what}
        return super().execute(context)

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        hook = super()._watched_hook(context)
        hook.find_modules_in(module_folders(context))
        return hook


def module_folders(context: "Context") -> list[str]:
    """Where a DAG's own modules lie: beside its file, and in its bundle."""
    found = [str(Path(context["dag"].fileloc).parent)]
    bundle = getattr(context["ti"], "bundle_instance", None)
    return list(dict.fromkeys([*found, *([str(bundle.path)] if bundle is not None else [])]))


def is_meant(context: "Context", consumer: str, partition_key: str) -> bool:
    """Whether the events that made this run are for this consumer: those of a ReconcileOperator name who misses which keys."""
    events = [event for found in (context.get("triggering_asset_events") or {}).values() for event in found]
    missed = [(event.extra or {}).get("consumers") for event in events]
    return not missed or any(keys is None or partition_key in keys.get(consumer, ()) for keys in missed)
