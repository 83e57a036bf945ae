"""Pydantic's errors as problems: the position, the fact, and what to write."""

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_provider_opal.templates.yaml.models.values import type_name
from airflow_provider_opal.templates.yaml.models.version_1 import DagModel, FileModel
from airflow_provider_opal.templates.yaml.text.problem import Keys, Problem, advice, listed, shown
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
    """All of them, in the order of the file."""
    details = error.errors(include_url=False)
    problems = {
        _problem(detail, document, model, at) for detail in details if not _is_echo(detail, details)
    }
    return sorted(problems, key=lambda problem: (problem.position, problem.at, problem.what))


def _is_echo(error: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """A key that is missing because it was misspelt is one finding, not two."""
    if error["type"] != "missing":
        return False
    around, name = error["loc"][:-1], str(error["loc"][-1])
    misspelt = [
        other
        for other in details
        if other["type"] == "extra_forbidden" and other["loc"][:-1] == around
    ]
    return any(
        advice(str(other["loc"][-1]), [name]).startswith("did you mean") for other in misspelt
    )


def _problem(
    error: ErrorDetails, document: Document, model: type[BaseModel], base: Keys
) -> Problem:
    at = base + tuple(part for part in error["loc"] if not str(part).startswith(("(", _KEY)))
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(
            "",
            document.key_position(at),
            at,
            _unknown(str(at[-1]), known_names(model, error["loc"][:-1])),
        )
    if kind == "missing":
        return Problem(
            "", _owner_position(document, at), at, f"is missing; add {example(error['loc'])}"
        )
    position = document.key_position(at) if error["loc"][-1:] == (_KEY,) else document.position(at)
    return Problem("", position, at, _fact(error))


def _owner_position(document: Document, at: Keys) -> Any:
    """Where somebody would write what is missing: at the key of what it belongs to."""
    return document.key_position(at[:-1])


def _fact(error: ErrorDetails) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if kind == "literal_error":
        known = [
            part.strip(" '") for part in str(context["expected"]).replace(" or ", ",").split(",")
        ]
        return f"{_value_text(value)} is unknown here; {_choice(value, known)}"
    if kind in _WORDS:
        return _wrong_type(kind, value, error["loc"])
    if kind in ("too_short", "string_too_short"):
        return f"it is empty; write {example(error['loc'], value_only=True)}"
    if kind == "too_long":
        return f"it has {context.get('actual_length')} members; write at most {context.get('max_length')}"
    if kind == "string_too_long":
        return f"it is longer than {context.get('max_length')}; write less"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']:,}"
        return f"{_value_text(value)} is out of range; write {bound}"
    return f"{error['msg']}; look it up with `opal dag schema`"


def _wrong_type(kind: str, value: Any, loc: Keys) -> str:
    need = _WORDS[kind]
    if value is None:
        return f"{need} is needed, but there is no value; write {example(loc, value_only=True)}, or take the key out"
    fact = f"{need} is needed, not {_value_text(value)}"
    if kind == "bool_type":
        truth = _TRUTHS.get(str(value).casefold())
        return f"{fact}; write {f'{truth} without quotes' if truth else 'true or false'}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"{fact}; put it into quotes: '{json.dumps(value)}'"
    if kind == "list_type" and isinstance(value, str):
        return f"{fact}; write [{value}]"
    if kind == "int_type" and isinstance(value, str) and value.replace("_", "").isdecimal():
        return f"{fact}; write {int(value)} without quotes"
    return f"{fact}; write {example(loc, value_only=True)}"


def _value_text(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    if value is None:
        return "nothing"
    return f"{type_name(value)} {shown(json.dumps(value, ensure_ascii=False), 40)}"


def _choice(value: Any, known: list[str]) -> str:
    if len(known) == 1:
        return f"write {known[0]}"
    hint = advice(value, known) if isinstance(value, str) else ""
    return hint if hint.startswith("did you mean") else f"use one of {listed(known)}"


def _unknown(name: str, known: list[str]) -> str:
    near = advice(name, known)
    if near.startswith("did you mean"):
        return f"there is no {shown(name)!r} here; {near}"
    places = [
        f"'{parent}:'" if parent else "a pipeline"
        for parent, model in _elsewhere()
        if name in _fields(model)
    ]
    if places:
        return f"there is no {shown(name)!r} here; it belongs under {places[0]}"
    return f"there is no {shown(name)!r} here; {near if len(known) <= _MANY else 'take it out; `opal dag schema` lists the known names'}"


def _elsewhere() -> Iterator[tuple[str, type[BaseModel]]]:
    yield "", DagModel
    for name, field in DagModel.model_fields.items():
        for model in _models(field.annotation):
            yield name, model


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def known_names(model: type[BaseModel], loc: Keys) -> list[str]:
    """The keys that are allowed at a location."""
    return [name for reached in _reached(model, loc) for name in _fields(reached)]


def _reached(start: Any, loc: Keys) -> list[type[BaseModel]]:
    """The models at a location as pydantic names it."""
    kinds: list[Any] = [start]
    for part in loc:
        if str(part).startswith("("):
            continue
        kinds = [inner for kind in kinds for inner in _step(kind, part)]
    return [model for kind in kinds for model in _models(kind)]


def _step(kind: Any, part: str | int) -> list[Any]:
    models = _models(kind)
    named = [
        _fields(model)[str(part)].annotation for model in models if str(part) in _fields(model)
    ]
    if named:
        return named
    return [inner for inner in _parts(kind) if get_args(inner) or isinstance(inner, type)]


def _parts(kind: Any) -> list[Any]:
    """What a mapping, a list or a union holds, however deep it is annotated."""
    models = []
    for inner in get_args(kind):
        if isinstance(inner, type) or get_args(inner):
            models += [inner, *_parts(inner)]
    return models


def _models(kind: Any) -> list[type[BaseModel]]:
    return [
        part
        for part in [kind, *_direct(kind)]
        if isinstance(part, type) and issubclass(part, BaseModel)
    ]


def _direct(kind: Any) -> list[Any]:
    """The members of a union or an annotation, not what a mapping or a list holds."""
    if getattr(kind, "__origin__", None) in (dict, list):
        return []
    return [part for inner in get_args(kind) for part in (inner, *_direct(inner))]


_EXAMPLES = {
    "version": "1",
    "dags": "{orders: {...}}",
    "mutations": "{products: {...}}",
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


_WHOLE = {
    "maintenance": "true or {window: 30d, zorder: [customer_id]}",
    "schedule": '"@daily", null or {table: shop.raw}',
    "table": "shop.orders or {name: shop.orders, ...}",
}
_MANY = 12


def example(loc: Keys, *, value_only: bool = False) -> str:
    """What could stand there."""
    names = [
        str(part) for part in loc if isinstance(part, str) and not part.startswith(("(", _KEY))
    ]
    name = names[-1] if names else "version"
    value = _EXAMPLES.get(name, "...")
    if value_only:
        around = names[-2:-1]
        if around == ["dags"]:
            return "a pipeline: {table: ..., source: ..., schedule: ..., start_date: ...}"
        if around == ["mutations"]:
            return "a mutation: {master: ..., increments: ..., ids: [id], schedule: ..., start_date: ...}"
        if around == ["consumers"]:
            return "{function: shop.jobs:revenue}"
        if isinstance(loc[-1], int):
            return "a name"
        return _WHOLE.get(name) or _EXAMPLES.get(name, "a value")
    return f"'{name}: {value}'"
