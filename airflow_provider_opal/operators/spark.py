"""OpalSparkOperator: a JobSpec in, the app under spark-submit, a JobResult out.

The result comes first and last: it is in the table's commit, found by the job's token. A job that was done is not done again, one that
failed after its commit has succeeded, and one without a result has not, whatever Spark says of it.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from airflow_provider_opal.assets import DEFAULT_CONN_ID, DEFAULT_LAKECHIME_CONN_ID, distinct
from airflow_provider_opal.generation import (
    earlier_generations,
    end_generation,
    generation_of,
)
from airflow_provider_opal.hooks.opal import OpalHook
from airflow_provider_opal.hooks.submit import OpalSubmitHook, end_left_over
from airflow_provider_opal.links import SparkUILink
from airflow_provider_opal.secrets import mask, secret_arguments, without_secrets
from opal_lake.errors import ReadOnlyError
from opal_lake.exit_codes import BUG, FINAL, INPUT, MEANINGS, exit_code

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_opal.operators.worker_place import WorkerPlace
    from opal_lake.operations.job_spec import JobSpec
    from opal_lake.result import JobResult

PROCESS_KEY = "opal_driver"
KEY_HINT = (
    "Trigger the DAG with one (in the UI: Trigger, field 'Partition key'), run a backfill, or clear a keyed run: "
    "airflow dags clear DAG_ID --partition-key KEY"
)
SCHEDULE_HINT = (
    "The DAG's schedule creates no partition keys: use schedule=keyed_schedule('@daily')"
)
_KEY_ASKED_FOR = re.compile(r"\{[{%][^}]*\bpartition_key\b")
RETRIED = "a retry goes on with the same token, so that nothing is applied twice"


class OpalSparkOperator(SparkSubmitOperator):
    """One operation on one table. Subclasses name the operation and give its arguments.

    `spark_submit_kwargs` are those of SparkSubmitOperator: conf, packages, executor_memory, archives and so on. With `keyed` a run without
    a partition key is refused, as in every DAG whose schedule gives keys. What a job made visible is registered in LakeChime
    (`lakechime_conn_id`; None: it is not).

    The link `Spark UI` leads to the page of the running job; after its end to the history server, if `spark.eventLog.enabled` is true and
    `spark.yarn.historyServer.address` names one (on any master), or else to the task's log.

    On a cluster the Python workers need opal_lake and pyarrow: installed on the nodes, in the image, or in an archive by `opal pack`. A
    driver in a pod needs the app, too: `app` is its path in the image, or uploaded through spark.kubernetes.file.upload.path.

    The connection's keys, and what looks like a secret in `conf` and `env_vars`, reach spark-submit by a file that only the worker's user
    can read. How safe they are from there on is the cluster's affair:

    - client mode, everywhere: they stay in the driver's memory, and go to executors over Spark's RPC; spark.authenticate with
      spark.network.crypto.enabled encrypts that.
    - YARN, cluster mode: Spark puts them into the application's staging folder, which only its user can read.
    - Kubernetes, cluster mode: Spark puts them into a ConfigMap and the pod's environment, in clear. Where others may read those, leave
      the keys out of the connection: spark.kubernetes.driver.secretKeyRef.AWS_ACCESS_KEY_ID='name:key', or the pod's service account.
    """

    operation: ClassVar[str]
    note_level: ClassVar[int] = logging.WARNING
    nothing_to_do: ClassVar[str] = "nothing to do"
    template_fields: Sequence[str] = (
        "table", "arguments", "opal_conn_id", "spark_conn_id", "lakechime_conn_id", *SparkSubmitOperator.template_fields,
    )  # fmt: skip
    operator_extra_links = (SparkUILink(),)
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        table: str,
        arguments: Mapping[str, Any] | None = None,
        opal_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str | None = None,
        lakechime_conn_id: str | None = DEFAULT_LAKECHIME_CONN_ID,
        name: str = "{{ dag.dag_id }}.{{ task.task_id }}",
        app: str | None = None,
        keyed: bool = False,
        **spark_submit_kwargs: Any,
    ) -> None:
        if chosen := sorted(
            {"application", "application_args", "conn_id"} & {*spark_submit_kwargs}
        ):
            raise ValueError(
                f"{type(self).__name__} sets {', '.join(chosen)} itself; leave it out (a Spark connection is spark_conn_id=)"
            )
        if secret := secret_arguments(arguments):
            raise ValueError(
                f"{', '.join(secret)} would be shown with the task: put the value into a connection, conf or env_vars, and give only its "
                "name here"
            )
        quiet = {"spark.log.level": "ERROR"}  # else the job's progress drowns in what Spark says
        conf, self._hidden_conf = without_secrets(
            {**quiet, **(spark_submit_kwargs.pop("conf", None) or {})}
        )
        spark_submit_kwargs["env_vars"], self._hidden_environment = without_secrets(
            spark_submit_kwargs.get("env_vars") or {}
        )
        self._may_lose_track = spark_submit_kwargs.get("durable") is not True
        super().__init__(name=name, conf=conf, **spark_submit_kwargs)
        self.table = table
        self.arguments = dict(arguments or {})
        self.opal_conn_id = opal_conn_id
        self.spark_conn_id = spark_conn_id
        self.lakechime_conn_id = lakechime_conn_id
        self.app = app
        self.keyed = keyed
        self.history_url: str | None = None  # of the job, once it has reported it
        self._asks_for_key = bool(
            _KEY_ASKED_FOR.search(json.dumps([table, self.arguments], default=str))
        )

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """As Airflow's, which knows nothing of the assets that an operator gives itself: those that are known by now are added.

        Of a table that is mapped over, or named by a template, each task gets its own when it runs.
        """
        for name, assets in cls.assets_of(given).items():
            given[name] = distinct([*(given.get(name) or ()), *assets])
        return super().partial(**given)

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """The inlets or outlets that such arguments lead to, as far as they are known without a run."""
        return {}

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: "Context", jinja_env: Any, seen_oids: Any
    ) -> None:
        """Nothing, where `execute` is about to refuse the run: `None` would get into paths, and a template might fail of it.

        It refuses there and not here, because the UI folds away what is logged before.
        """
        if not self._lacks_key(context):
            super()._do_render_template_fields(
                parent, template_fields, context, jinja_env, seen_oids
            )

    def check_key(self, context: "Context") -> None:
        """Not without a partition key where one is asked for, or where the DAG's runs have one, since no consumer by partition would hear
        of the rows.
        """
        if self._lacks_key(context):
            hint = (
                KEY_HINT
                if takes_keys(getattr(context.get("dag"), "timetable", None))
                else SCHEDULE_HINT
            )
            raise AirflowFailException(
                f"task {self.task_id!r} works on one partition, and this run has no partition key. {hint}"
            )

    def _lacks_key(self, context: "Context") -> bool:
        return context.get("partition_key") is None and (
            self._asks_for_key or self.needs_key(context)
        )

    def needs_key(self, context: "Context") -> bool:
        """Return whether it needs a partition key, though no argument asks for one."""
        return self.keyed or is_keyed(getattr(context.get("dag"), "timetable", None))

    def job(self, context: "Context") -> "JobSpec[Any]":
        """The job to run: rendered, and without secrets."""
        from opal_lake.operations.job_spec import JobSpec  # a DAG file has no job yet

        try:
            table = self.opal.lake.uri(self.table)
            token = token_of(context)  # first: it begins a generation, by which others are earlier
            return JobSpec.of(self.operation, table, self.job_arguments(context), token)
        except (AirflowNotFoundException, ValueError) as error:
            raise AirflowFailException(str(error)) from error  # to try again would not help

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """The arguments after templates are rendered. ValueError if one is not valid."""
        return dict(self.arguments)

    @property
    def opal(self) -> OpalHook:
        return OpalHook(self.opal_conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # Airflow's operator has no result
        """Returns the JobResult as a plain dict."""
        self.check_key(context)
        spec, opal = self.job(context), self.opal
        connection_conf = opal.lake.spark_conf()
        mask(connection_conf.items())  # first of all: at DEBUG the store's client logs its requests
        self._end_left_over(context)
        # A clear has another token, and must find neither the job of the run before nor what became of it
        self.external_id_key, self._K8S_DRIVER_STATUS_KEY = (
            f"spark_job_id:{spec.token}",
            f"k8s_driver_status:{spec.token}",
        )
        done = self._result(opal, spec) or self._look(opal, spec, context)
        if done is not None:
            if done.repeated:
                self.log.info("done before, as version %s; not submitted again", done.version)
            else:
                self.log.info(
                    "%s at version %s; no Spark job started", self.nothing_to_do, done.version
                )
            return self.finish(context, done)
        self._conn_id = self._checked_spark_conn_id(opal)
        self.application = self.app or app_path()
        self.application_args = ["--spec", spec.to_json()]
        failure = self._submitted(connection_conf, context)
        result = self._result(opal, spec)
        if result is None:
            raise self._verdict(failure)
        result = replace(result, repeated=False)  # there was no result before this try
        if failure is not None:
            message = (
                self._hook.redacted(str(failure))
                if isinstance(self._hook, OpalSubmitHook)
                else failure
            )
            self.log.warning(
                "version %s was committed, but Spark reported a failure afterwards: %s",
                result.version,
                message,
            )
        return self.finish(context, result)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Log the result, and return it for XCom."""
        for note in result.notes:
            self.log.log(self.note_level, "%s", note)
        self.log.info(
            "%s of %s: version %s, %s",
            result.operation,
            result.table,
            result.version,
            dict(result.counts),
        )
        if (
            self.changes_view()
            and self.lakechime_conn_id is not None
            and result.version is not None
        ):
            from airflow_provider_opal.events.commits import register_commits

            register_commits(self.opal, self.table, self.lakechime_conn_id, self.log)
        end_generation(context)
        return json.loads(result.to_json())  # type: ignore[no-any-return]  # lists and dicts alone, as another task gets them

    def changes_view(self) -> bool:
        """Return whether the job may change what a read of the table shows."""
        return False

    def _submitted(
        self, connection_conf: Mapping[str, str], context: "Context"
    ) -> Exception | None:
        """Run the job to its end; what went wrong, if something did."""
        hook = self._hook = self._watched_hook(context)
        hook.check_master()
        for doubt in hook.doubts(self.application):
            self.log.warning("%s", doubt)
        conf = {**connection_conf, **self.render_template(self._hidden_conf, context)}
        with hook.hiding(conf, self.render_template(self._hidden_environment, context)):
            try:
                if hook.is_client:
                    hook.submit(
                        self.application
                    )  # never resumable: the driver dies with this machine, and the token is its fence
                else:
                    self._submit_to_cluster(hook, context)
            except Exception as error:  # noqa: BLE001  # whatever it was, the table says how the job ended
                return error
        return None

    def _submit_to_cluster(self, hook: OpalSubmitHook, context: "Context") -> None:
        if hook.is_yarn_cluster and not hook.track_on_yarn() and self._may_lose_track:
            self.durable = False  # else Airflow's operator refuses; a lost driver may end beside its successor, and one of them commits
        super().execute(context)

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        try:
            hook = self._get_hook()
        except (
            NameError,
            RuntimeError,
        ) as error:  # NameError: Airflow's hook looks for what was not imported
            raise AirflowFailException(
                "a Kubernetes master needs Airflow's provider for it: pip install apache-airflow-providers-cncf-kubernetes"
            ) from error
        hook.__class__ = OpalSubmitHook  # Airflow's own method gives it its forty arguments
        assert isinstance(hook, OpalSubmitHook)
        hook.on_started = lambda process: _remember(context, process)
        hook.on_ui = lambda url: context["ti"].xcom_push(key=SparkUILink().xcom_key, value=url)
        hook.on_history = lambda url: setattr(self, "history_url", url)
        return hook

    def is_job_succeeded(self, status: str) -> bool:
        """Never complete: Airflow asks about a job of an earlier try without a result, which has to run again."""
        return False

    def on_kill(self) -> None:
        """As Airflow's hook ends it; its operator asks YARN's resource manager alone, which need not be known."""
        if self._hook is not None:
            self._hook.on_kill()

    def poll_until_complete(self, external_id: Any, context: "Context") -> None:
        """As Airflow's; on a reconnect to YARN its hook does not know the application, and a kill would do nothing."""
        if isinstance(self._hook, OpalSubmitHook):
            self._hook.follow(external_id)
        super().poll_until_complete(external_id, context)

    def _checked_spark_conn_id(self, opal: OpalHook) -> str:
        """Airflow's hook would treat a missing connection as YARN."""
        conn_id = self.spark_conn_id or opal.lake.spark_conn_id
        try:
            connection = OpalHook.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"there is no Spark connection {conn_id!r}; add it (type spark, host local[2], spark://host:7077, yarn or k8s://...), "
                f"or name another with spark_conn_id= or in the connection {self.opal_conn_id!r}"
            ) from error
        if connection.conn_type not in ("spark", "", None):
            raise AirflowFailException(
                f"the connection {conn_id!r} is of type {connection.conn_type!r}, and Spark jobs need one of type 'spark'; "
                f"name another with spark_conn_id=, or in the connection {self.opal_conn_id!r}"
            )
        if connection.host is None:  # which Airflow's hook takes for YARN
            raise AirflowFailException(
                f"the Spark connection {conn_id!r} has no host; write local[2], spark://host:7077, yarn or k8s://https://host:6443"
            )
        return conn_id

    def _result(self, opal: OpalHook, spec: "JobSpec[Any]") -> "JobResult | None":
        return (
            None if spec.token is None else opal.find_result(spec.table, self.operation, spec.token)
        )

    def _look(self, opal: OpalHook, spec: "JobSpec[Any]", context: "Context") -> "JobResult | None":
        """Look at the table before Spark starts; return the result if there is nothing to do.

        What the job would refuse fails the task at once. Nothing else does: what this worker cannot
        read or write, the job may.
        """
        store = context.get("task_state_store")
        if store is not None and store.get(self.external_id_key) is not None:
            return None  # the job of an earlier try may still run on the cluster: go on with it
        try:
            seen = opal.table(self.table) if spec.operation.needs_table else self._place(opal)
            idle: JobResult | None = spec.job.look(seen)
        except AirflowException:
            raise
        except Exception as error:  # the look alone fails no task
            status = exit_code(error)
            if status == INPUT and not isinstance(error, ReadOnlyError):
                raise self._refused(INPUT, f"opal: {error}", self.advice()) from error
            is_bug = status == BUG
            self.log.log(
                logging.WARNING if is_bug else logging.INFO,
                "the table could not be looked at before Spark starts: %s",
                error,
                exc_info=is_bug,
            )
            return None
        return idle

    def _place(self, opal: OpalHook) -> "WorkerPlace":
        from airflow_provider_opal.operators.worker_place import SparkStart, WorkerPlace

        connection = OpalHook.get_connection(self._checked_spark_conn_id(opal))
        start = SparkStart(
            master=connection.host or "",
            conf={**(self.conf or {}), **self._hidden_conf},
            environment={**(self.env_vars or {}), **self._hidden_environment},
            binary=self._spark_binary or connection.extra_dejson.get("spark-binary"),
            properties_file=self.properties_file,
            driver_class_path=self.driver_class_path,
        )
        return WorkerPlace(opal=opal, table=self.table, shares_files=start.shares_files)

    def _refused(self, status: int, message: str, cause: str | None) -> AirflowFailException:
        """Return the exception for a job that ends the same at each try."""
        parts = [f"{self.operation} of {self.table}: {MEANINGS[status]}", message]
        return AirflowFailException("\n".join([*parts, *([cause] if cause else [])]))

    def _verdict(self, failure: Exception | None) -> Exception:
        """The exception for a job without a result. It forbids a retry where a retry cannot succeed."""
        hook = self._hook
        assert isinstance(hook, OpalSubmitHook)
        where = f"\nthe driver's log: {hook.log_command}" if hook.log_command else ""
        if failure is None:
            return AirflowException(
                f"Spark reported no failure of {self.operation} of {self.table}, but the table has no result; {RETRIED}{where}"
            )
        status = hook.app_status(failure)
        cause = hook.cause(failure) or (self.advice() if status == INPUT else None)
        error = hook.redacted(_last_error(hook) or str(failure)) + where
        message = f"{error}\n{cause}" if cause else error
        if isinstance(failure, FileNotFoundError | PermissionError) or hook.lack is not None:
            return AirflowFailException(
                f"{self.operation} of {self.table} was not submitted: {message}"
            )
        if status in FINAL:
            return self._refused(status, error, cause)
        if isinstance(
            failure, ValueError
        ):  # Airflow's operator and hook raise it for settings that do not go together
            return AirflowFailException(
                f"{self.operation} of {self.table} was not submitted: {message}"
            )
        return AirflowException(f"{self.operation} of {self.table} failed; {RETRIED}\n{message}")

    def advice(self) -> str | None:
        """What to do about input that the job refused, where the operator knows it better."""
        return None

    def _end_left_over(self, context: "Context") -> None:
        """The driver of a try whose worker was killed may still run."""
        store = context.get("task_state_store")
        process = store.get(PROCESS_KEY) if store is not None else None
        if isinstance(process, dict) and end_left_over(process):
            self.log.warning("ended the driver of an earlier try, process group %s", process["pid"])


def is_keyed(timetable: Any) -> bool:
    """Return whether the scheduler gives every run of such a DAG a partition key."""
    return isinstance(timetable, CronPartitionTimetable | PartitionedAssetTimetable)


def takes_keys(timetable: Any) -> bool:
    """Return whether a run of such a DAG may have a partition key."""
    return (
        timetable is None
        or is_keyed(timetable)
        or bool(getattr(timetable, "partitioned_at_runtime", False))
    )


def token_of(context: "Context") -> str:
    """Retries share a token, so the job applies once. A clear or a reprocess gets another token, and runs the job again."""
    return _token(context, generation_of(context))


def earlier_tokens_of(context: "Context") -> list[str]:
    """Return the tokens that this task had before it was cleared, oldest first."""
    return [_token(context, generation) for generation in earlier_generations(context)]


def _token(context: "Context", generation: str) -> str:
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{generation}"


def app_path() -> str:
    """Return the path of the app's file, without importing its dependencies."""
    package = find_spec("opal_spark")
    if package is None or package.origin is None:
        raise AirflowFailException(
            "the package opal_spark is not installed with Airflow: pip install airflow-provider-opal"
        )
    return str(Path(package.origin).parent / "submit" / "app.py")


def _remember(context: "Context", process: Mapping[str, Any]) -> None:
    store = context.get("task_state_store")
    if store is not None:
        store.set(PROCESS_KEY, dict(process))


def _last_error(hook: Any) -> str:
    """The last error of the app, without the Spark log before it."""
    lines = list(getattr(hook, "_last_submit_log_lines", ()))
    starts = [number for number, line in enumerate(lines) if line.startswith("opal: ")]
    return "\n".join(lines[starts[-1] :]) if starts else ""
