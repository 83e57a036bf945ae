"""What comes out of YAML files, in words: DAGs, schedules, tasks, assets. Needs Airflow's classes and none of its services."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.templates.yaml.files import expect_some, yaml_files
from airflow_provider_opal.templates.yaml.lint.python import asset_uris
from airflow_provider_opal.templates.yaml.loader import built, distinct, registered
from airflow_provider_opal.templates.yaml.text.problem import Problem


def render(path: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """A mapping a DAG, in the order of files and of their pipelines, and what is wrong."""
    made: list[dict[str, Any]] = []
    problems: list[Problem] = []
    files = yaml_files(path)
    expect_some(files, path)
    for file in distinct(files):
        with registered() as dags:
            built(file)
        order = [*file.dags, *file.mutations]
        facts = [{"file": file.name, **dag_facts(dag)} for dag in dags]
        made += sorted(facts, key=lambda fact: (_owner(fact["dag_id"], order), fact["dag_id"]))
        problems += file.problems
    return made, problems


def _owner(dag_id: str, order: list[str]) -> int:
    own = [
        number
        for number, name in enumerate(order)
        if dag_id == name or dag_id.startswith(f"{name}.")
    ]
    return max(own, key=lambda number: len(order[number]), default=len(order))


def dag_facts(dag: DAG) -> dict[str, Any]:
    """What a DAG is."""
    return {
        "dag_id": dag.dag_id,
        "schedule": schedule_words(dag.timetable),
        "start_date": dag.start_date.isoformat() if dag.start_date else None,
        "woken_by": asset_uris(getattr(dag.timetable, "asset_condition", None)),
        "tasks": [task_facts(task) for task in sorted_tasks(dag)],
    }


def sorted_tasks(dag: DAG) -> list[Any]:
    """The first ones first."""
    return list(dag.topological_sort())  # type: ignore[no-untyped-call]  # Airflow's has no types


def task_facts(task: Any) -> dict[str, Any]:
    """What a task is; groups have no more than a name."""
    return {
        "task_id": task.node_id,
        "operator": getattr(task, "task_type", type(task).__name__),
        "table": getattr(task, "table", None),
        "downstream": sorted(task.downstream_task_ids)
        if hasattr(task, "downstream_task_ids")
        else [],
        "wakes": sorted(
            outlet.uri for outlet in getattr(task, "outlets", ()) if hasattr(outlet, "uri")
        ),
    }


def schedule_words(timetable: Any) -> str:
    """As a person says it."""
    name = type(timetable).__name__
    if condition := getattr(timetable, "asset_condition", None):
        keyed = " for each partition key" if name == "PartitionedAssetTimetable" else ""
        return f"when {' and '.join(asset_uris(condition))} changes{keyed}"
    expression = getattr(timetable, "expression", None)
    if expression is None:
        return "by hand"
    key = getattr(timetable, "key_format", None)
    return f"{expression} ({timetable.timezone})" + (
        f", partition key {key} of the interval that ended" if key else ""
    )


def page(dags: list[dict[str, Any]]) -> Iterator[str]:
    """For people."""
    for dag in dags:
        yield f"{dag['dag_id']}    {dag['file']}"
        yield f"  schedule  {dag['schedule']}"
        yield f"  from      {dag['start_date'] or '-'}"
        for task in dag["tasks"]:
            then = f" -> {', '.join(task['downstream'])}" if task["downstream"] else ""
            table = f" {task['table']}" if task["table"] else ""
            yield f"  task      {task['task_id']} ({task['operator']}{table}){then}"
            yield from (f"            wakes {uri}" for uri in task["wakes"])
        yield ""
