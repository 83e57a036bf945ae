"""`load_yaml_dags(__file__)`: a DAG file of one line that makes the DAGs of all `*.opal.yaml` files beside it and below.

Of a file that can be read to its end only the faulty pipelines are missing, and the others live on. What is wrong becomes an import error
of the YAML file, one a file with all its problems. Of two pipelines with one id the first counts, in the order of the files' names.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context
from airflow.sdk.definitions._internal.contextmanager import DagContext

from airflow_provider_opal.templates.yaml.broken import register_broken
from airflow_provider_opal.templates.yaml.build import build_dag, build_mutation, derived_ids
from airflow_provider_opal.templates.yaml.files import YamlFile, found_files, read_yaml
from airflow_provider_opal.templates.yaml.text.problem import Problem, shown

SILENT = (
    "_OPAL_YAML_LOADER_SILENT"  # set while `opal dag lint` looks at the Python files of a folder
)


def load_yaml_dags(path: str | os.PathLike[str]) -> list[DAG]:
    """Make the DAGs of all YAML files in a folder and below it, and register them with Airflow. Of a file, such as `__file__`, its folder.

    A worker that runs a task of one DAG gets only the pipeline of this DAG.
    """
    if os.environ.get(SILENT):
        return []
    folder = Path(os.path.abspath(path))
    folder = folder.parent if folder.is_file() else folder
    only_id = get_parsing_context().dag_id
    files = distinct(read_yaml(yaml_path, folder) for yaml_path in found_files(folder))
    if only_id is not None:
        return _pipeline_dags(files, only_id)
    made, broken = [], []
    for file in files:
        made += built(file)
        if file.problems:
            broken.append(file)
    everything = [problem for file in broken for problem in file.problems]
    for file in broken:
        register_broken(file.path, file.problems, everything)
    return made


def distinct(files: Iterable[YamlFile]) -> Iterator[YamlFile]:
    """The files, without pipelines whose ids exist already."""
    made_in: dict[str, str] = {}
    for file in files:
        for dag_id, ids in [
            *((one, derived_ids(one, dag)) for one, dag in file.dags.items()),
            *((one, [one]) for one in file.mutations),
        ]:
            here = f"{shown(file.name)}:{file.position(dag_id).line}"
            if clash := [derived for derived in ids if derived in made_in]:
                what = f"the DAG {clash[0]!r} is made in {made_in[clash[0]]} already; choose another id"
                file.problems.append(file.problem(dag_id, what))
                file.drop(dag_id)
            else:
                made_in |= dict.fromkeys(ids, here)
        yield file


def _pipeline_dags(files: Iterable[YamlFile], only_id: str) -> list[DAG]:
    for file in files:
        for dag_id, dag in file.dags.items():
            if only_id in derived_ids(dag_id, dag):
                return built(file, only=dag_id)
        if only_id in file.mutations:
            return built(file, only=only_id)
    return []


def built(file: YamlFile, only: str | None = None) -> list[DAG]:
    """The main DAGs of a file's pipelines; those that Airflow does not take become problems."""
    made = []
    builders = {dag_id: partial(build_dag, dag_id, dag) for dag_id, dag in file.dags.items()}
    builders |= {
        dag_id: partial(build_mutation, dag_id, mutation)
        for dag_id, mutation in file.mutations.items()
    }
    for dag_id, build in builders.items():
        if only is not None and dag_id != only:
            continue
        before = set(DagContext.autoregistered_dags)
        try:
            made.append(build())
        except Exception as error:  # noqa: BLE001  # whatever Airflow has against one pipeline must not hide the others
            DagContext.autoregistered_dags.intersection_update(
                before
            )  # a DAG is registered even when its body fails
            file.problems.append(_refused(file, dag_id, error))
    return made


@contextmanager
def registered() -> Iterator[set[DAG]]:
    """All DAGs that are made meanwhile, as Airflow's importer finds them."""
    dags: set[DAG] = set()
    before = DagContext.autoregistered_dags, DagContext.current_autoregister_module_name
    DagContext.autoregistered_dags, DagContext.current_autoregister_module_name = set(), __name__
    try:
        yield dags
        dags |= {dag for dag, _ in DagContext.autoregistered_dags}
    finally:
        DagContext.autoregistered_dags, DagContext.current_autoregister_module_name = before


def _refused(file: YamlFile, dag_id: str, error: Exception) -> Problem:
    return file.problem(
        dag_id,
        f"Airflow rejects it: {shown(str(error) or type(error).__name__, 500)}; correct that argument, or leave it out",
    )
