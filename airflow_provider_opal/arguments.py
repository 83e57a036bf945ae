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
    """Return a decorator that adds a declaration's arguments to a signature.

    The decorated function gets these arguments in its `**kwargs`. Decorate an `__init__` in the
    body of its class: Airflow reads the signature when the class is made.
    """

    def decorate(function: FunctionT) -> FunctionT:
        arguments = {}
        for parameter in inspect.signature(declared).parameters.values():
            name = f"{prefix}{parameter.name}"
            arguments[name] = parameter.replace(name=name, kind=inspect.Parameter.KEYWORD_ONLY)
        # Any, because the type of a function has no __signature__ to assign to
        decorated: Any = function
        decorated.__signature__ = with_arguments(inspect.signature(function), arguments)
        return function

    return decorate


def with_arguments(
    own: inspect.Signature, arguments: Mapping[str, inspect.Parameter]
) -> inspect.Signature:
    """Return a signature with more keyword arguments, before `**kwargs`."""
    named = dict(own.parameters)
    # `**kwargs` is always the last parameter of a signature
    _, var_keyword = named.popitem()
    if var_keyword.kind is not inspect.Parameter.VAR_KEYWORD:
        raise TypeError("a function with the arguments of a declaration must take **kwargs")
    more = [parameter for name, parameter in arguments.items() if name not in named]
    return own.replace(parameters=[*named.values(), *more, var_keyword])
