"""DAGs of Python files as pipelines, for what lint says between pipelines. Loads the files as Airflow does."""

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

_WRITES = ("ingest", "metagen")


def has_python(folder: Path) -> bool:
    """Whether there is a file that Airflow would look into."""
    return any(
        b"airflow" in path.read_bytes().lower() for path in folder.rglob("*.py") if path.is_file()
    )


def python_pipelines(folder: Path) -> tuple[list[Pipeline], list[Problem]]:
    """The DAGs of a folder's Python files; the files that cannot be loaded, and tables that cannot be made."""
    from airflow.dag_processing.dagbag import DagBag

    with _loading(folder):
        bag = DagBag(dag_folder=str(folder), bundle_path=folder, safe_mode=True)
    failed = [
        Problem(
            name,
            START,
            (),
            f"Airflow cannot load it ({_last_line(error)}); lint knows nothing of its DAGs",
            "warning",
        )
        for name, error in sorted(bag.import_errors.items())
    ]
    dags = [dag for _, dag in sorted(bag.dags.items())]
    pipelines = [_pipeline(dag, folder) for dag in dags]
    misfits = [
        problem
        for dag, pipeline in zip(dags, pipelines, strict=True)
        for problem in _column_problems(dag, pipeline)
    ]
    return pipelines, [*failed, *misfits]


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """With the folder's modules at hand, without its YAML pipelines, and with nothing on standard output."""
    path = list(sys.path)
    os.environ[SILENT] = "1"
    sys.path.append(str(folder))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = path
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
    """What the `create` of a DAG's tasks says otherwise than its schema."""
    from airflow_provider_opal.templates.yaml.lint.columns import column_findings

    for task in _writers(dag):
        create = task.arguments.get("create")
        if isinstance(create, Mapping):
            for way, what in column_findings(create):
                at = (dag.dag_id, task.task_id, "create", *way)
                yield Problem(pipeline.file, pipeline.position, at, what)


def _tables(condition: Any) -> Iterator[TableOf]:
    """The lake's tables among the assets; those of versions have keys of their own."""
    for name in asset_uris(condition):
        uri = urlsplit(name)
        if uri.scheme == "opal" and not uri.path.endswith("/versions"):
            yield TableOf(uri.path.lstrip("/"), uri.netloc)


def asset_uris(condition: Any) -> list[str]:
    """Of the assets in `a & (b | c)`."""
    if condition is None:
        return []
    inner = getattr(condition, "objects", None)
    if inner is not None:
        return sorted({uri for part in inner for uri in asset_uris(part)})
    return [condition.uri] if hasattr(condition, "uri") else []


def _position(path: Path, dag_id: str) -> Position:
    """The first line that names it."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return START
    pattern = re.compile(rf"[\"']{re.escape(dag_id)}[\"']")
    return next(
        (
            Position(number, match.start() + 1)
            for number, line in enumerate(lines, 1)
            if (match := pattern.search(line))
        ),
        START,
    )


def _last_line(error: str) -> str:
    return next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")
