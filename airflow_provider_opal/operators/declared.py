"""DeclaredOperator: the base of operators whose arguments are those of a declared operation."""

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_opal.arguments import with_arguments
from airflow_provider_opal.operators.spark import OpalSparkOperator
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Context

    from opal_lake.arguments.declared import Declared


class DeclaredOperator(OpalSparkOperator):
    """An operator of an operation: a subclass names it with `declared`.

    Its `__init__` takes `table`, the arguments of the declaration, and those of OpalSparkOperator.
    A subclass that has arguments of its own writes an `__init__` with these alone.
    """

    declared: ClassVar["type[Declared]"]
    defaults: ClassVar[Mapping[str, Any]] = {}  # where an operator's differ from the declaration's
    left_out: ClassVar[Collection[str]] = ()  # arguments that only the run knows, or no task has

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments of the declaration, before Airflow looks at the signature."""
        super().__init_subclass__(**kwargs)
        is_base = not hasattr(cls, "declared")
        if is_base or not {"declared", "defaults", "left_out", "__init__"} & vars(cls).keys():
            return
        cls.operation = cls.declared.title
        if "__init__" not in vars(cls):
            cls.__init__ = _forwarding(cls)  # type: ignore[method-assign]  # made, not written
        own_init: Any = vars(cls)["__init__"]
        own_init.__signature__ = with_arguments(inspect.signature(own_init), cls.arguments_of())

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        given = {
            name: kwargs.pop(name, parameter.default)
            for name, parameter in self.arguments_of().items()
        }
        super().__init__(table=table, arguments=self.checked(given), **kwargs)

    @classmethod
    def arguments_of(cls) -> dict[str, inspect.Parameter]:
        """Return the arguments that the operator takes from its declaration."""
        hidden = (cls.declared.token_argument, *cls.left_out)
        return {
            name: parameter.replace(
                kind=inspect.Parameter.KEYWORD_ONLY,
                default=cls.defaults.get(name, parameter.default),
            )
            for name, parameter in inspect.signature(cls.declared).parameters.items()
            if name not in hidden
        }

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments as a job would, but for those that templates fill in."""
        return self.declared.checked(self.declared.among(given), is_templated)

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Check the arguments that templates filled in, as the others were checked before."""
        return self.declared.checked(self.declared.filled_in(self.arguments))


def _forwarding(cls: type[DeclaredOperator]) -> Any:
    """Return an `__init__` that is its own, for Airflow, and does what the parent's does."""

    def __init__(self: DeclaredOperator, *, table: str, **kwargs: Any) -> None:  # noqa: N807  # it becomes one
        super(cls, self).__init__(table=table, **kwargs)

    return __init__
