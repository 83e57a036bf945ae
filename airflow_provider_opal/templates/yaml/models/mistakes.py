"""Pydantic's errors as problems: the position, the fact, and what to write."""

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_opal.templates.yaml.models.values import type_name
from airflow_provider_opal.templates.yaml.models.version_1 import DagModel, FileModel
from airflow_provider_opal.templates.yaml.text.problem import (
    Keys,
    Problem,
    listed,
    near_name,
    shown,
)
from airflow_provider_opal.templates.yaml.text.reader import Document

_KEY = "[key]"  # pydantic's mark of a mapping's key
_WORDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_TRUTHS = {
    "yes": "true",
    "on": "true",
    "y": "true",
    "true": "true",
    "no": "false",
    "off": "false",
    "n": "false",
    "false": "false",
}


def explained(
    error: ValidationError, document: Document, model: type[BaseModel] = FileModel, at: Keys = ()
) -> list[Problem]:
    """Return the problems of pydantic's errors, in the order of the file."""
    details = error.errors(include_url=False)
    problems = set()
    for detail in details:
        if not _is_echo(detail, details):
            problems.add(_problem(detail, document, model, at))
    return sorted(problems, key=lambda problem: (problem.position, problem.at, problem.what))


def _is_echo(error: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Return whether a key is missing only because it was misspelt.

    The misspelt key is reported, so the missing one is not reported again.
    """
    if error["type"] != "missing":
        return False
    name = str(error["loc"][-1])
    for other in details:
        is_unknown = other["type"] == "extra_forbidden"
        if not is_unknown or other["loc"][:-1] != error["loc"][:-1]:
            continue
        if near_name(str(other["loc"][-1]), [name]):
            return True
    return False


def _problem(
    error: ErrorDetails, document: Document, model: type[BaseModel], base: Keys
) -> Problem:
    loc = error["loc"]
    at = base + tuple(part for part in loc if not str(part).startswith(("(", _KEY)))
    if error["type"] == "extra_forbidden":
        what = _unknown(str(at[-1]), known_names(model, loc[:-1]))
        return Problem("", document.key_position(at), at, what)
    if error["type"] == "missing":
        # The position is the mapping to which the key has to be added
        return Problem("", document.key_position(at[:-1]), at, f"is missing; add {example(loc)}")
    is_of_key = loc[-1:] == (_KEY,)
    if is_of_key:
        return Problem("", document.key_position(at), at, _fact(error))
    return Problem("", document.position(at), at, _fact(error))


def _fact(error: ErrorDetails) -> str:
    """Return the message of an error: the fact, and what to write."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if kind == "literal_error":
        expected = str(context["expected"]).replace(" or ", ",").split(",")
        choices = [choice.strip(" '") for choice in expected]
        return f"{_value_text(value)} is unknown here; {_choice(value, choices)}"
    if kind in _WORDS:
        return _wrong_type(kind, value, error["loc"])
    if kind in ("too_short", "string_too_short"):
        return f"the value is empty; write {example(error['loc'], value_only=True)}"
    if kind == "too_long":
        actual, allowed = context.get("actual_length"), context.get("max_length")
        return f"the list has {actual} members; write at most {allowed}"
    if kind == "string_too_long":
        allowed = context.get("max_length")
        return f"the text has more than {allowed} characters; write a shorter one"
    if kind == "greater_than_equal":
        return f"{_value_text(value)} is out of range; write at least {context['ge']}"
    if kind == "less_than_equal":
        return f"{_value_text(value)} is out of range; write at most {context['le']:,}"
    return f"{error['msg']}; `opal dag schema` shows the allowed values"


def _wrong_type(kind: str, value: Any, loc: Keys) -> str:
    expected = _WORDS[kind]
    if value is None:
        return (
            f"{expected} is needed, but the value is missing; "
            f"write {example(loc, value_only=True)}, or remove the key"
        )
    fact = f"{expected} is needed, not {_value_text(value)}"
    if kind == "bool_type":
        truth = _TRUTHS.get(str(value).casefold())
        hint = f"{truth} without quotes" if truth else "true or false"
        return f"{fact}; write {hint}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{fact}; put it into quotes: '{json.dumps(value)}'"
    if kind == "list_type" and isinstance(value, str):
        return f"{fact}; write [{value}]"
    if kind == "int_type" and isinstance(value, str) and value.replace("_", "").isdecimal():
        return f"{fact}; write {int(value)} without quotes"
    return f"{fact}; write {example(loc, value_only=True)}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if value is None:
        return "nothing"
    return f"{type_name(value)} {shown(json.dumps(value, ensure_ascii=False), 40)}"


def _choice(value: Any, known: list[str]) -> str:
    if len(known) == 1:
        return f"write {known[0]}"
    near = near_name(value, known) if isinstance(value, str) else None
    return near or f"use one of {listed(known)}"


def _unknown(name: str, known: list[str]) -> str:
    fact = f"the key {shown(name)!r} is unknown here"
    near = near_name(name, known)
    if near:
        return f"{fact}; {near}"
    for parent, model in _elsewhere():
        if name in _fields(model):
            owner = f"'{parent}:'" if parent else "a pipeline"
            return f"{fact}; it belongs under {owner}"
    if len(known) > _MAX_NAMES_LISTED:
        return f"{fact}; remove the key, or use one that `opal dag schema` lists"
    return f"{fact}; use one of {listed(known)}"


def _elsewhere() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the models of a pipeline's keys with the key of each; "" for the pipeline."""
    yield "", DagModel
    for name, field in DagModel.model_fields.items():
        for model in _models(field.annotation):
            yield name, model


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def known_names(model: type[BaseModel], loc: Keys) -> list[str]:
    """Return the keys that are allowed at a location."""
    names: list[str] = []
    for reached in _reached(model, loc):
        names += _fields(reached)
    return names


def _reached(start: Any, loc: Keys) -> list[type[BaseModel]]:
    """Return the models at a location that pydantic has named in an error."""
    kinds: list[Any] = [start]
    for part in loc:
        if str(part).startswith("("):
            continue  # the tag of a union
        inner_kinds = []
        for kind in kinds:
            inner_kinds += _step(kind, part)
        kinds = inner_kinds
    models = []
    for kind in kinds:
        models += _models(kind)
    return models


def _step(kind: Any, part: str | int) -> list[Any]:
    """Return the types below a type by a key, or by the number of an item."""
    annotations = []
    for model in _models(kind):
        field = _fields(model).get(str(part))
        if field is not None:
            annotations.append(field.annotation)
    if annotations:
        return annotations
    return [inner for inner in _parts(kind) if get_args(inner) or isinstance(inner, type)]


def _parts(kind: Any) -> list[Any]:
    """Return the types in a mapping, a list or a union, however deep."""
    models = []
    for inner in get_args(kind):
        if isinstance(inner, type) or get_args(inner):
            models += [inner, *_parts(inner)]
    return models


def _models(kind: Any) -> list[type[BaseModel]]:
    """Return the models among a type and the members of its union."""
    types = [member for member in (kind, *_direct(kind)) if isinstance(member, type)]
    return [member for member in types if issubclass(member, BaseModel)]


def _direct(kind: Any) -> list[Any]:
    """Return the members of a union or an annotation, not of a mapping or list."""
    if getattr(kind, "__origin__", None) in (dict, list):
        return []
    members = []
    for inner in get_args(kind):
        members += [inner, *_direct(inner)]
    return members


# Examples of the values of keys
_EXAMPLES = {
    "version": "1",
    "dags": "{orders: {...}}",
    "mutations": "{products: {...}}",
    "scripts": "{corrections: {...}}",
    "sql": '"sql/corrections.sql"',
    "args": '{day: "{{ partition_key }}"}',
    "master": '"/lake/product/master"',
    "increments": '"/lake/product/incr"',
    "ids": "[id]",
    "table": "shop.orders",
    "name": "shop.orders",
    "keys": "[order_id]",
    "delta": "updated_at",
    "source": '{files: "s3a://in/orders/{{ partition_key }}/*.json"}',
    "files": '"s3a://in/orders/{{ partition_key }}/*.json"',
    "paths": '["s3a://in/orders/*.json"]',
    "url": "jdbc:postgresql://host:5432/database",
    "schedule": '"@daily"',
    "start_date": "2026-11-01",
    "consumers": '{revenue: {function: "shop.jobs:revenue"}}',
    "function": '"shop.jobs:revenue"',
    "defaults": "{retries: 3}",
    "maintenance": "{window: 30d, zorder: [customer_id]}",
    "zorder": "[customer_id, created_at]",
    "spark": "{executor_memory: 4g}",
    "conf": "{spark.sql.shuffle.partitions: 200}",
    "tags": "[shop]",
    "wait_for": '{table: shop.raw, partition: ["{{ partition_key }}"]}',
    "partition": '["{{ partition_key }}"]',
    "timeout": "1d",
    "retries": "3",
}
# Examples of a member of a mapping whose keys are names
_MEMBERS: dict[str | None, str] = {
    "dags": "a pipeline: {table: ..., source: ..., schedule: ..., start_date: ...}",
    "mutations": (
        "a mutation: {master: ..., increments: ..., ids: [id], schedule: ..., start_date: ...}"
    ),
    "scripts": "a script: {sql: corrections.sql, schedule: ..., start_date: ...}",
    "consumers": "{function: shop.jobs:revenue}",
}
# Examples of values that may have several forms
_WHOLE = {
    "maintenance": "true or {window: 30d, zorder: [customer_id]}",
    "schedule": '"@daily", null or {table: shop.raw}',
    "table": "shop.orders or {name: shop.orders, ...}",
}
# A message lists no more known names than these
_MAX_NAMES_LISTED = 12


def example(loc: Keys, *, value_only: bool = False) -> str:
    """Return an example of a key and its value, or of the value only."""
    texts = [part for part in loc if isinstance(part, str)]
    names = [text for text in texts if not text.startswith(("(", _KEY))]
    name = names[-1] if names else "version"
    if not value_only:
        return f"'{name}: {_EXAMPLES.get(name, '...')}'"
    around = names[-2] if len(names) > 1 else None
    if around in _MEMBERS:
        return _MEMBERS[around]
    if isinstance(loc[-1], int):
        return "a name"
    return _WHOLE.get(name) or _EXAMPLES.get(name, "a value")
