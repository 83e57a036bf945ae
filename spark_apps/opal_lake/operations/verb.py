"""The step from the declaration of an operation to a method of a table.

`compact = verb(Compact)` in the body of a table's class is a method whose arguments are the fields
of `Compact`. Type checkers and editors infer its signature from the declaration; at run time
`inspect.signature` and `help` show it.
"""

import inspect
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    cast,
)

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.result import JobResult

if TYPE_CHECKING:
    import pyarrow as pa

    from opal_lake.engine.open_table import OpenTable

P = ParamSpec("P")
Result_co = TypeVar("Result_co", covariant=True)
Method = TypeVar("Method", bound=Callable[..., Any])
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    # A plain `Table` is one of Arrow
    Frame = TypeVarWithDefault("Frame", default=pa.Table)
else:
    Frame = TypeVar("Frame")


class Framed(Generic[Frame]):
    """A table whose engine returns rows as frames of one type: Arrow, or DataFrames."""

    __slots__ = ()


class Operation(Declared, Generic[Result_co]):
    """An operation on a table: its arguments, and `run`, which does it."""

    # If false, the argument of `run` is a place, which may have no table yet
    needs_table: ClassVar[bool] = True

    def run(self, table: "OpenTable") -> Result_co:
        """Run the operation on a table, whose engine runs the tasks."""
        raise NotImplementedError(f"{type(self).__name__} has no steps of its own")

    def look(self, table: "OpenTable") -> Result_co | None:
        """Return the result if there is nothing to do; None if the operation has to run.

        A scheduler calls this before it starts an engine. The method reads metadata only, changes
        nothing that a reader sees, and raises the errors of arguments that `run` would raise.
        """
        return None


class RowsOperation(Operation[Any]):
    """An operation whose result is a frame of the engine: Arrow, or a DataFrame."""


@declaration
class Job(Operation[JobResult]):
    """An operation that changes a table, or reports on it, and returns a JobResult.

    Two calls with the same `token` run the operation once: the second call returns the result of
    the first.
    """

    token_argument: ClassVar[str] = "token"

    token: str | None = None


def verb(operation: Callable[P, Operation[Result_co]]) -> Callable[Concatenate[Any, P], Result_co]:
    """Return a method that runs an operation on its table."""
    return cast("Callable[Concatenate[Any, P], Result_co]", _method(operation))


def rows_verb(
    operation: Callable[P, RowsOperation],
) -> Callable[Concatenate[Framed[Frame], P], Frame]:
    """Return a method that returns a frame of its table's engine."""
    return cast("Callable[Concatenate[Framed[Frame], P], Frame]", _method(operation))


def verb_of(operation: type[Operation[Any]]) -> Callable[[Method], Method]:
    """Return a decorator for a method that runs an operation in its own way."""

    def decorated(method: Method) -> Method:
        method.operation = operation  # type: ignore[attr-defined]  # a function takes one
        return method

    return decorated


def operations_of(table: type) -> dict[str, type[Operation[Any]]]:
    """Return the operations of a table's verbs, by the names of the methods."""
    methods = {name: getattr(table, name) for name in dir(table)}
    return {
        name: method.operation for name, method in methods.items() if hasattr(method, "operation")
    }


def _method(operation: Any) -> Callable[..., Any]:
    """Return a method with the signature, the docstring and the name of an operation."""

    def method(self: Any, *in_order: Any, **values: Any) -> Any:
        return operation(*in_order, **values).run(self)

    arguments = inspect.signature(operation)
    table = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = arguments.replace(  # type: ignore[attr-defined]  # a function takes one
        parameters=[table, *arguments.parameters.values()]
    )
    method.operation = operation  # type: ignore[attr-defined]  # a function takes one
    method.__doc__ = operation.__doc__
    method.__name__ = operation.title
    method.__qualname__ = f"Table.{operation.title}"
    method.__module__ = "opal_lake.table"
    return method
