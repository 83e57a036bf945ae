"""README's examples as files of a DAG folder."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOADER = "from airflow_provider_opal import load_yaml_dags\n\nload_yaml_dags(__file__)\n"


def write_examples(folder: Path, places: dict[str, str]) -> None:
    """The pipeline in Python, the one in YAML, and the consumer's function; `places` are put for those that README names.

    Both pipelines are the same one: they get names and tables of their own, readme_python and readme_yaml.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = text[text.index("## With Airflow") :]
    for there, here in places.items():
        assert there in text, f"README does not name {there}"
        text = text.replace(there, here)
    found = {language: re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for language in ("python", "yaml")}
    [pipeline] = [block for block in found["python"] if "opal_dag(" in block]
    [function] = [block for block in found["python"] if "def revenue" in block]
    [yaml] = found["yaml"]
    (folder / "readme_dags.py").write_text(pipeline.replace('"orders"', '"readme_python"').replace("shop.orders", "readme.python"))
    (folder / "readme.opal.yaml").write_text(yaml.replace("  orders:", "  readme_yaml:").replace("shop.orders", "readme.yaml"))
    (folder / "readme_jobs.py").write_text(function)
    (folder / "readme_load.py").write_text(LOADER)
