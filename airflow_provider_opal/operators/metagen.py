"""MetaGenOperator: ingested rows become visible, and the table's asset events are emitted."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.asset_events import AssetEvents, outlets_of
from airflow_provider_opal.assets import DEFAULT_CONN_ID, distinct
from airflow_provider_opal.operators.declared import DeclaredOperator
from opal_lake.errors import NotFoundError
from opal_lake.operations.metagen import MetaGen

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.result import JobResult


class MetaGenOperator(DeclaredOperator):
    """A task that makes pending rows visible, and finds the valid row of each key.

    It takes the rows of one partition key: `partition_key`, by default the key of the DAG run. In a
    run without a key it takes the rows that were ingested without one. `tokens` takes the rows of
    some ingests (templates, such as `["{{ ti.xcom_pull('ingest')['token'] }}"]`). `all=True` takes
    every pending row. So a check between ingest and MetaGen is safe: rows that fail the check stay
    pending, even if other runs publish meanwhile. The task log names the keys that stay pending,
    and for how long. The pipelines of `opal_dag` with business snapshots use `all=True`: a later
    run publishes the rows that were held back. Put no check between the tasks of such a pipeline.

    The table's asset is an outlet of this task, not of the ingest, whose rows are not visible yet.
    Its events carry the partition keys that were published. A second outlet, the asset of the
    table's versions, gets an event that carries the version, for consumers by version. If `table`
    has a template or is mapped over, the task gets these outlets when it runs, and the events
    reach all consumers.

    The task never skips. Its own key is `partition_key` or the key of the DAG run. The task emits
    it by the state of the table, not by whether this try published rows:

    - If an ingest of the key is visible, the task emits the key. It does so at a retry, after
      another run has published the rows, and for a day without rows. Otherwise a cascade of keyed
      runs would stop.
    - Otherwise the rows are held back or were discarded, or nothing was ingested under the key. The
      task does not emit the key, logs a warning, and succeeds. The MetaGen that later publishes
      held-back rows emits their keys.
    """

    declared = MetaGen
    nothing_to_do = "nothing to publish"

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(table=table, **kwargs)
        self.asset_events = AssetEvents.known(table, self.opal_conn_id)
        self.asset = None
        self.versions = None
        if self.asset_events is not None:
            self.asset = self.asset_events.asset
            self.versions = self.asset_events.versions
        self.outlets = distinct([*outlets_of(self.asset_events), *self.outlets])
        self._version_before: int | None = None

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Return the outlets of a mapped operator."""
        events = AssetEvents.known(given.get("table"), given.get("opal_conn_id", DEFAULT_CONN_ID))
        return {"outlets": outlets_of(events)}

    def needs_key(self, context: "Context") -> bool:
        """Return whether a run without a key is refused: only with `keyed=True`."""
        return self.keyed

    def changes_view(self) -> bool:
        return True

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Return the arguments; by default they publish the rows of the run's own key."""
        arguments = MetaGen.filled_in(self.arguments)
        if arguments.get("all") or arguments.get("tokens") is not None:
            return arguments
        key = arguments.get("partition_key", context.get("partition_key"))
        return {} if key is None else {"partition_key": key}

    def execute(  # type: ignore[override]  # it has a result
        self, context: "Context"
    ) -> dict[str, Any]:
        """Publish, and return the JobResult as a plain dict."""
        if not self._is_of_one_key:
            self._version_before = self._head()
        return super().execute(context)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Emit the events, which carry the version."""
        xcom = super().finish(context, result)
        events = AssetEvents.of(self.table, self.opal_conn_id)
        # A table that a template names has its outlets only now
        self.outlets = distinct([*events.outlets, *self.outlets])
        given = MetaGen.filled_in(self.arguments)
        own_key = given.get("partition_key", context.get("partition_key"))
        keys = self._visible_keys(own_key, result)
        if own_key is None or keys:
            events.emit(context, xcom, keys)
            return xcom
        self.log.warning(
            "no row of partition key %r is visible at version %s of %s, so no consumer is notified "
            "of the key. Its rows are held back or were discarded, or nothing was ingested under "
            "the key. `opal describe` shows pending keys",
            own_key,
            result.version,
            self.table,
        )
        # Airflow stamps the key of the run on every outlet of a task
        self.outlets = [outlet for outlet in self.outlets if outlet != events.asset]
        events.emit_version(context, xcom)
        return xcom

    @property
    def _is_of_one_key(self) -> bool:
        arguments = MetaGen.filled_in(self.arguments)
        return not arguments.get("all") and arguments.get("tokens") is None

    def _head(self) -> int | None:
        """Return the newest version, or None if the table does not exist.

        The job then reports the missing table.
        """
        try:
            return self.opal.head(self.table)
        except NotFoundError:
            return None

    def _visible_keys(self, own_key: str | None, result: "JobResult") -> list[str]:
        """Return the published keys, and the run's own key if an ingest of it is visible."""
        keys = set[str]()
        if not self._is_of_one_key:
            keys.update(self._published_keys(result))
        if own_key is not None:
            _, visible_ingests = self.opal.ingests_as_of(self.table, own_key, result.version)
            if visible_ingests:
                keys.add(own_key)
        return sorted(keys)

    def _published_keys(self, result: "JobResult") -> list[str]:
        """Return the keys whose rows the commits of this MetaGen made visible."""
        if result.version is None:
            return []
        # A MetaGen of several business snapshots makes a commit for each. An earlier try may have
        # committed before this one read the head: then only the commit of the result is known
        before = self._version_before
        if before is None or before >= result.version:
            before = result.version - 1
        return self.opal.keys_published(self.table, before, result.version)
