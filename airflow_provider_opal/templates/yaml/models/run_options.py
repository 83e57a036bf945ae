"""The options of every DAG."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_opal.assets import DEFAULT_CONN_ID
from airflow_provider_opal.templates.yaml.models.base import (
    Connection,
    Duration,
    Moment,
    Number,
    Settings,
    Small,
    Strict,
    Text,
    Zone,
)


class SparkModel(Strict):
    """Arguments of spark-submit; secrets belong into connections."""

    conf: Settings | None = Field(
        None, description="Settings of Spark, such as `spark.sql.shuffle.partitions: 200`."
    )
    packages: Text | None = Field(None, description="Maven coordinates, separated by commas.")
    exclude_packages: Text | None = Field(
        None, description="Maven coordinates to leave out, separated by commas."
    )
    repositories: Text | None = Field(
        None, description="Further Maven repositories, separated by commas."
    )
    jars: Text | None = Field(None, description="Jars, separated by commas.")
    files: Text | None = Field(None, description="Files for the executors, separated by commas.")
    py_files: Text | None = Field(
        None, description="Zip or egg files of Python modules, separated by commas."
    )
    archives: Text | None = Field(
        None, description="Archives to unpack on the executors, separated by commas."
    )
    driver_class_path: Text | None = Field(None, description="Further class path of the driver.")
    driver_memory: Text | None = Field(None, description="Memory of the driver, such as 2g.")
    executor_memory: Text | None = Field(None, description="Memory of an executor, such as 4g.")
    executor_cores: Number | None = Field(None, description="Cores of an executor.")
    total_executor_cores: Number | None = Field(None, description="Cores of all executors.")
    num_executors: Number | None = Field(None, description="Number of executors.")
    deploy_mode: Literal["client", "cluster"] | None = Field(
        None, description="Whether the driver runs on the worker or on the cluster."
    )
    yarn_queue: Text | None = Field(None, description="The queue of YARN.")
    principal: Text | None = Field(None, description="The principal of Kerberos.")
    keytab: Text | None = Field(None, description="The path of Kerberos' key table.")
    proxy_user: Text | None = Field(None, description="The user to act for.")
    env_vars: Settings | None = Field(None, description="Environment variables of the driver.")
    status_poll_interval: Number | None = Field(
        None, description="Seconds between two checks of a driver on a cluster."
    )
    verbose: bool | None = Field(None, description="Whether spark-submit logs more.")


class DefaultArgs(Strict):
    """Airflow's arguments of every task."""

    owner: Text | None = Field(None, description="The owner of the tasks.")
    queue: Text | None = Field(None, description="The queue of the workers.")
    priority_weight: Number | None = Field(
        None, description="Tasks with a higher weight get scarce slots first."
    )
    execution_timeout: Duration | None = Field(
        None, description="The longest time that one try may take."
    )


class RunOptions(Strict):
    """Options of a DAG's runs, connections and tasks."""

    start_date: Moment | None = Field(
        None, description="The first partition, such as 2026-11-01, in the pipeline's time zone."
    )
    end_date: Moment | None = Field(None, description="The last partition.")
    timezone: Zone = Field(
        "UTC", description="The time zone of the schedule and of days, such as Europe/Berlin."
    )
    partition_key_format: Text | None = Field(
        None, description="The format of partition keys, such as '%Y-%m-%d'."
    )
    catchup: bool | None = Field(
        None, description="Whether to run all partitions from `start_date` until now."
    )
    opal_conn_id: Connection = Field(DEFAULT_CONN_ID, description="The connection of the lake.")
    spark_conn_id: Connection | None = Field(
        None, description="The connection of Spark. Default: the one in the lake's connection."
    )
    spark: SparkModel | None = Field(None, description="Arguments of spark-submit.")
    retries: Small | None = Field(None, description="The number of retries of a task. Default: 2.")
    retry_delay: Duration = Field(
        timedelta(minutes=1), description="The time between two tries of a task."
    )
    pool: Text | None = Field(None, description="The pool of Airflow that limits the tasks.")
    deadline: Duration | None = Field(
        None, description="The longest time that a run may take before Airflow raises an alarm."
    )
    description: Text | None = Field(None, description="The purpose of the pipeline.")
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        None, description="Tags in Airflow's list of DAGs."
    )
    max_active_runs: Number | None = Field(None, description="The number of simultaneous runs.")
    max_active_tasks: Number | None = Field(
        None, description="The number of simultaneous tasks of a run."
    )
    dagrun_timeout: Duration | None = Field(
        None, description="The longest time that a run may take before it fails."
    )
    is_paused_upon_creation: bool | None = Field(
        None, description="Whether the DAG starts paused, until somebody unpauses it."
    )
    default_args: DefaultArgs | None = Field(None, description="Arguments of every task.")
