"""`opal dag render`: the DAGs, schedules, tasks and assets of YAML files in words.

This needs Airflow's classes, but none of its services.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.templates.yaml.files import expect_some, yaml_files
from airflow_provider_opal.templates.yaml.lint.python import asset_uris
from airflow_provider_opal.templates.yaml.loader import built, distinct, registered
from airflow_provider_opal.templates.yaml.text.problem import Problem


def render(path: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return a mapping for each DAG, in the order of the files, and the problems."""
    rendered: list[dict[str, Any]] = []
    problems: list[Problem] = []
    files = yaml_files(path)
    expect_some(files, path)
    for file in distinct(files):
        with registered() as dags:
            built(file)
        order = [*file.dags, *file.mutations, *file.scripts]
        facts = [{"file": file.name, **dag_facts(dag)} for dag in dags]
        rendered += sorted(facts, key=lambda fact: (_owner(fact["dag_id"], order), fact["dag_id"]))
        problems += file.problems
    return rendered, problems


def _owner(dag_id: str, pipelines: list[str]) -> int:
    """Return the number of the pipeline that a DAG belongs to.

    If several pipelines have ids that fit, the longest id counts.
    """
    owners = [name for name in pipelines if dag_id == name or dag_id.startswith(f"{name}.")]
    if not owners:
        return len(pipelines)
    return pipelines.index(max(owners, key=len))


def dag_facts(dag: DAG) -> dict[str, Any]:
    """Return the facts of a DAG for JSON."""
    return {
        "dag_id": dag.dag_id,
        "schedule": schedule_words(dag.timetable),
        "start_date": dag.start_date.isoformat() if dag.start_date else None,
        "woken_by": asset_uris(getattr(dag.timetable, "asset_condition", None)),
        "tasks": [task_facts(task) for task in sorted_tasks(dag)],
    }


def sorted_tasks(dag: DAG) -> list[Any]:
    """Return a DAG's tasks, upstream ones first."""
    return list(dag.topological_sort())  # type: ignore[no-untyped-call]  # Airflow's has no types


def task_facts(task: Any) -> dict[str, Any]:
    """Return the facts of a task for JSON; a group has only a name."""
    assets = [outlet for outlet in getattr(task, "outlets", ()) if hasattr(outlet, "uri")]
    return {
        "task_id": task.node_id,
        "operator": getattr(task, "task_type", type(task).__name__),
        "table": getattr(task, "table", None),
        "downstream": sorted(getattr(task, "downstream_task_ids", ())),
        "wakes": sorted(asset.uri for asset in assets),
    }


def schedule_words(timetable: Any) -> str:
    """Return a schedule in words."""
    name = type(timetable).__name__
    condition = getattr(timetable, "asset_condition", None)
    if condition:
        keyed = " for each partition key" if name == "PartitionedAssetTimetable" else ""
        return f"when {' and '.join(asset_uris(condition))} changes{keyed}"
    # By attributes, not by classes: a DAG may have any timetable
    expression = getattr(timetable, "expression", None)
    if expression is None:
        return "by hand"
    words = f"{expression} ({timetable.timezone})"
    key_format = getattr(timetable, "key_format", None)
    if key_format:
        words += f", partition key {key_format} of the interval that ended"
    return words


def page(dags: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines that show DAGs to a human."""
    for dag in dags:
        yield f"{dag['dag_id']}    {dag['file']}"
        yield f"  schedule  {dag['schedule']}"
        yield f"  from      {dag['start_date'] or '-'}"
        for task in dag["tasks"]:
            operator = task["operator"]
            if task["table"]:
                operator += f" {task['table']}"
            line = f"  task      {task['task_id']} ({operator})"
            if task["downstream"]:
                line += f" -> {', '.join(task['downstream'])}"
            yield line
            for uri in task["wakes"]:
                yield f"            wakes {uri}"
        yield ""
