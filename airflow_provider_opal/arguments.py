"""Arguments of a declaration in the signatures of operators, sensors and functions."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from opal_lake.arguments.declared import Declared

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def takes_arguments_of(
    declared: "type[Declared]", *, prefix: str = ""
) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that shows the arguments of a declaration in a function's signature.

    The function gets them in its `**kwargs`. An `__init__` is decorated in the body of its class:
    Airflow looks at the signature when the class is made.
    """

    def decorate(function: FunctionT) -> FunctionT:
        arguments = {
            f"{prefix}{name}": parameter.replace(
                name=f"{prefix}{name}", kind=inspect.Parameter.KEYWORD_ONLY
            )
            for name, parameter in inspect.signature(declared).parameters.items()
        }
        made: Any = function
        made.__signature__ = with_arguments(inspect.signature(function), arguments)
        return function

    return decorate


def with_arguments(
    own: inspect.Signature, arguments: Mapping[str, inspect.Parameter]
) -> inspect.Signature:
    """Return a signature with more keyword arguments, before `**kwargs`."""
    named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    if len(named) == len(own.parameters):
        raise TypeError("a function with the arguments of a declaration takes **kwargs")
    names = {parameter.name for parameter in named}
    more = [parameter for name, parameter in arguments.items() if name not in names]
    [rest] = [one for one in own.parameters.values() if one.kind is one.VAR_KEYWORD]
    return own.replace(parameters=[*named, *more, rest])
