"""OpalSparkOperator: runs the job of a JobSpec with spark-submit, and returns its JobResult.

The table's commit holds the result under the job's token. The operator looks for it before and
after the job. A job with a result is not run again. Only the result decides whether a job has
succeeded, whatever Spark reports.
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
    "Trigger the DAG with one (in the UI: Trigger, field 'Partition key'), run a backfill, "
    "or clear a keyed run: airflow dags clear DAG_ID --partition-key KEY"
)
SCHEDULE_HINT = (
    "The DAG's schedule creates no partition keys: use schedule=keyed_schedule('@daily')"
)
KEY_ASKED_FOR = re.compile(r"\{[{%][^}]*\bpartition_key\b")
RETRIED = "a retry has the same token, so that nothing is applied twice"


class OpalSparkOperator(SparkSubmitOperator):
    """A task that runs one operation on one table, as a Spark job.

    Subclasses name the operation and give its arguments.

    `spark_submit_kwargs` are arguments of SparkSubmitOperator: conf, packages, executor_memory,
    archives and so on. `keyed=True` refuses a DAG run without a partition key. In a DAG whose
    schedule gives keys, such a run is always refused. The task registers its commit in LakeChime,
    through the connection `lakechime_conn_id`; None turns that off.

    The link `Spark UI` leads to the page of the running job. After the job's end it leads to the
    history server, if `spark.eventLog.enabled` is true and `spark.yarn.historyServer.address`
    names one (on any master), otherwise to the task's log.

    On a cluster the Python workers need opal_lake and pyarrow: installed on the nodes, in the
    image, or in an archive by `opal pack`. A driver in a pod needs the app too: `app` is its path
    in the image, or it is uploaded through spark.kubernetes.file.upload.path.

    The connection's keys, and values in `conf` and `env_vars` that look like secrets, reach
    spark-submit in a file that only the worker's user can read. From there on their safety depends
    on the cluster:

    - client mode, everywhere: the secrets stay in the driver's memory, and go to executors over
      Spark's RPC. spark.authenticate with spark.network.crypto.enabled encrypts it.
    - YARN, cluster mode: Spark puts the secrets into the application's staging folder, which only
      its user can read.
    - Kubernetes, cluster mode: Spark puts the secrets into a ConfigMap and the pod's environment,
      in plain text. If others may read these, leave the keys out of the connection and use
      spark.kubernetes.driver.secretKeyRef.AWS_ACCESS_KEY_ID='name:key', or the pod's service
      account.
    """

    operation: ClassVar[str]
    note_level: ClassVar[int] = logging.WARNING
    nothing_to_do: ClassVar[str] = "nothing to do"
    template_fields: Sequence[str] = (
        "table",
        "arguments",
        "opal_conn_id",
        "spark_conn_id",
        "lakechime_conn_id",
        *SparkSubmitOperator.template_fields,
    )
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
        own = {"application", "application_args", "conn_id"}
        refused = sorted(own & {*spark_submit_kwargs})
        if refused:
            raise ValueError(
                f"{type(self).__name__} sets {', '.join(refused)} itself; leave it out. "
                "spark_conn_id= names a Spark connection"
            )
        secret_paths = secret_arguments(arguments)
        if secret_paths:
            raise ValueError(
                f"{', '.join(secret_paths)} holds a secret, which Airflow would show with the "
                "task: put the secret into a connection, conf or env_vars, and give only its name "
                "here"
            )
        # At Spark's own level, its lines would bury the job's progress
        quiet = {"spark.log.level": "ERROR"}
        given_conf = spark_submit_kwargs.pop("conf", None) or {}
        given_environment = spark_submit_kwargs.get("env_vars") or {}
        conf, self._hidden_conf = without_secrets({**quiet, **given_conf})
        environment, self._hidden_environment = without_secrets(given_environment)
        spark_submit_kwargs["env_vars"] = environment
        self._may_lose_track = spark_submit_kwargs.get("durable") is not True
        super().__init__(name=name, conf=conf, **spark_submit_kwargs)
        self.table = table
        self.arguments = dict(arguments or {})
        self.opal_conn_id = opal_conn_id
        self.spark_conn_id = spark_conn_id
        self.lakechime_conn_id = lakechime_conn_id
        self.app = app
        self.keyed = keyed
        self.history_url: str | None = None  # set when the job reports it
        templates = json.dumps([table, self.arguments], default=str)
        self._asks_for_key = bool(KEY_ASKED_FOR.search(templates))

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """Return Airflow's partial operator, with the assets that are already known.

        Airflow does not call the `__init__` of a mapped operator before the run. If the table is
        mapped over, or named by a template, each task gets its assets when it runs.
        """
        for name, assets in cls.assets_of(given).items():
            given[name] = distinct([*(given.get(name) or ()), *assets])
        return super().partial(**given)

    @classmethod
    def assets_of(cls, given: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
        """Return the inlets or outlets that are known without a DAG run."""
        return {}

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: "Context", jinja_env: Any, seen_oids: Any
    ) -> None:
        """Render the templates, unless `execute` is about to refuse the DAG run.

        Without a key, `None` would get into paths, and a template might fail. The refusal comes in
        `execute` and not here, because the UI hides what is logged earlier.
        """
        if not self._lacks_key(context):
            super()._do_render_template_fields(
                parent, template_fields, context, jinja_env, seen_oids
            )

    def check_key(self, context: "Context") -> None:
        """Raise AirflowFailException if the DAG run lacks a partition key that it needs.

        It needs one if a template of an argument uses the key. It also needs one if the DAG's other
        runs have keys: otherwise no consumer by partition would get an event for the rows.
        """
        if not self._lacks_key(context):
            return
        hint = KEY_HINT if takes_keys(_timetable_of(context)) else SCHEDULE_HINT
        raise AirflowFailException(
            f"task {self.task_id!r} works on one partition, and this run has no partition key. "
            f"{hint}"
        )

    def _lacks_key(self, context: "Context") -> bool:
        """Return whether the DAG run needs a partition key and has none."""
        if context.get("partition_key") is not None:
            return False
        return self._asks_for_key or self.needs_key(context)

    def needs_key(self, context: "Context") -> bool:
        """Return whether the task needs a partition key even if no template uses it."""
        return self.keyed or is_keyed(_timetable_of(context))

    def job(self, context: "Context") -> "JobSpec[Any]":
        """Return the job to run, with rendered templates and without secrets."""
        from opal_lake.operations.job_spec import JobSpec  # a DAG file has no job yet

        try:
            table = self.opal.lake.uri(self.table)
            # Before the arguments, which need the earlier tokens: this call begins a generation
            token = token_of(context)
            return JobSpec.of(self.operation, table, self.job_arguments(context), token)
        except (AirflowNotFoundException, ValueError) as error:
            raise AirflowFailException(str(error)) from error  # a retry would not help

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Return the arguments after templates are rendered.

        Raises ValueError if one is not valid.
        """
        return dict(self.arguments)

    @property
    def opal(self) -> OpalHook:
        return OpalHook(self.opal_conn_id)

    def execute(  # type: ignore[override]  # Airflow's operator has no result
        self, context: "Context"
    ) -> dict[str, Any]:
        """Run the job, and return the JobResult as a plain dict."""
        self.check_key(context)
        spec, opal = self.job(context), self.opal
        connection_conf = opal.lake.spark_conf()
        # Before the store is used: at DEBUG its client logs its requests
        mask(connection_conf.items())
        self._end_left_over(context)
        # A cleared task has another token. It must not find the job of the try before the clear
        self.external_id_key = f"spark_job_id:{spec.token}"
        self._K8S_DRIVER_STATUS_KEY = f"k8s_driver_status:{spec.token}"
        result = self._result(opal, spec) or self._look(opal, spec, context)
        if result is not None:
            if result.repeated:
                message = "an earlier try %s; the job is not submitted again"
                self.log.info(message, _done(result))
            else:
                message = "%s at version %s; no Spark job started"
                self.log.info(message, self.nothing_to_do, result.version)
            return self.finish(context, result)
        self._conn_id = self._checked_spark_conn_id(opal)
        self.application = self.app or app_path()
        self.application_args = ["--spec", spec.to_json()]
        failure = self._submitted(connection_conf, context)
        result = self._result(opal, spec)
        if result is None:
            raise self._verdict(failure)
        result = replace(result, repeated=False)  # this try made it
        if failure is not None:
            shown: object = failure
            if isinstance(self._hook, OpalSubmitHook):
                shown = self._hook.redacted(str(failure))
            self.log.warning(
                "the job %s, but Spark reported a failure afterwards: %s", _done(result), shown
            )
        return self.finish(context, result)

    def finish(self, context: "Context", result: "JobResult") -> dict[str, Any]:
        """Log the result, and return it for XCom."""
        for note in result.notes:
            self.log.log(self.note_level, "%s", note)
        at_version = "" if result.version is None else f"version {result.version}, "
        summary = "%s of %s: %s%s"
        counts = dict(result.counts)
        self.log.info(summary, result.operation, result.table, at_version, counts)
        has_new_view = self.changes_view() and result.version is not None
        if has_new_view and self.lakechime_conn_id is not None:
            from airflow_provider_opal.events.commits import register_commits

            register_commits(self.opal, self.table, self.lakechime_conn_id, self.log)
        end_generation(context)
        # Only lists and dicts, as another task gets them from XCom
        return json.loads(result.to_json())  # type: ignore[no-any-return]  # it is a dict

    def changes_view(self) -> bool:
        """Return whether the job may change what a read of the table shows."""
        return False

    def _submitted(
        self, connection_conf: Mapping[str, str], context: "Context"
    ) -> Exception | None:
        """Run the job to its end, and return the failure, if there was one."""
        hook = self._hook = self._watched_hook(context)
        hook.check_master()
        for doubt in hook.doubts(self.application):
            self.log.warning("%s", doubt)
        conf = {**connection_conf, **self.render_template(self._hidden_conf, context)}
        with hook.hiding(conf, self.render_template(self._hidden_environment, context)):
            try:
                if hook.is_client:
                    # Nothing to resume: the driver dies with this machine, and its token keeps a
                    # second driver from applying the work twice
                    hook.submit(self.application)
                else:
                    self._submit_to_cluster(hook, context)
            except Exception as error:  # noqa: BLE001  # the table decides how the job ended
                return error
        return None

    def _submit_to_cluster(self, hook: OpalSubmitHook, context: "Context") -> None:
        if hook.is_yarn_cluster and not hook.track_on_yarn() and self._may_lose_track:
            # Airflow's operator refuses a durable job whose driver it cannot track. A lost driver
            # and its successor may both run to the end; only one of the two commits
            self.durable = False
        super().execute(context)

    def _watched_hook(self, context: "Context") -> OpalSubmitHook:
        try:
            hook = self._get_hook()
        # NameError: Airflow's hook uses a name whose import failed
        except (NameError, RuntimeError) as error:
            raise AirflowFailException(
                "a Kubernetes master needs Airflow's provider for it: "
                "pip install apache-airflow-providers-cncf-kubernetes"
            ) from error
        # Only Airflow's own method passes the hook all of its arguments, some forty
        hook.__class__ = OpalSubmitHook
        assert isinstance(hook, OpalSubmitHook)
        hook.on_started = lambda process: _remember(context, process)
        hook.on_ui = lambda url: context["ti"].xcom_push(key=SparkUILink().xcom_key, value=url)
        hook.on_history = lambda url: setattr(self, "history_url", url)
        return hook

    def is_job_succeeded(self, status: str) -> bool:
        """Return False: Airflow asks about a job of an earlier try.

        Without a result in the table it has to run again.
        """
        return False

    def on_kill(self) -> None:
        """End the job as Airflow's hook ends it.

        Airflow's operator would ask only YARN's resource manager, whose address may be unknown.
        """
        if self._hook is not None:
            self._hook.on_kill()

    def poll_until_complete(self, external_id: Any, context: "Context") -> None:
        """Poll as Airflow does, and name the application to the hook.

        On a reconnect to YARN, Airflow's hook does not know it, and a kill would do nothing.
        """
        if isinstance(self._hook, OpalSubmitHook):
            self._hook.follow(external_id)
        super().poll_until_complete(external_id, context)

    def _checked_spark_conn_id(self, opal: OpalHook) -> str:
        """Return the id of the Spark connection; raise if it is not valid.

        Airflow's hook would treat a missing connection, and one without a host, as YARN.
        """
        conn_id = self.spark_conn_id or opal.lake.spark_conn_id
        try:
            connection = OpalHook.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise AirflowFailException(
                f"the Spark connection {conn_id!r} does not exist; add it (type spark, "
                "host local[2], spark://host:7077, yarn or k8s://...), "
                f"or name another with spark_conn_id= or in the connection {self.opal_conn_id!r}"
            ) from error
        if connection.conn_type not in ("spark", "", None):
            raise AirflowFailException(
                f"the connection {conn_id!r} is of type {connection.conn_type!r}, and Spark jobs "
                "need one of type 'spark'; name another with spark_conn_id=, or with the extra "
                f"spark_conn_id of the connection {self.opal_conn_id!r}"
            )
        if connection.host is None:
            raise AirflowFailException(
                f"the Spark connection {conn_id!r} has no host; write local[2], "
                "spark://host:7077, yarn or k8s://https://host:6443"
            )
        return conn_id

    def _result(self, opal: OpalHook, spec: "JobSpec[Any]") -> "JobResult | None":
        if spec.token is None:
            return None
        return opal.find_result(spec.table, self.operation, spec.token)

    def _look(self, opal: OpalHook, spec: "JobSpec[Any]", context: "Context") -> "JobResult | None":
        """Look at the table before Spark starts; return a result without work to do.

        Input that the job would refuse fails the task immediately. Other errors do not: the job may
        have access that this worker lacks.
        """
        store = context.get("task_state_store")
        if store is not None and store.get(self.external_id_key) is not None:
            return None  # a job of an earlier try may still run on the cluster: follow it
        try:
            if spec.operation.needs_table:
                result: JobResult | None = spec.job.look(opal.table(self.table))
            else:
                result = spec.job.look(self._worker_place(opal))
        except AirflowException:
            raise
        except Exception as error:  # the look alone fails no task
            status = exit_code(error)
            if status == INPUT and not isinstance(error, ReadOnlyError):
                raise self._refused(INPUT, f"opal: {error}", self.advice()) from error
            is_bug = status == BUG
            level = logging.WARNING if is_bug else logging.INFO
            message = "this worker could not check the table before Spark starts: %s"
            self.log.log(level, message, error, exc_info=is_bug)
            return None
        return result

    def _worker_place(self, opal: OpalHook) -> "WorkerPlace":
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
        """Return the exception for a job that would fail again at each try."""
        lines = [f"{self.operation} of {self.table}: {MEANINGS[status]}", message]
        if cause:
            lines.append(cause)
        return AirflowFailException("\n".join(lines))

    def _verdict(self, failure: Exception | None) -> Exception:
        """Return the exception for a job without a result.

        It forbids a retry if a retry cannot succeed.
        """
        hook = self._hook
        assert isinstance(hook, OpalSubmitHook)
        where = f"\nthe driver's log: {hook.log_command}" if hook.log_command else ""
        if failure is None:
            return AirflowException(
                f"Spark reported no failure of {self.operation} of {self.table}, "
                f"but the table has no commit of the job; {RETRIED}{where}"
            )
        status = hook.app_status(failure)
        cause = hook.cause(failure)
        if not cause and status == INPUT:
            cause = self.advice()
        last_error = _last_error(hook) or str(failure)
        error = hook.redacted(last_error) + where
        message = f"{error}\n{cause}" if cause else error
        not_submitted = AirflowFailException(
            f"{self.operation} of {self.table} was not submitted: {message}"
        )
        if isinstance(failure, FileNotFoundError | PermissionError) or hook.lack is not None:
            return not_submitted
        if status in FINAL:
            return self._refused(status, error, cause)
        # Airflow's operator and hook raise ValueError for settings that contradict each other
        if isinstance(failure, ValueError):
            return not_submitted
        return AirflowException(f"{self.operation} of {self.table} failed; {RETRIED}\n{message}")

    def advice(self) -> str | None:
        """Return a hint on how to correct refused input, or None."""
        return None

    def _end_left_over(self, context: "Context") -> None:
        """End the driver of an earlier try. It may still run if its worker was killed."""
        store = context.get("task_state_store")
        process = store.get(PROCESS_KEY) if store is not None else None
        if isinstance(process, dict) and end_left_over(process):
            self.log.warning("ended the driver of an earlier try, process group %s", process["pid"])


def is_keyed(timetable: Any) -> bool:
    """Return whether the scheduler gives every run of a DAG with this timetable a key."""
    return isinstance(timetable, CronPartitionTimetable | PartitionedAssetTimetable)


def takes_keys(timetable: Any) -> bool:
    """Return whether a run of a DAG with this timetable may have a partition key."""
    if timetable is None or is_keyed(timetable):
        return True
    return bool(getattr(timetable, "partitioned_at_runtime", False))


def _timetable_of(context: "Context") -> Any:
    return getattr(context.get("dag"), "timetable", None)


def token_of(context: "Context") -> str:
    """Return the token of the task's job.

    Retries share a token, so the job is applied once. A cleared task gets another token, and runs
    the job again.
    """
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
            "the package opal_spark is not installed with Airflow: "
            "pip install airflow-provider-opal"
        )
    return str(Path(package.origin).parent / "submit" / "app.py")


def _remember(context: "Context", process: Mapping[str, Any]) -> None:
    store = context.get("task_state_store")
    if store is not None:
        store.set(PROCESS_KEY, dict(process))


def _done(result: "JobResult") -> str:
    """Return what a job has done; one that changes several tables has no version."""
    if result.version is None:
        return "did its work"
    return f"committed version {result.version}"


def _last_error(hook: Any) -> str:
    """Return the last error of the app without the Spark log before it, or ""."""
    lines = list(getattr(hook, "_last_submit_log_lines", ()))
    starts = [number for number, line in enumerate(lines) if line.startswith("opal: ")]
    if not starts:
        return ""
    return "\n".join(lines[starts[-1] :])
