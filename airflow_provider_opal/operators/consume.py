"""ConsumeOperator: passes the new rows of a table to a function of the user, in a Spark job. `watermark` keeps what it has consumed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_opal.assets import distinct, known_assets, opal_asset
from airflow_provider_opal.events.runs import Start, checked_start
from airflow_provider_opal.hooks.submit import OpalSubmitHook
from airflow_provider_opal.operators.declared import DeclaredOperator
from airflow_provider_opal.operators.ingest import IngestOperator
from airflow_provider_opal.operators.metagen import MetaGenOperator
from airflow_provider_opal.operators.spark import KEY_HINT, OpalSparkOperator
from airflow_provider_opal.watermark import Watermark, first_version
from opal_lake.arguments.values import CONSUMER_ROWS
from opal_lake.operations.consume import Consume

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

    from opal_lake.operations.job_spec import JobSpec

BY = ("partition", "version")
NAME_HINT = (
    "Give each consumer a name, under which it stores the version that it has seen: .expand_kwargs([{'function': 'shop_jobs:revenue', "
    "'consumer': 'report.revenue'}, ...]). If only table= is mapped over, one name is enough: .partial(consumer='report.revenue', ...)"
)


def check_rows(rows: str, by: str) -> None:
    """What changed is told from version to version."""
    if rows not in CONSUMER_ROWS:
        raise ValueError(f"rows={rows!r} is unknown; use one of {', '.join(CONSUMER_ROWS)}")
    if rows == "changes" and by != "version":
        raise ValueError("rows='changes' needs by='version': add it")


class ConsumeOperator(DeclaredOperator):
    """Calls `function` ("package.module:function") with a `Change`: the table, and the rows that are new.

    By partition: the rows that were ingested under the run's partition key and are visible as of the version in its event, the one
    that the key's MetaGen made. By version: all that became visible since the consumer's last run, from version to version without a gap
    (`start`, as a SnapshotTriggerSensor's, says where a new consumer begins); let one run at a time (`max_active_runs=1`). Either way what
    a run was given is fixed at its first try: retried or cleared, it gets the same rows; of a key whose version has expired those as of the
    oldest one. It is acknowledged after success. By version, what a failed run was given comes again with the next run, before what is
    newer and apart from it: the function is called twice then. So two calls get the same range of versions, or ranges that do not overlap.

    What a consumer has seen is kept with the table's asset in Airflow, or with `lakechime_conn_id` in LakeChime, which holds across Airflow
    databases.

    By version and with `rows="changes"`, `change.rows` are rows that were inserted, deleted or updated, with their values before and after.

    The function is called at least once: when a worker dies right after it, a retry calls it again. In client mode its module is found
    beside the DAG file and in the DAG bundle; to a cluster it goes by `py_files=` or the archive of `opal pack`.
    """

    declared = Consume
    left_out = ("partition_key", "after", "version")  # the run says which rows are new
    template_fields: Sequence[str] = ("consumer", *OpalSparkOperator.template_fields)

    def __init__(
        self,
        *,
        table: str,
        by: str = "partition",
        consumer: str | None = None,
        start: Start = "all",
        lakechime_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        if by not in BY:
            raise ValueError(
                f"by={by!r} is unknown; use 'partition' (the rows of a partition key) or 'version' (all since the last run)"
            )
        check_rows(kwargs.get("rows", "visible"), by)
        super().__init__(table=table, lakechime_conn_id=lakechime_conn_id, **kwargs)
        self.by = by
        self.consumer = consumer
        self.start = checked_start(start)
        self.inlets = distinct(
            [
                *self.inlets,
                *self.assets_of({"table": table, "opal_conn_id": self.opal_conn_id})["inlets"],
            ]
        )

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check what is known before the run, which says which rows are new."""
        new_rows = {"after": 0} if given["rows"] == "changes" else {"partition_key": ""}
        checked = super().checked({**given, **new_rows})
        return {name: value for name, value in checked.items() if name not in new_rows}

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """The inlets: consumers acknowledge with the table's asset."""
        return {"inlets": known_assets(given)}

    @property
    def asset(self) -> "Asset":
        """The asset of the table. ValueError while the table is a template."""
        return opal_asset(self.table, opal_conn_id=self.opal_conn_id)

    def needs_key(self, context: "Context") -> bool:
        """Only by partition: by version, a manual run needs no key."""
        return self.by == "partition" and super().needs_key(context)

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # as OpalSparkOperator's
        """Store the range of this run, run the function, acknowledge."""
        self.check_key(context)
        key = context.get("partition_key")
        if self.by == "partition" and key is None:
            raise AirflowFailException(
                f"task {self.task_id!r} consumes by partition, and this run has no partition key. {KEY_HINT}"
            )
        if (
            self.by == "version"
            and self.consumer is None
            and context["ti"].map_index not in (None, -1)
        ):
            raise AirflowFailException(
                f"task {self.task_id!r} consumes by version and is mapped. {NAME_HINT}"
            )
        watermark = Watermark.of(
            context, self.table, self.opal_conn_id, self.consumer, self.lakechime_conn_id
        )
        return (
            self._by_version(context, watermark)
            if self.by == "version"
            else self._by_partition(context, watermark, str(key))
        )

    def job(self, context: "Context") -> "JobSpec[Any]":
        """By version a run may have two ranges, and each is a job of its own."""
        spec = super().job(context)
        return (
            spec
            if spec.operation.after is None
            else replace(spec, token=f"{spec.token}/{spec.operation.version}")
        )

    def _by_partition(self, context: "Context", watermark: Watermark, key: str) -> dict[str, Any]:
        given = watermark.given()
        event_version, is_redelivery = (
            (given["version"], False) if given else event_version_of(context, self.asset.uri, key)
        )
        requested = event_version if event_version is not None else self._upstream_version(context)
        version, ingests = self.opal.ingests_as_of(self.table, key, requested)
        if given is None:
            if is_redelivery and watermark.has_consumed(key, ingests):
                return self._nothing(
                    context,
                    f"partition key {key!r} was consumed meanwhile, as of version {watermark.consumed_version(key)}",
                )
            watermark.give({"version": version})
        elif version != requested:
            self.log.warning(
                "version %s has expired; the rows of key %r are read as of version %s",
                requested,
                key,
                version,
            )
        result = self._run(context, partition_key=key, version=version)
        watermark.mark_consumed(key, version, ingests)
        return result

    def _upstream_version(self, context: "Context") -> int | None:
        """The last version of the upstream MetaGens and inline ingests, if there are any."""
        emitters = [
            task
            for task in self.upstream_list
            if isinstance(task, IngestOperator | MetaGenOperator)
            and task.asset_events is not None
            and task.table == self.table
        ]
        results = [context["ti"].xcom_pull(task_ids=task.task_id) for task in emitters]
        return max(
            (
                result["version"]
                for result in results
                if isinstance(result, dict) and result["version"] is not None
            ),
            default=None,
        )

    def _by_version(self, context: "Context", watermark: Watermark) -> dict[str, Any]:
        given = watermark.given() or self._next_range(watermark)
        if given is None:
            seen = watermark.seen_version
            return self._nothing(context, f"nothing new after version {seen}", seen)
        bounds, result = (
            [given["from"], *([given["begun"]] if "begun" in given else []), given["to"]],
            {},
        )
        for after, version in pairwise(bounds):
            self.log.info("consuming versions after %s, up to and with %s", after, version)
            result = self._run(context, after=after, version=version)
            watermark.advance(version, begun=bounds[-1])
        return result

    def _next_range(self, watermark: Watermark) -> dict[str, int] | None:
        """What came since the last run. A range that an earlier run began and left unfinished comes first, as it was.

        So no two ranges of a consumer overlap, and what a function did for one of them it can do again.
        """
        seen = watermark.seen(partial(first_version, self.start, self.opal_conn_id, self.table))
        begun, are_changes = watermark.begun_version, self.arguments["rows"] == "changes"
        again = begun if begun is not None and self.opal.is_readable(self.table, begun) else None
        if (
            are_changes
            and begun is not None
            and again is None
            and begun <= self.opal.head(self.table)
        ):
            raise AirflowFailException(
                f"the last run began the changes up to version {begun} and did not finish, and that version has expired since: the same "
                "changes cannot be read again, and other ones could make the function repeat work. Start over with another consumer="
            )
        versions = self.opal.versions_after(self.table, seen, feed=are_changes)
        if versions is None:
            return None
        newest = versions[1]
        if again is not None and again < newest:
            return watermark.give({"from": seen, "begun": again, "to": newest})
        watermark.begin(newest)
        return watermark.give({"from": seen, "to": newest})

    def _nothing(self, context: "Context", note: str, version: int | None = None) -> dict[str, Any]:
        from opal_lake.result import JobResult

        return self.finish(
            context,
            JobResult(
                operation="consume",
                table=self.opal.lake.uri(self.table),
                version=version,
                notes=(note,),
            ),
        )

    def _run(self, context: "Context", **what: Any) -> dict[str, Any]:
        self.arguments = {**self.arguments, **what}
        return super().execute(context)

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        hook = super()._watched_hook(context)
        hook.find_modules_in(module_folders(context))
        return hook


def module_folders(context: "Context") -> list[str]:
    """The folders of a DAG's own modules: that of its file, and its bundle."""
    folders = [str(Path(context["dag"].fileloc).parent)]
    bundle = getattr(context["ti"], "bundle_instance", None)
    return list(dict.fromkeys([*folders, *([str(bundle.path)] if bundle is not None else [])]))


def event_version_of(
    context: "Context", table_uri: str, partition_key: str
) -> tuple[int | None, bool]:
    """The version that the table's events carry for this key, and whether all of them are redeliveries by a ReconcileOperator.

    A run may wait for other tables too: their versions do not count here.
    """
    events = (context.get("triggering_asset_events") or {}).items()
    ours = [
        asset_events
        for asset, asset_events in events
        if (uri := getattr(asset, "uri", "")) == table_uri or uri.startswith(f"{table_uri}/told/")
    ]
    extras = [event.extra or {} for asset_events in ours for event in asset_events]
    again = [extra["versions"].get(partition_key) for extra in extras if "versions" in extra]
    versions = [
        version
        for version in [*again, *(extra.get("version") for extra in extras)]
        if isinstance(version, int)
    ]
    return max(versions, default=None), bool(extras) and len(again) == len(extras)
