"""The JSON Schema of the YAML files, for editors.

`opal-v1.schema.json` next to this module is generated from the models.
"""

import json
from pathlib import Path
from typing import Any

from airflow_provider_opal.templates.yaml.models.version_1 import VERSION, FileModel
from airflow_provider_opal.templates.yaml.text.problem import KINDS

PUBLISHED = Path(__file__).with_name(f"opal-v{VERSION}.schema.json")


def schema_text() -> str:
    """Return the schema as it is published."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"


def file_schema() -> dict[str, Any]:
    """Return the schema of a whole file."""
    schema = FileModel.model_json_schema(by_alias=True)
    schema["required"].remove("dags")
    schema["anyOf"] = [{"required": [name]} for name in KINDS]
    cleaned = _closed(schema)
    assert isinstance(cleaned, dict)
    for name in ("title", "description"):
        cleaned.pop(name, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://pypi.org/project/airflow-provider-opal/{PUBLISHED.name}",
        "title": f"Opal pipelines, version {VERSION}",
        "description": "Pipelines of an Opal lake. `opal dag lint` checks more than a schema can.",
        **cleaned,
        "patternProperties": {"^x-": {"description": "Your own keys, for anchors and aliases."}},
    }


def _closed(part: Any) -> Any:
    """Return a part of the schema without the titles, which only repeat names.

    A mapping whose keys have a pattern allows no other keys.
    """
    if isinstance(part, list):
        return [_closed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    closed = {name: _closed(inner) for name, inner in part.items()}
    # A property may have the name "title": then it is a mapping
    if isinstance(closed.get("title"), str):
        del closed["title"]
    if "patternProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
