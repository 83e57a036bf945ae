"""YAML files, and what reads them, for the tests of this folder."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from airflow_provider_opal.templates.yaml.files import read_yaml
from airflow_provider_opal.templates.yaml.schema import PUBLISHED
from airflow_provider_opal.templates.yaml.text.problem import Problem

ROOT = Path(__file__).parents[4]
DATA = Path(__file__).with_name("yaml")
# One pipeline, with as few keys as possible
GOOD = (DATA / "good.opal.yaml").read_text(encoding="utf-8")
# Pipelines that use every key at least once
ALL_KEYS = (DATA / "all_keys.opal.yaml").read_text(encoding="utf-8")
LOADER = (ROOT / "dags" / "load_yaml.py").read_text(encoding="utf-8")

SCHEMA: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
# jsonschema.validate would check the schema each time
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


class EditorLoader(yaml.SafeLoader):
    """A loader that reads dates as texts, as editors do."""


for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    EditorLoader.yaml_implicit_resolvers[first] = [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")
    ]


def read_as_editor(text: str) -> Any:
    return yaml.load(text, Loader=EditorLoader)


def problems_of(text: str | bytes, folder: Path, name: str = "shop.opal.yaml") -> list[Problem]:
    """Return the problems of a text, written as a file into a folder."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path, folder).problems
