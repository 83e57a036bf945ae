"""ConsumeOperator: a function of the user gets the new rows of a table, in a Spark job.

`watermark` stores which versions and keys were consumed.
"""

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
    "Give each consumer a name, under which it stores the version that it has seen: "
    ".expand_kwargs([{'function': 'shop_jobs:revenue', 'consumer': 'report.revenue'}, ...]). "
    "If only table= is mapped over, one name is enough: .partial(consumer='report.revenue', ...)"
)


def check_rows(rows: str, by: str) -> None:
    """Raise ValueError for unknown `rows`, and for changes by partition.

    Changes are known only from version to version.
    """
    if rows not in CONSUMER_ROWS:
        raise ValueError(f"rows={rows!r} is unknown; use one of {', '.join(CONSUMER_ROWS)}")
    if rows == "changes" and by != "version":
        raise ValueError("rows='changes' needs by='version': add it")


class ConsumeOperator(DeclaredOperator):
    """A task that calls a function with the new rows of a table.

    `function` ("package.module:function") gets a `Change`: the table, and its new rows.

    - By partition: the rows that were ingested under the run's partition key. They are read as of
      the version that the key's MetaGen made, which is in the run's event.
    - By version: all rows that became visible since the consumer's last run, version after version
      without a gap. `start`, as in SnapshotTriggerSensor, says where a new consumer begins. Allow
      one run at a time (`max_active_runs=1`).

    The first try of a DAG run fixes its rows: a retry or a cleared run gets the same rows. If the
    version of a key has expired, its rows are read as of the oldest version. The rows are
    acknowledged after success. By version, the next run repeats the range of a failed run, and
    then calls the function again with the newer versions. So two calls get the same range of
    versions, or ranges that do not overlap.

    The progress of a consumer is stored with the table's asset in Airflow, or, with
    `lakechime_conn_id`, in LakeChime, which several Airflow databases can share.

    By version and with `rows="changes"`, `change.rows` are the rows that were inserted, deleted or
    updated, with their values before and after.

    The function is called at least once: if a worker dies right after the call, a retry calls it
    again. In client mode its module is found next to the DAG file and in the DAG bundle. On a
    cluster it has to be in `py_files=` or in the archive of `opal pack`.
    """

    declared = Consume
    left_out = ("partition_key", "after", "version")  # only the run knows them
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
                f"by={by!r} is unknown; use 'partition' (the rows of a partition key) "
                "or 'version' (the rows of all versions since the last run)"
            )
        check_rows(kwargs.get("rows", "visible"), by)
        super().__init__(table=table, lakechime_conn_id=lakechime_conn_id, **kwargs)
        self.by = by
        self.consumer = consumer
        self.start = checked_start(start)
        assets = self.assets_of({"table": table, "opal_conn_id": self.opal_conn_id})
        self.inlets = distinct([*self.inlets, *assets["inlets"]])

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, checked as far as they are known before the run.

        The run adds the argument that names the new rows; the check uses an example of it.
        """
        example: dict[str, Any] = {"partition_key": ""}
        if given["rows"] == "changes":
            example = {"after": 0}
        checked = super().checked({**given, **example})
        return {name: value for name, value in checked.items() if name not in example}

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Return the inlet: consumers acknowledge with the table's asset."""
        return {"inlets": known_assets(given)}

    @property
    def asset(self) -> "Asset":
        """The asset of the table. Raises ValueError while the table is a template."""
        return opal_asset(self.table, opal_conn_id=self.opal_conn_id)

    def needs_key(self, context: "Context") -> bool:
        """Return whether the run needs a partition key: by version it never does."""
        return self.by == "partition" and super().needs_key(context)

    def execute(  # type: ignore[override]  # as the parent's
        self, context: "Context"
    ) -> dict[str, Any]:
        """Store the range of this DAG run, run the function, and acknowledge the range."""
        self.check_key(context)
        key = context.get("partition_key")
        if self.by == "partition" and key is None:
            raise AirflowFailException(
                f"task {self.task_id!r} consumes by partition, and this run has no partition key. "
                f"{KEY_HINT}"
            )
        is_mapped = context["ti"].map_index not in (None, -1)
        if self.by == "version" and self.consumer is None and is_mapped:
            raise AirflowFailException(
                f"task {self.task_id!r} consumes by version and is mapped. {NAME_HINT}"
            )
        watermark = Watermark.of(
            context, self.table, self.opal_conn_id, self.consumer, self.lakechime_conn_id
        )
        if self.by == "version":
            return self._by_version(context, watermark)
        return self._by_partition(context, watermark, str(key))

    def job(self, context: "Context") -> "JobSpec[Any]":
        """Return the job.

        By version its token contains the end of the range, because a run may have two ranges.
        """
        spec = super().job(context)
        if spec.operation.after is None:
            return spec
        return replace(spec, token=f"{spec.token}/{spec.operation.version}")

    def _by_partition(self, context: "Context", watermark: Watermark, key: str) -> dict[str, Any]:
        given = watermark.given()
        if given:
            requested, is_redelivery = given["version"], False
        else:
            requested, is_redelivery = event_version_of(context, self.asset.uri, key)
        if requested is None:
            requested = self._upstream_version(context)
        version, ingests = self.opal.ingests_as_of(self.table, key, requested)
        if given is None:
            if is_redelivery and watermark.has_consumed(key, ingests):
                consumed = watermark.consumed_version(key)
                note = f"partition key {key!r} was consumed meanwhile, as of version {consumed}"
                return self._nothing(context, note)
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
        """Return the newest version of upstream MetaGens and inline ingests, or None."""
        versions = []
        for task in self.upstream_list:
            is_emitter = (
                isinstance(task, IngestOperator | MetaGenOperator)
                and task.asset_events is not None
                and task.table == self.table
            )
            if not is_emitter:
                continue
            result = context["ti"].xcom_pull(task_ids=task.task_id)
            if isinstance(result, dict) and result["version"] is not None:
                versions.append(result["version"])
        return max(versions, default=None)

    def _by_version(self, context: "Context", watermark: Watermark) -> dict[str, Any]:
        work = watermark.given()
        if not work:
            work = self._next_range(watermark)
        if work is None:
            seen = watermark.seen_version
            return self._nothing(context, f"nothing new after version {seen}", seen)
        # "begun" is the end of a range that an earlier run left unfinished: it comes first
        bounds = [work[name] for name in ("from", "begun", "to") if name in work]
        result: dict[str, Any] = {}
        for after, version in pairwise(bounds):
            self.log.info("consuming versions after %s, up to and with %s", after, version)
            result = self._run(context, after=after, version=version)
            watermark.advance(version, begun=bounds[-1])
        return result

    def _next_range(self, watermark: Watermark) -> dict[str, int] | None:
        """Return the range of versions since the last run, or None if no version is new.

        If an earlier run left its range unfinished, "begun" is the end of that range, which is
        consumed first and unchanged. So no two ranges of a consumer overlap, and a function can
        repeat its work on one of them.
        """
        seen = watermark.seen(partial(first_version, self.start, self.opal_conn_id, self.table))
        begun, are_changes = watermark.begun_version, self.arguments["rows"] == "changes"
        if begun is not None and not self.opal.is_readable(self.table, begun):
            if are_changes and begun <= self.opal.head(self.table):
                raise AirflowFailException(
                    f"the last run did not finish the changes up to version {begun}, and this "
                    "version has expired. The same changes cannot be read again, and other changes "
                    "could make the function repeat work. "
                    "Start over with another name of the consumer (consumer=)"
                )
            begun = None
        versions = self.opal.versions_after(self.table, seen, feed=are_changes)
        if versions is None:
            return None
        newest = versions[1]
        if begun is not None and begun < newest:
            return watermark.give({"from": seen, "begun": begun, "to": newest})
        watermark.begin(newest)
        return watermark.give({"from": seen, "to": newest})

    def _nothing(self, context: "Context", note: str, version: int | None = None) -> dict[str, Any]:
        """Finish the task without a job, with a note instead."""
        from opal_lake.result import JobResult

        uri = self.opal.lake.uri(self.table)
        result = JobResult(operation="consume", table=uri, version=version, notes=(note,))
        return self.finish(context, result)

    def _run(self, context: "Context", **new_rows: Any) -> dict[str, Any]:
        """Run the job with the arguments that name the new rows."""
        self.arguments = {**self.arguments, **new_rows}
        return super().execute(context)

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        hook = super()._watched_hook(context)
        hook.find_modules_in(module_folders(context))
        return hook


def module_folders(context: "Context") -> list[str]:
    """Return the folders of a DAG's own modules: that of its file, and its bundle."""
    folders = [str(Path(context["dag"].fileloc).parent)]
    bundle = getattr(context["ti"], "bundle_instance", None)
    if bundle is not None:
        folders.append(str(bundle.path))
    return list(dict.fromkeys(folders))


def event_version_of(
    context: "Context", table_uri: str, partition_key: str
) -> tuple[int | None, bool]:
    """Return a key's newest version in the events, and whether it is redelivered.

    It is redelivered if all events are redeliveries by a ReconcileOperator. Events of other tables
    that the DAG run waits for are ignored.
    """
    extras: list[dict[str, Any]] = []
    for asset, events in (context.get("triggering_asset_events") or {}).items():
        uri = getattr(asset, "uri", "")
        if uri == table_uri or uri.startswith(f"{table_uri}/told/"):
            extras += [event.extra or {} for event in events]
    versions: list[int] = []
    is_redelivery = bool(extras)
    for extra in extras:
        version = extra.get("version")
        if "versions" in extra:
            # A redelivery has the versions of all its keys
            version = extra["versions"].get(partition_key)
        else:
            is_redelivery = False
        if isinstance(version, int):
            versions.append(version)
    return max(versions, default=None), is_redelivery
