"""ConsumeOperator: hands what came to a table to a function of the user's, in a Spark job."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.hooks.submit import OpalSubmitHook
from airflow_provider_opal.operators.ingest import IngestOperator
from airflow_provider_opal.operators.metagen import MetaGenOperator
from airflow_provider_opal.operators.spark import KEY_HINT, OpalSparkOperator
from airflow_provider_opal.watermark import Start, Watermark, checked_start, first_version
from opal_lake.job import JobResult

if TYPE_CHECKING:
    from airflow.sdk import Context

BY = ("partition", "version")


class ConsumeOperator(OpalSparkOperator):
    """Calls `function` ("package.module:function") with a `Change`: the table, and the rows that are new.

    By partition: the rows that were ingested under the run's partition key and are visible as of the version that its event tells, the one
    that the key's MetaGen made. By version: all that became visible since the consumer's last run, from version to version without a gap
    (`start`, as a SnapshotTriggerSensor's, says where a new consumer begins); let one run at a time (`max_active_runs=1`). Either way what
    a run was given is fixed at its first try: retried or cleared, it gets the same rows. It is acknowledged after success.

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
        key = context.get("partition_key")
        if self.by == "partition" and key is None:
            raise AirflowFailException(f"task {self.task_id!r} consumes by partition, and this run has no partition key. {KEY_HINT}")
        watermark = Watermark.of(context, self.table, self.opal_conn_id, self.consumer)
        return self._by_version(context, watermark) if self.by == "version" else self._by_partition(context, watermark, str(key))

    def _by_partition(self, context: "Context", watermark: Watermark, key: str) -> dict[str, Any]:
        given = watermark.given()
        if given is None:
            told, is_told_again = told_version(context, self.asset.uri, key)
            if is_told_again and told is not None and watermark.taken(key) >= told:
                return self._nothing(context, f"partition key {key!r} was taken meanwhile, as of version {watermark.taken(key)}")
            version = told if told is not None else self._upstream_version(context)
            given = watermark.give({"version": self.opal.head(self.table) if version is None else version})
        told_result = self._run(context, partition_key=key, version=given["version"])
        watermark.take(key, given["version"])
        return told_result

    def _upstream_version(self, context: "Context") -> int | None:
        """The last version of the MetaGens and inline ingests in front of this task, if there are any."""
        tellers = [
            task
            for task in self.upstream_list
            if isinstance(task, IngestOperator | MetaGenOperator) and task.telling is not None and task.table == self.table
        ]
        results = [context["ti"].xcom_pull(task_ids=task.task_id) for task in tellers]
        return max((result["version"] for result in results if isinstance(result, dict) and result["version"] is not None), default=None)

    def _by_version(self, context: "Context", watermark: Watermark) -> dict[str, Any]:
        given = watermark.given()
        if given is None:
            seen = watermark.seen(partial(first_version, self.start, self.opal_conn_id, self.table))
            found = self.opal.versions_after(self.table, seen)
            if found is None:
                return self._nothing(context, f"nothing new after version {seen}", seen)
            given = watermark.give({"from": found[0], "to": found[1]})
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


def told_version(context: "Context", table_uri: str, partition_key: str) -> tuple[int | None, bool]:
    """The version that the table's events tell of this key, and whether all of them only tell again (ReconcileOperator's).

    A run may wait for other tables too, whose versions are none of this one's.
    """
    events = (context.get("triggering_asset_events") or {}).items()
    ours = [found for asset, found in events if (uri := getattr(asset, "uri", "")) == table_uri or uri.startswith(f"{table_uri}/told/")]
    extras = [event.extra or {} for found in ours for event in found]
    again = [extra["versions"].get(partition_key) for extra in extras if "versions" in extra]
    versions = [version for version in [*again, *(extra.get("version") for extra in extras)] if isinstance(version, int)]
    return max(versions, default=None), bool(extras) and len(again) == len(extras)
