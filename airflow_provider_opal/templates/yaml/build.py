"""The DAGs of a pipeline of a YAML file, made by `opal_dag`."""

from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.operators.ingest import CreateTable
from airflow_provider_opal.templates.maintenance import Maintenance
from airflow_provider_opal.templates.mutation import mutation_dag
from airflow_provider_opal.templates.pipeline import Consumer, Evolve, opal_dag
from airflow_provider_opal.templates.schedule import in_zone
from airflow_provider_opal.templates.script import script_dag
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.script import ScriptModel
from airflow_provider_opal.templates.yaml.models.version_1 import (
    DagModel,
    Options,
    TableModel,
    TableSchedule,
    WaitForModel,
)


def build_dag(dag_id: str, dag: DagModel) -> DAG:
    """Make and register the pipeline's DAGs; return the main one."""
    consumers = []
    for name, consumer in dag.consumers.items():
        wait_for = _wait_for(consumer.wait_for, dag.timezone)
        options = consumer.model_dump(exclude={"wait_for"})
        consumers.append(Consumer(name=name, wait_for=wait_for, **options))
    return opal_dag(
        dag_id,
        table=dag.table_name,
        source=dag.source.to_source(),
        schedule=_schedule(dag),
        create=_create(dag.table),
        evolve=_evolve(dag.table),
        consumers=consumers,
        wait_for=_wait_for(dag.wait_for, dag.timezone),
        **_options(dag),
    )


def build_mutation(dag_id: str, mutation: MutationModel) -> DAG:
    """Make and register the DAG of a mutation of a folder."""
    options = _given(mutation, RunOptions)
    return mutation_dag(
        dag_id,
        schedule=mutation.schedule,
        count_first=mutation.count_first,
        arguments=mutation.to_arguments(),
        **options,
    )


def build_script(dag_id: str, script: ScriptModel, folder: Path) -> DAG:
    """Make and register the DAG of a script, whose files lie in the folder."""
    options = _given(script, RunOptions)
    return script_dag(
        dag_id,
        schedule=script.schedule,
        arguments=script.to_arguments(),
        folder=folder,
        **options,
    )


def derived_ids(dag_id: str, dag: DagModel) -> list[str]:
    """Return the ids of all DAGs of a pipeline, its own first."""
    consumers = [name for name, consumer in dag.consumers.items() if consumer.own_dag]
    parts = list(consumers)
    if consumers and dag.reconcile is not None:
        parts.append("reconcile")
    if dag.maintenance:
        parts.append("maintenance")
    return [dag_id, *(f"{dag_id}.{part}" for part in parts)]


def _schedule(dag: DagModel) -> Any:
    schedule = dag.schedule
    if not isinstance(schedule, TableSchedule):
        return schedule
    return opal_asset(schedule.table, opal_conn_id=schedule.opal_conn_id or dag.opal_conn_id)


def _wait_for(given: WaitForModel | None, timezone: str) -> dict[str, Any] | None:
    """Return the given arguments of a WaitFor.

    A moment without a time zone is in the pipeline's zone.
    """
    if given is None:
        return None
    start = in_zone(given.start_timestamp, timezone)
    return given.model_copy(update={"start_timestamp": start}).model_dump(exclude_none=True)


def _create(table: str | TableModel) -> CreateTable | None:
    if isinstance(table, str) or table.keys is None or table.delta is None:
        return None
    return CreateTable(
        **table.model_dump(by_alias=True, exclude={"name", "evolve"}, exclude_none=True)
    )


def _evolve(table: str | TableModel) -> Evolve | None:
    if isinstance(table, str) or not table.evolve:
        return None
    return Evolve(**table.beyond_schema)


def _options(dag: DagModel) -> dict[str, Any]:
    given = _given(dag, Options)
    if dag.maintenance:
        given["maintenance"] = _maintenance(dag.maintenance)
    return given


def _given(dag: RunOptions, declared: type[RunOptions]) -> dict[str, Any]:
    """Return the options that have a value; for the others, Airflow's settings hold."""
    options = {name: getattr(dag, name) for name in declared.model_fields}
    # A null is a value of these two keys: without a reconcile, and without LakeChime
    nullable = {"reconcile", "lakechime_conn_id"}
    missing = {name for name, value in options.items() if value is None} - nullable
    given = {name: value for name, value in options.items() if name not in missing}
    for name in ("spark", "default_args"):
        if name in given:
            given[name] = given[name].model_dump(exclude_none=True)
    return given


def _maintenance(model: Any) -> Maintenance:
    """Return the maintenance of the given values, of which a null schedule is one."""
    values = model.model_dump(exclude_none=True)
    return Maintenance(**{**values, "schedule": model.schedule})
