"""The published JSON schema: made from the models, and of one mind with them."""

import json
from dataclasses import fields
from typing import Any

import jsonschema
import pytest
import yaml

from airflow_provider_opal.templates.yaml.models.sources import FilesModel
from airflow_provider_opal.templates.yaml.models.version_1 import DagModel, Options
from airflow_provider_opal.templates.yaml.schema import PUBLISHED, schema_text
from airflow_provider_opal.templates.yaml.starter import starter
from opal_lake.source import Files
from tests.airflow_provider_opal.templates.yaml.test_loader import ALL_SAID, GOOD, ROOT

SCHEMA: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(
    SCHEMA
)  # jsonschema.validate would check the schema each time


class Editor(yaml.SafeLoader):
    """Reads dates as texts, as editors do."""


Editor.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(text: str) -> Any:
    return yaml.load(text, Loader=Editor)


def test_the_published_schema_is_that_of_the_models() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), (
        "write it again: opal dag schema > ..."
    )


def test_files_are_said_in_yaml_as_in_python() -> None:
    assert [*FilesModel.model_fields] == [member.name for member in fields(Files)]


def test_the_schema_is_a_schema() -> None:
    assert SCHEMA["$schema"] == VALIDATOR.META_SCHEMA["$schema"]
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        ALL_SAID,
        starter("orders"),
        (ROOT / "dags" / "shop.opal.yaml").read_text(encoding="utf-8"),
    ],
)
def test_the_schema_takes_what_the_loader_takes(text: str) -> None:
    VALIDATOR.validate(read(text))
    VALIDATOR.validate(read("x-anchors: {a: 1}\n" + text))


@pytest.mark.parametrize(
    "old, new",
    [
        ("version: 1", "version: 2"),
        ("version: 1", ""),
        ("schedule:", "schedul:"),
        ("  orders:", "  shop/orders:"),
        ("retries: 3", "retries: '3'"),
        ("2026-11-01", "01/11/2026"),
        ("[order_id]", "order_id"),
        ("[order_id]", "[]"),
        ('"shop.jobs:revenue"', "revenue"),
        ("revenue:", "a/b:"),
        ("    source:", "    maintenance: {window: 30}\n    source:"),
        ("    source:", "    maintenance: daily\n    source:"),
        ("    source:", "    maintenance: {zorder: [a, b, c, d, e, f, g, h, i]}\n    source:"),
        ("    source:", "    retry_delay: 5\n    source:"),
        ("    source:", "    on_empty: skip\n    source:"),
        ("    source:", "    spark: {post_submit_commands: [x]}\n    source:"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(read(GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    "said", ["true", "false", "{window: 30d, zorder: [order_id], look_back: 5000}"]
)
def test_the_schema_takes_maintenance_as_the_loader_does(said: str) -> None:
    VALIDATOR.validate(
        read(GOOD.replace("    source:", f"    maintenance: {said}\n    source:", 1))
    )


def test_every_argument_says_what_it_is_for() -> None:
    silent = [
        f"{model}.{name}"
        for model, body in {"file": SCHEMA, **SCHEMA["$defs"]}.items()
        for name, part in body.get("properties", {}).items()
        if not part.get("description")
    ]
    assert not silent


def test_what_can_be_said_for_all_pipelines_can_be_said_for_one() -> None:
    assert set(Options.model_fields) < set(DagModel.model_fields)
