"""The Airflow guide's examples as files of a DAG folder."""

from pathlib import Path

from tests.docs.examples import example_with, page_text, with_places

PAGE = "docs/airflow.md"


def write_examples(folder: Path, places: dict[str, str]) -> None:
    """The pipeline in Python, the one in YAML with its loader, the mapped operators, and the consumer's function.

    `places` replace the paths that the guide names. Both pipelines are the same one: they get names and tables of their own,
    guide_python and guide_yaml.
    """
    text = page_text(PAGE)
    assert not [there for there in places if there not in text], f"{PAGE} names other places"
    pipeline, yaml, loader, mapped, function = (
        with_places(example_with(PAGE, part).text, places)
        for part in (
            "opal_dag(",
            "version: 1",
            "load_yaml_dags(__file__)",
            "IngestOperator.partial(",
            "def revenue",
        )
    )
    (folder / "guide_dags.py").write_text(
        pipeline.replace('"orders"', '"guide_python"').replace("shop.orders", "guide.python")
    )
    (folder / "guide.opal.yaml").write_text(
        yaml.replace("  orders:", "  guide_yaml:").replace("shop.orders", "guide.yaml")
    )
    (folder / "guide_load.py").write_text(loader)
    (folder / "guide_mapped.py").write_text(mapped)
    (folder / "guide_jobs.py").write_text(function)
