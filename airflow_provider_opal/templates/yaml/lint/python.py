"""DAGs of Python files as pipelines, for the rules between pipelines.

The files are loaded as Airflow loads them.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_opal.templates.yaml.lint.graph import Pipeline, TableOf
from airflow_provider_opal.templates.yaml.loader import SILENT
from airflow_provider_opal.templates.yaml.text.problem import START, Position, Problem

# Operations that add rows to a table, or make them visible
_WRITES = ("ingest", "metagen")


def has_python(folder: Path) -> bool:
    """Return whether a folder has a Python file that Airflow would load."""
    files = (path for path in folder.rglob("*.py") if path.is_file())
    return any(b"airflow" in file.read_bytes().lower() for file in files)


def python_pipelines(folder: Path) -> tuple[list[Pipeline], list[Problem]]:
    """Return the DAGs of a folder's Python files, and the problems of these files.

    Problems are files that cannot be loaded, and tables that cannot be created.
    """
    from airflow.dag_processing.dagbag import DagBag

    # safe_mode as in Airflow: only files that mention it are loaded
    with _loading(folder):
        bag = DagBag(dag_folder=str(folder), bundle_path=folder, safe_mode=True)
    problems = []
    for name, error in sorted(bag.import_errors.items()):
        what = (
            f"Airflow cannot load the file ({_last_line(error)}), so lint does not know its DAGs; "
            "correct the file"
        )
        problems.append(Problem(name, START, (), what, "warning"))
    pipelines = []
    for _, dag in sorted(bag.dags.items()):
        pipeline = _pipeline(dag, folder)
        pipelines.append(pipeline)
        problems += _column_problems(dag, pipeline)
    return pipelines, problems


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """Make the folder's modules importable, without its YAML pipelines.

    What the modules print goes to standard error.
    """
    path = list(sys.path)
    os.environ[SILENT] = "1"
    sys.path.append(str(folder))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = path  # modules may have changed it too
        del os.environ[SILENT]


def _pipeline(dag: Any, folder: Path) -> Pipeline:
    from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable

    timetable = dag.timetable
    condition = getattr(timetable, "asset_condition", None)
    writers = _writers(dag)
    keyed = isinstance(timetable, CronPartitionTimetable | PartitionedAssetTimetable)
    return Pipeline(
        dag_id=dag.dag_id,
        file=os.path.relpath(dag.fileloc, folder),
        position=_position(Path(dag.fileloc), dag.dag_id),
        at=(dag.dag_id,),
        writes=tuple(dict.fromkeys(TableOf(task.table, task.opal_conn_id) for task in writers)),
        waits=tuple(_tables(condition)) if condition is not None else (),
        keyed=keyed,
        plain=condition is not None and not keyed,
    )


def _writers(dag: Any) -> list[Any]:
    from airflow_provider_opal.operators.spark import OpalSparkOperator

    return [
        task
        for task in dag.tasks
        if isinstance(task, OpalSparkOperator) and task.operation in _WRITES
    ]


def _column_problems(dag: Any, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the contradictions to a schema in the `create` of a DAG's tasks."""
    from airflow_provider_opal.templates.yaml.lint.columns import column_findings

    for task in _writers(dag):
        create = task.arguments.get("create")
        if isinstance(create, Mapping):
            for keys, what in column_findings(create):
                at = (dag.dag_id, task.task_id, "create", *keys)
                yield Problem(pipeline.file, pipeline.position, at, what)


def _tables(condition: Any) -> Iterator[TableOf]:
    """Yield the tables of the lake among the assets of a condition.

    Assets of versions are left out, because their keys are not partition keys.
    """
    for name in asset_uris(condition):
        uri = urlsplit(name)
        if uri.scheme == "opal" and not uri.path.endswith("/versions"):
            yield TableOf(uri.path.lstrip("/"), uri.netloc)


def asset_uris(condition: Any) -> list[str]:
    """Return the URIs of the assets in a condition such as `a & (b | c)`."""
    if condition is None:
        return []
    members = getattr(condition, "objects", None)
    if members is not None:
        uris = set[str]()
        for member in members:
            uris.update(asset_uris(member))
        return sorted(uris)
    return [condition.uri] if hasattr(condition, "uri") else []


def _position(path: Path, dag_id: str) -> Position:
    """Return the position at which a file first names a DAG."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return START
    pattern = re.compile(rf"[\"']{re.escape(dag_id)}[\"']")
    for number, line in enumerate(lines, 1):
        match = pattern.search(line)
        if match:
            return Position(number, match.start() + 1)
    return START


def _last_line(error: str) -> str:
    lines = error.strip().splitlines()
    return lines[-1].strip() if lines else ""
