"""The DAG of a script of SQL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_opal.operators.sql import SqlOperator
from airflow_provider_opal.templates.mutation import dag_of


def script_dag(dag_id: str, *, arguments: Mapping[str, Any], folder: Path, **options: Any) -> DAG:
    """Return a DAG with the task `run`, a SqlOperator with these arguments.

    Files of statements lie in `folder`. The options are those of `mutation_dag`.
    """
    dag, task = dag_of(dag_id, template_searchpath=str(folder), **options)
    with dag:
        SqlOperator(task_id="run", **arguments, **task)
    return dag
