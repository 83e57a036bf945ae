"""The published JSON schema is made from the models, and accepts what they accept."""

from dataclasses import fields

import jsonschema
import pytest

from airflow_provider_opal.templates.yaml.models.sources import FilesModel
from airflow_provider_opal.templates.yaml.models.version_1 import DagModel, Options
from airflow_provider_opal.templates.yaml.schema import PUBLISHED, schema_text
from airflow_provider_opal.templates.yaml.starter import starter
from opal_lake.source import Files
from tests.airflow_provider_opal.templates.yaml.build import (
    ALL_KEYS,
    GOOD,
    ROOT,
    SCHEMA,
    VALIDATOR,
    read_as_editor,
)


def test_the_published_schema_is_that_of_the_models() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), (
        "generate it again: opal dag schema > ..."
    )


def test_files_have_the_same_fields_in_yaml_as_in_python() -> None:
    assert [*FilesModel.model_fields] == [member.name for member in fields(Files)]


def test_the_schema_is_a_valid_schema() -> None:
    assert SCHEMA["$schema"] == VALIDATOR.META_SCHEMA["$schema"]
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        ALL_KEYS,
        starter("orders"),
        (ROOT / "dags" / "shop.opal.yaml").read_text(encoding="utf-8"),
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(text: str) -> None:
    VALIDATOR.validate(read_as_editor(text))
    VALIDATOR.validate(read_as_editor("x-anchors: {a: 1}\n" + text))


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
        VALIDATOR.validate(read_as_editor(GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    "value", ["true", "false", "{window: 30d, zorder: [order_id], look_back: 5000}"]
)
def test_the_schema_accepts_maintenance_as_the_loader_does(value: str) -> None:
    VALIDATOR.validate(
        read_as_editor(GOOD.replace("    source:", f"    maintenance: {value}\n    source:", 1))
    )


def test_every_key_has_a_description() -> None:
    without = []
    for model, body in {"file": SCHEMA, **SCHEMA["$defs"]}.items():
        for name, part in body.get("properties", {}).items():
            if not part.get("description"):
                without.append(f"{model}.{name}")
    assert not without


def test_every_default_is_also_a_key_of_a_pipeline() -> None:
    assert set(Options.model_fields) < set(DagModel.model_fields)
