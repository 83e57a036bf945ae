"""Whether a JobSpec's arguments are those of its operation: specs are written by templates, where a number easily becomes a text."""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from opal_lake.errors import InvalidInputError
from opal_lake.job import JobSpec

_WORDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def checked_arguments(handler: Callable[..., Any], spec: JobSpec) -> dict[str, Any]:
    """The arguments, if the handler takes them: its keyword-only parameters say what they are."""
    taken = {
        name: parameter for name, parameter in inspect.signature(handler).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    if not isinstance(spec.arguments, Mapping):
        raise InvalidInputError(f"arguments of {spec.operation} are {type(spec.arguments).__name__}; give an object")
    if unknown := sorted(set(spec.arguments) - set(taken)):
        raise InvalidInputError(f"{spec.operation} has no argument {', '.join(unknown)}; known are {', '.join(taken)}")
    if missing := [name for name, parameter in taken.items() if parameter.default is parameter.empty and name not in spec.arguments]:
        raise InvalidInputError(f"{spec.operation} needs the argument {', '.join(missing)}; add it to the spec's arguments")
    hints = get_type_hints(handler)
    for name, value in spec.arguments.items():
        if not _fits(value, hints[name]):
            raise InvalidInputError(f"{spec.operation}: argument {name} is {_kind(type(value))}; give {_wanted(hints[name])}")
    return dict(spec.arguments)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(_fits(member, parts[0]) for member in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(member, parts[1]) for member in value.values())
    if hint is Any:
        return True
    return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))


def _wanted(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(part) for part in parts)
    if origin is list:
        return f"a list, each {_wanted(parts[0])}"
    if origin is dict:
        return f"an object, each value {_wanted(parts[1])}"
    return _kind(hint)


def _kind(kind: type) -> str:
    return "null" if kind is type(None) else _WORDS.get(kind, kind.__name__)
