"""The JSON Schema of the YAML files, for editors: `opal-v1.schema.json` beside this module, generated from the models."""

import json
from pathlib import Path
from typing import Any

from airflow_provider_opal.templates.yaml.models.version_1 import VERSION, FileModel
from airflow_provider_opal.templates.yaml.text.problem import KINDS

PUBLISHED = Path(__file__).with_name(f"opal-v{VERSION}.schema.json")


def schema_text() -> str:
    """As it is published."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"


def file_schema() -> dict[str, Any]:
    """Of a whole file."""
    schema = FileModel.model_json_schema(by_alias=True)
    schema["required"].remove("dags")
    schema["anyOf"] = [{"required": [name]} for name in KINDS]
    cleaned = _closed(schema)
    assert isinstance(cleaned, dict)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://pypi.org/project/airflow-provider-opal/{PUBLISHED.name}",
        "title": f"Opal pipelines, version {VERSION}",
        "description": "Pipelines of an Opal lake; `opal dag lint` says more than a schema can.",
        **{name: value for name, value in cleaned.items() if name not in ("title", "description")},
        "patternProperties": {"^x-": {"description": "Your own: anchors to use with aliases."}},
    }


def _closed(part: Any) -> Any:
    """Without the titles that repeat names; a mapping whose keys have a pattern takes no others."""
    if isinstance(part, list):
        return [_closed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    closed = {
        name: _closed(inner)
        for name, inner in part.items()
        if not (name == "title" and isinstance(inner, str))
    }
    if "patternProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
