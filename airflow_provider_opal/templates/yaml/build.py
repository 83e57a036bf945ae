"""A pipeline of a YAML file as DAGs: the arguments of `opal_dag`."""

from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.assets import opal_asset
from airflow_provider_opal.operators.ingest import CreateTable
from airflow_provider_opal.templates.maintenance import Maintenance
from airflow_provider_opal.templates.mutation import mutation_dag
from airflow_provider_opal.templates.pipeline import Consumer, opal_dag
from airflow_provider_opal.templates.schedule import in_zone
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.run_options import RunOptions
from airflow_provider_opal.templates.yaml.models.version_1 import (
    DagModel,
    Options,
    TableModel,
    TableSchedule,
    WaitForModel,
)


def build_dag(dag_id: str, dag: DagModel) -> DAG:
    """Makes and registers the pipeline's DAGs; returns the main one."""
    consumers = [
        Consumer(
            name=name,
            wait_for=_waits(consumer.wait_for, dag.timezone),
            **consumer.model_dump(exclude={"wait_for"}),
        )
        for name, consumer in dag.consumers.items()
    ]
    return opal_dag(
        dag_id,
        table=dag.table_name,
        source=dag.source.to_source(),
        schedule=_schedule(dag),
        create=_create(dag.table),
        consumers=consumers,
        wait_for=_waits(dag.wait_for, dag.timezone),
        **_options(dag),
    )


def build_mutation(dag_id: str, mutation: MutationModel) -> DAG:
    """Makes and registers the DAG of a mutation of a folder."""
    options = _given(mutation, RunOptions)
    return mutation_dag(
        dag_id,
        schedule=mutation.schedule,
        count_first=mutation.count_first,
        arguments=mutation.to_arguments(),
        **options,
    )


def derived_ids(dag_id: str, dag: DagModel) -> list[str]:
    """The ids of all DAGs that a pipeline becomes, its own first."""
    own = [f"{dag_id}.{name}" for name, consumer in dag.consumers.items() if consumer.own_dag]
    reconcile = [f"{dag_id}.reconcile"] if own and dag.reconcile is not None else []
    return [dag_id, *own, *reconcile, *([f"{dag_id}.maintenance"] if dag.maintenance else [])]


def _schedule(dag: DagModel) -> Any:
    if isinstance(dag.schedule, TableSchedule):
        return opal_asset(
            dag.schedule.table, opal_conn_id=dag.schedule.opal_conn_id or dag.opal_conn_id
        )
    return dag.schedule


def _waits(given: WaitForModel | None, timezone: str) -> dict[str, Any] | None:
    """What is not given is left to the defaults of WaitFor. A moment without a zone is one of the pipeline's."""
    if given is None:
        return None
    start = in_zone(given.start_timestamp, timezone)
    return given.model_copy(update={"start_timestamp": start}).model_dump(exclude_none=True)


def _create(table: str | TableModel) -> CreateTable | None:
    if isinstance(table, str) or table.keys is None or table.delta is None:
        return None
    return CreateTable(**table.model_dump(by_alias=True, exclude={"name"}, exclude_none=True))


def _options(dag: DagModel) -> dict[str, Any]:
    given = _given(dag, Options)
    if dag.maintenance:
        given["maintenance"] = _maintenance(dag.maintenance)
    return given


def _given(dag: RunOptions, declared: type[RunOptions]) -> dict[str, Any]:
    """What is left out says nothing, so that Airflow's own settings count."""
    options = {name: getattr(dag, name) for name in declared.model_fields}
    given = {
        name: value
        for name, value in options.items()
        if value is not None or name in ("reconcile", "lakechime_conn_id")
    }
    for name in ("spark", "default_args"):
        if name in given:
            given[name] = given[name].model_dump(exclude_none=True)
    return given


def _maintenance(model: Any) -> Maintenance:
    """Of its values, what is said counts; a schedule of null, too."""
    values = model.model_dump(exclude_none=True)
    return Maintenance(**{**values, "schedule": model.schedule})
