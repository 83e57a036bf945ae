"""OpalSparkOperator: a JobSpec in, the app under spark-submit, a JobResult out.

The result comes first and last: it is in the table's commit, found by the job's token. A job that was done is not done again, one that
failed after its commit has succeeded, and one without a result has not, whatever Spark says of it.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from airflow_provider_opal.assets import DEFAULT_CONN_ID
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.hooks.submit import OpalSubmitHook, end_left_over, properties_file
from airflow_provider_opal.links import SparkUILink
from opal_lake.exit_codes import BUG, DAMAGE, INPUT, MEANINGS
from opal_lake.job import JobResult, JobSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

FINAL = (INPUT, DAMAGE, BUG)
PROCESS_KEY = "opal_driver"
RETRIED = "a retry goes on with the same token, so that nothing is applied twice"


class OpalSparkOperator(SparkSubmitOperator):
    """One operation on one table. Subclasses name the operation and give its arguments.

    `spark_submit_kwargs` are those of SparkSubmitOperator: conf, packages, executor_memory, archives and so on.
    """

    operation: ClassVar[str]
    template_fields: Sequence[str] = ("table", "arguments", *SparkSubmitOperator.template_fields)
    operator_extra_links = (SparkUILink(),)
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        arguments: Mapping[str, Any] | None = None,
        opal_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str | None = None,
        name: str = "{{ dag.dag_id }}.{{ task.task_id }}",
        **spark_submit_kwargs: Any,
    ) -> None:
        if "application" in spark_submit_kwargs or "application_args" in spark_submit_kwargs or "conn_id" in spark_submit_kwargs:
            raise ValueError(f"{type(self).__name__} chooses application and arguments itself; the connection is spark_conn_id=")
        conf = {"spark.log.level": "WARN", **(spark_submit_kwargs.pop("conf", None) or {})}  # else the job's progress drowns in Spark's own
        super().__init__(name=name, conf=conf, **spark_submit_kwargs)
        self.table = table
        self.arguments = dict(arguments or {})
        self.opal_conn_id = opal_conn_id
        self.spark_conn_id = spark_conn_id
        self._needs_key = "partition_key" in json.dumps([table, self.arguments], default=str)

    def render_template_fields(self, context: "Context", jinja_env: Any = None) -> None:
        """Not without a partition key where one is asked for: `None` would be rendered into paths."""
        if self._needs_key and context.get("partition_key") is None:
            raise AirflowFailException(
                f"task {self.task_id!r} works on one partition, and this run has no partition key. Trigger the DAG with one (in the UI: "
                "Trigger, field 'Partition key'), run a backfill, or clear a keyed run: airflow dags clear DAG_ID --partition-key KEY"
            )
        super().render_template_fields(context, jinja_env)

    def job(self, context: "Context") -> JobSpec:
        """What is to be done; rendered, and without secrets."""
        return JobSpec(
            operation=self.operation, table=self.opal.lake.uri(self.table), arguments=self.job_arguments(context), token=token_of(context)
        )

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        return dict(self.arguments)

    @property
    def opal(self) -> OpalHook:
        return OpalHook(self.opal_conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # Airflow's operator has no result
        """Returns the JobResult as a plain dict."""
        spec, opal = self.job(context), self.opal
        self._end_left_over(context)
        if (done := self._result(opal, spec)) is not None:
            self.log.info("done before, as version %s; not submitted again", done.version)
            return self.finish(context, done)
        self._conn_id = self._checked_spark_conn_id(opal)
        self.application = app_path(self.operation)
        self.application_args = ["--spec", spec.to_json()]
        self.external_id_key = f"spark_job_id:{spec.token}"  # a clear has another token, and must not find the job of the run before
        failure = self._submitted(opal.lake.spark_conf(), context)
        found = self._result(opal, spec)
        if found is None:
            raise self._verdict(failure)
        if failure is not None:
            self.log.warning("Spark reported a failure after the commit of version %s, which stands: %s", found.version, failure)
        return self.finish(context, found)

    def finish(self, context: "Context", result: JobResult) -> dict[str, Any]:
        """Say what was done, and hand it on."""
        for note in result.notes:
            self.log.warning("%s", note)
        self.log.info("%s of %s: version %s, %s", result.operation, result.table, result.version, dict(result.counts))
        return json.loads(result.to_json())  # type: ignore[no-any-return]  # lists and dicts alone, as another task gets them

    def _submitted(self, secret_conf: Mapping[str, str], context: "Context") -> Exception | None:
        """Run the job to its end; what went wrong, if something did."""
        own = self.properties_file
        with properties_file(secret_conf, own) as self.properties_file:
            try:
                hook = self._hook = self._watched_hook(context)
                if hook.is_client:
                    hook.submit(self.application)  # never resumable: the driver dies with this machine, and the token is its fence
                else:
                    super().execute(context)
            except (AirflowException, RuntimeError) as error:
                return error
            finally:
                self.properties_file = own
        return None

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        hook = self._get_hook()
        hook.__class__ = OpalSubmitHook  # Airflow's own method gives it its forty arguments
        assert isinstance(hook, OpalSubmitHook)
        hook.on_started = lambda process: _remember(context, process)
        hook.on_ui = lambda url: context["ti"].xcom_push(key=SparkUILink().xcom_key, value=url)
        return hook

    def poll_until_complete(self, external_id: Any, context: "Context") -> None:
        """As Airflow's; on a reconnect to YARN its hook does not know the application, and a kill would do nothing."""
        if isinstance(self._hook, OpalSubmitHook):
            self._hook.follow(external_id)
        super().poll_until_complete(external_id, context)

    def _checked_spark_conn_id(self, opal: OpalHook) -> str:
        """Airflow's hook takes a missing connection for YARN."""
        conn_id = self.spark_conn_id or opal.lake.spark_conn_id
        try:
            OpalHook.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"there is no Spark connection {conn_id!r}; add it (type spark, host local[2], spark://host:7077, yarn or k8s://...), "
                f"or name another with spark_conn_id= or in the connection {self.opal_conn_id!r}"
            ) from error
        return conn_id

    def _result(self, opal: OpalHook, spec: JobSpec) -> JobResult | None:
        return None if spec.token is None else opal.find_result(spec.table, spec.operation, spec.token)

    def _verdict(self, failure: Exception | None) -> Exception:
        """What a job without a result ends with; what cannot succeed by trying again fails at once."""
        status = self._hook.exit_status if isinstance(self._hook, OpalSubmitHook) else None
        said = _last_error(self._hook) or str(failure or "")
        if failure is None:
            return AirflowException(f"Spark said nothing against {self.operation} of {self.table}, but the table has no result; {RETRIED}")
        if status in FINAL:
            return AirflowFailException(f"{self.operation} of {self.table}: {MEANINGS[status]}\n{said}")
        return AirflowException(f"{self.operation} of {self.table} failed; {RETRIED}\n{said}")

    def _end_left_over(self, context: "Context") -> None:
        """The driver of a try whose worker was killed may still run."""
        store = context.get("task_state_store")
        process = store.get(PROCESS_KEY) if store is not None else None
        if isinstance(process, dict) and end_left_over(process):
            self.log.warning("ended the driver of an earlier try, process group %s", process["pid"])


def token_of(context: "Context") -> str:
    """The retries of one try share a token and apply once; a clear or a reprocess has another, and really runs again."""
    ti, task = context["ti"], context["task"]
    clears = ti.max_tries - (task.retries or 0)
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{clears}"


def app_path(operation: str) -> str:
    """The app's file, found without importing what it needs."""
    found = find_spec("opal_spark")
    if found is None or found.origin is None:
        raise AirflowFailException("the package opal_spark is not installed beside Airflow; install airflow-provider-opal again")
    return str(Path(found.origin).parent / "apps" / f"{operation}.py")


def _remember(context: "Context", process: Mapping[str, Any]) -> None:
    store = context.get("task_state_store")
    if store is not None:
        store.set(PROCESS_KEY, dict(process))


def _last_error(hook: Any) -> str:
    """What the app said last, without Spark's noise before it."""
    lines = list(getattr(hook, "_last_submit_log_lines", ()))
    starts = [place for place, line in enumerate(lines) if line.startswith("opal: ")]
    return "\n".join(lines[starts[-1] :]) if starts else ""
