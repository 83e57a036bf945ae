"""What can be said of every DAG."""

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
        None, description="Settings of Spark, as `spark.sql.shuffle.partitions: 200`."
    )
    packages: Text | None = Field(None, description="Maven coordinates, with commas.")
    exclude_packages: Text | None = Field(
        None, description="Maven coordinates that are left out, with commas."
    )
    repositories: Text | None = Field(None, description="More Maven repositories, with commas.")
    jars: Text | None = Field(None, description="Jars, with commas.")
    files: Text | None = Field(None, description="Files for the executors, with commas.")
    py_files: Text | None = Field(
        None, description="Zip or egg files of Python modules, with commas."
    )
    archives: Text | None = Field(None, description="Archives that are unpacked, with commas.")
    driver_class_path: Text | None = Field(None, description="More class path of the driver.")
    driver_memory: Text | None = Field(None, description="As 2g.")
    executor_memory: Text | None = Field(None, description="As 4g.")
    executor_cores: Number | None = Field(None, description="Cores of an executor.")
    total_executor_cores: Number | None = Field(None, description="Cores of all executors.")
    num_executors: Number | None = Field(None, description="How many executors.")
    deploy_mode: Literal["client", "cluster"] | None = Field(
        None, description="Where the driver runs."
    )
    yarn_queue: Text | None = Field(None, description="The queue of YARN.")
    principal: Text | None = Field(None, description="For Kerberos.")
    keytab: Text | None = Field(None, description="The path of Kerberos' key table.")
    proxy_user: Text | None = Field(None, description="The user to act for.")
    env_vars: Settings | None = Field(None, description="Environment variables of the driver.")
    status_poll_interval: Number | None = Field(
        None, description="Seconds between two looks at a driver on a cluster."
    )
    verbose: bool | None = Field(None, description="Whether spark-submit tells more.")


class DefaultArgs(Strict):
    """Airflow's arguments of every task."""

    owner: Text | None = Field(None, description="Who owns the tasks.")
    queue: Text | None = Field(None, description="The queue of the workers.")
    priority_weight: Number | None = Field(None, description="Before others when slots are scarce.")
    execution_timeout: Duration | None = Field(None, description="How long one attempt may take.")


class RunOptions(Strict):
    """Of its runs, its connections and its tasks."""

    start_date: Moment | None = Field(
        None, description="The first partition, as 2026-11-01; in the pipeline's time zone."
    )
    end_date: Moment | None = Field(None, description="The last partition.")
    timezone: Zone = Field("UTC", description="Of the schedule and of days, as Europe/Berlin.")
    partition_key_format: Text | None = Field(
        None, description="How a moment becomes a partition key, as '%Y-%m-%d'."
    )
    catchup: bool | None = Field(
        None, description="Whether to run what lies between `start_date` and now."
    )
    opal_conn_id: Connection = Field(DEFAULT_CONN_ID, description="The connection of the lake.")
    spark_conn_id: Connection | None = Field(
        None,
        description="The connection of Spark; if not given, the one that the lake's connection names.",
    )
    spark: SparkModel | None = Field(None, description="Arguments of spark-submit.")
    retries: Small | None = Field(
        None, description="How often a task tries again; twice if not given."
    )
    retry_delay: Duration = Field(timedelta(minutes=1), description="Between two tries.")
    pool: Text | None = Field(None, description="The pool of Airflow that limits the tasks.")
    deadline: Duration | None = Field(
        None, description="How long a run may take before Airflow raises the alarm."
    )
    description: Text | None = Field(None, description="What the pipeline is for.")
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        None, description="For Airflow's list."
    )
    max_active_runs: Number | None = Field(None, description="Runs at once.")
    max_active_tasks: Number | None = Field(None, description="Tasks of a run at once.")
    dagrun_timeout: Duration | None = Field(
        None, description="How long a run may take before it fails."
    )
    is_paused_upon_creation: bool | None = Field(
        None, description="Whether the DAG starts paused, until somebody switches it on."
    )
    default_args: DefaultArgs | None = Field(None, description="Arguments of every task.")
