"""`load_yaml_dags(__file__)`: a DAG file of one line that makes the DAGs of `*.opal.yaml` files.

The files are in the folder of the DAG file and below. If a YAML file can be read to its end, only
its faulty pipelines are missing. All problems of a YAML file become one import error. If two
pipelines have the same id, the first one counts, in the order of the files' names.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context
from airflow.sdk.definitions._internal.contextmanager import DagContext

from airflow_provider_opal.templates.yaml.broken import register_broken
from airflow_provider_opal.templates.yaml.build import (
    build_dag,
    build_mutation,
    build_script,
    derived_ids,
)
from airflow_provider_opal.templates.yaml.files import YamlFile, found_files, read_yaml
from airflow_provider_opal.templates.yaml.text.problem import Problem, shown

# The environment variable that is set while `opal dag lint` loads the Python files of a folder
SILENT = "_OPAL_YAML_LOADER_SILENT"
_MAX_REASON_CHARACTERS = 500


def load_yaml_dags(path: str | os.PathLike[str]) -> list[DAG]:
    """Make the DAGs of all YAML files in a folder and below.

    They are registered with Airflow. `path` is the folder, or a file in it, such as `__file__`. A
    worker that runs a task of one DAG gets only the pipeline of this DAG.
    """
    if os.environ.get(SILENT):
        return []
    folder = Path(os.path.abspath(path))
    if folder.is_file():
        folder = folder.parent
    only_id = get_parsing_context().dag_id
    files = distinct(read_yaml(yaml_path, folder) for yaml_path in found_files(folder))
    if only_id is not None:
        return _pipeline_dags(files, only_id)
    dags, broken = [], []
    for file in files:
        dags += built(file)
        if file.problems:
            broken.append(file)
    all_problems = []
    for file in broken:
        all_problems += file.problems
    for file in broken:
        register_broken(file.path, file.problems, all_problems)
    return dags


def distinct(files: Iterable[YamlFile]) -> Iterator[YamlFile]:
    """Yield the files, without the pipelines whose ids an earlier pipeline has."""
    origins: dict[str, str] = {}  # of each id, as file and line
    for file in files:
        pipelines = [(dag_id, derived_ids(dag_id, dag)) for dag_id, dag in file.dags.items()]
        pipelines += [(dag_id, [dag_id]) for dag_id in (*file.mutations, *file.scripts)]
        for dag_id, ids in pipelines:
            repeated = [derived for derived in ids if derived in origins]
            if repeated:
                origin = origins[repeated[0]]
                what = f"the DAG {repeated[0]!r} is already made in {origin}; choose another id"
                file.problems.append(file.problem(dag_id, what))
                file.drop(dag_id)
            else:
                origin = f"{shown(file.name)}:{file.position(dag_id).line}"
                origins |= dict.fromkeys(ids, origin)
        yield file


def _pipeline_dags(files: Iterable[YamlFile], only_id: str) -> list[DAG]:
    for file in files:
        for dag_id, dag in file.dags.items():
            if only_id in derived_ids(dag_id, dag):
                return built(file, only=dag_id)
        if only_id in file.mutations or only_id in file.scripts:
            return built(file, only=only_id)
    return []


def built(file: YamlFile, only: str | None = None) -> list[DAG]:
    """Return the main DAGs of a file's pipelines.

    A DAG that Airflow rejects becomes a problem of the file.
    """
    dags = []
    builders: dict[str, Callable[[], DAG]] = {}
    for dag_id, dag in file.dags.items():
        builders[dag_id] = partial(build_dag, dag_id, dag)
    for dag_id, mutation in file.mutations.items():
        builders[dag_id] = partial(build_mutation, dag_id, mutation)
    for dag_id, script in file.scripts.items():
        builders[dag_id] = partial(build_script, dag_id, script, file.path.parent)
    for dag_id, build in builders.items():
        if only is not None and dag_id != only:
            continue
        before = set(DagContext.autoregistered_dags)
        try:
            dags.append(build())
        except Exception as error:  # noqa: BLE001  # a rejected pipeline must not hide the others
            # A DAG is registered even if its body fails
            DagContext.autoregistered_dags.intersection_update(before)
            file.problems.append(_refused(file, dag_id, error))
    return dags


@contextmanager
def registered() -> Iterator[set[DAG]]:
    """Collect the DAGs that are made in a block, in the way of Airflow's importer."""
    dags: set[DAG] = set()
    before = DagContext.autoregistered_dags, DagContext.current_autoregister_module_name
    DagContext.autoregistered_dags, DagContext.current_autoregister_module_name = set(), __name__
    try:
        yield dags
        dags |= {dag for dag, _ in DagContext.autoregistered_dags}
    finally:
        DagContext.autoregistered_dags, DagContext.current_autoregister_module_name = before


def _refused(file: YamlFile, dag_id: str, error: Exception) -> Problem:
    reason = shown(str(error) or type(error).__name__, _MAX_REASON_CHARACTERS)
    what = f"Airflow rejects the pipeline ({reason}); correct that argument, or remove it"
    return file.problem(dag_id, what)
