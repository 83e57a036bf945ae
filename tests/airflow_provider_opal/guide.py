"""The Airflow guide's examples as files of a DAG folder."""

from pathlib import Path

from tests.docs.build import example_with, page_text, with_places

PIPELINE = "docs/tutorials/pipeline.md"
CONSUMERS = "docs/how-to/consumers.md"
OPERATORS = "docs/how-to/operators.md"
BACKFILLS = "docs/how-to/backfills.md"
FOREIGN_TABLES = "docs/how-to/foreign-tables.md"
# Each file of the DAG folder: its page, and a part that only its example has
_EXAMPLES = {
    "pipeline": (PIPELINE, "opal_dag("),
    "yaml": (PIPELINE, "version: 1"),
    "loader": (PIPELINE, "load_yaml_dags(__file__)"),
    "mapped": (OPERATORS, "IngestOperator.partial("),
    "function": (PIPELINE, "def revenue"),
}


def write_examples(folder: Path, places: dict[str, str]) -> None:
    """Write the guide's pipelines, mapped operators, and the consumer's function.

    `places` replace the paths that the guide names. Both pipelines are the same one: they get
    names and tables of their own, guide_python and guide_yaml.
    """
    named_pages = {page for page, _ in _EXAMPLES.values()}
    pages = "".join(page_text(page) for page in named_pages)
    assert not [path for path in places if path not in pages], "the pages name other paths"
    texts = {
        name: with_places(example_with(page, part).text, places)
        for name, (page, part) in _EXAMPLES.items()
    }
    (folder / "guide_dags.py").write_text(
        texts["pipeline"]
        .replace('"orders"', '"guide_python"')
        .replace("shop.orders", "guide.python")
    )
    (folder / "guide.opal.yaml").write_text(
        texts["yaml"].replace("  orders:", "  guide_yaml:").replace("shop.orders", "guide.yaml")
    )
    (folder / "guide_load.py").write_text(texts["loader"])
    (folder / "guide_mapped.py").write_text(texts["mapped"])
    (folder / "guide_jobs.py").write_text(texts["function"])
