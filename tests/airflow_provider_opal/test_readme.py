"""README's two pipelines, in Python and in YAML, are the same one. (The cluster's tests run them.)"""

from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

from tests.airflow_provider_opal.readme import write_examples


def test_readme_s_pipelines_in_python_and_in_yaml_are_the_same(tmp_path: Path) -> None:
    write_examples(tmp_path, {})
    bag = DagBag(str(tmp_path))
    assert bag.import_errors == {}
    made = {dag_id: (repr(type(dag.timetable)), [type(task) for task in dag.tasks]) for dag_id, dag in bag.dags.items()}
    for kind in ("", ".revenue", ".reconcile", ".maintenance"):
        assert made.pop(f"readme_python{kind}") == made.pop(f"readme_yaml{kind}")
    assert made == {}
