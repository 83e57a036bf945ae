"""The page of the YAML files, from the published JSON Schema."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA = (
    Path(__file__).parents[2]
    / "airflow_provider_opal"
    / "templates"
    / "yaml"
    / "opal-v1.schema.json"
)
SPAN = "[wdhms]"
KINDS = {
    "string": "text",
    "integer": "number",
    "boolean": "`true` or `false`",
    "array": "list",
    "object": "mapping",
    "number": "number",
}
ANY = "NAME"  # stands for a name that the user chooses
DEFAULTS = "defaults"

Schema = Mapping[str, Any]


def page() -> str:
    """Return the reference: a section for each model, the defaults last."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    titles = {"": "Top level"}
    models = {"": schema}
    for name, path in paths(schema).items():
        titles[name] = f"`{path}`"
        models[name] = schema["$defs"][name]
    model_of_title = {title: name for name, title in titles.items()}
    common = models.pop(model_of_title[f"`{DEFAULTS}`"])["properties"]
    lines: list[str] = []
    for name, model in models.items():
        lines += _section(titles[name], model, titles)
    # Only the model of a pipeline has all keys of the defaults
    [pipeline] = [name for name, model in models.items() if _has_all_keys(model, common)]
    keys = ", ".join(f"`{name}`" for name in common)
    link = _link(titles[pipeline])
    lines += [
        f"### `{DEFAULTS}`",
        "",
        f"Keys for all pipelines of the file: {keys}. See {link} for their meanings.",
    ]
    return "\n".join(lines)


def _has_all_keys(model: Schema, keys: Schema) -> bool:
    return bool(model["properties"].items() >= keys.items())


def paths(schema: Schema) -> dict[str, str]:
    """Return the path of each model in a file, such as `dags.NAME.table`.

    Of several paths the shortest one counts, and a path outside of the defaults first.
    """
    paths_of_models: dict[str, str] = {}
    queue = [("", schema)]
    while queue:
        path, model = min(queue, key=lambda entry: _path_order(entry[0]))
        queue.remove((path, model))
        for name, value in model["properties"].items():
            for model_name, below in _models(value, f"{path}.{name}".removeprefix(".")):
                if model_name not in paths_of_models:
                    paths_of_models[model_name] = below
                    queue.append((below, schema["$defs"][model_name]))
    return paths_of_models


def _path_order(path: str) -> tuple[bool, int]:
    return path.startswith(DEFAULTS), path.count(".")


def _models(value: Schema, path: str) -> Iterator[tuple[str, str]]:
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], path
    for choice in _choices(value):
        yield from _models(choice, path)
    for named in value.get("patternProperties", {}).values():
        yield from _models(named, f"{path}.{ANY}")


def _choices(value: Schema) -> list[Schema]:
    return [*value.get("anyOf", ()), *value.get("oneOf", ())]


def _section(title: str, model: Schema, titles: Mapping[str, str]) -> Iterator[str]:
    yield from (f"### {title}", "")
    if title != titles[""]:
        yield from (model.get("description", ""), "")
    yield from ("| key | value | default | meaning |", "|---|---|---|---|")
    for name, value in model["properties"].items():
        required = " (required)" if name in model.get("required", ()) else ""
        kinds = list(dict.fromkeys(_kinds(value, titles)))
        # A default of null says already that null is allowed
        if "null" in kinds and value.get("default", "") is None:
            kinds.remove("null")
        meaning = _cell(value.get("description", ""))
        yield f"| `{name}`{required} | {' or '.join(kinds)} | {_default(value)} | {meaning} |"
    yield ""


def _kinds(value: Schema, titles: Mapping[str, str]) -> Iterator[str]:
    for choice in _choices(value):
        yield from _kinds(choice, titles)
    if "$ref" in value:
        yield _link(titles[value["$ref"].rpartition("/")[2]])
    elif "enum" in value:
        yield " or ".join(f"`{choice}`" for choice in value["enum"])
    elif "const" in value:
        yield f"`{value['const']}`"
    elif "patternProperties" in value:
        for named in value["patternProperties"].values():
            yield f"{ANY}: {'; '.join(_kinds(named, titles))}"
    elif value.get("type") == "null":
        yield "null"
    elif isinstance(value.get("type"), list):
        yield " or ".join(KINDS[kind] for kind in value["type"])
    elif "type" in value:
        yield _plain(value)


def _plain(value: Schema) -> str:
    kind = "span of time" if SPAN in value.get("pattern", "") else KINDS[value["type"]]
    if "minimum" in value:
        kind += f" from {value['minimum']}"
        if "maximum" in value:
            kind += f" to {value['maximum']}"
    if "maxItems" in value:
        kind += f" of at most {value['maxItems']}"
    return kind


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None:
        return ""
    if not isinstance(default, str):
        return f"`{json.dumps(default)}`"
    # ISO 8601, as `PT30M`; in the YAML it is written `30m`
    span = re.fullmatch(r"PT(\d+)([HMS])", default)
    if span is None:
        return f"`{default}`"
    return f"`{span[1]}{span[2].lower()}`"


def _link(title: str) -> str:
    return f"[{title}](#{anchor(title)})"


def anchor(title: str) -> str:
    """Return the anchor that the site's markdown makes of a heading."""
    return re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{{", "&#123;&#123;")
