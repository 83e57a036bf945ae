"""DeclaredOperator: the base of operators that take the arguments of a declared operation."""

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
    """An operator of one operation, which a subclass names with `declared`.

    Its `__init__` takes `table`, the arguments of the declaration, and those of OpalSparkOperator.
    A subclass that has further arguments writes an `__init__` with only these.
    """

    declared: ClassVar["type[Declared]"]
    # Defaults of the operator that differ from the declaration's
    defaults: ClassVar[Mapping[str, Any]] = {}
    # Arguments that only the run knows, or that a task does not have
    left_out: ClassVar[Collection[str]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put the declaration's arguments into the signature before Airflow reads it."""
        super().__init_subclass__(**kwargs)
        is_base = not hasattr(cls, "declared")
        signature_parts = {"declared", "defaults", "left_out", "__init__"}
        if is_base or not signature_parts & vars(cls).keys():
            return
        cls.operation = cls.declared.title
        if "__init__" not in vars(cls):
            cls.__init__ = _forwarding(cls)  # type: ignore[method-assign]  # made, not written
        own_init: Any = vars(cls)["__init__"]
        own_init.__signature__ = with_arguments(inspect.signature(own_init), cls.arguments_of())

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        given = {}
        for name, parameter in self.arguments_of().items():
            given[name] = kwargs.pop(name, parameter.default)
        super().__init__(table=table, arguments=self.checked(given), **kwargs)

    @classmethod
    def arguments_of(cls) -> dict[str, inspect.Parameter]:
        """Return the arguments that the operator takes from its declaration."""
        hidden = (cls.declared.token_argument, *cls.left_out)
        arguments = {}
        for name, parameter in inspect.signature(cls.declared).parameters.items():
            if name in hidden:
                continue
            default = cls.defaults.get(name, parameter.default)
            arguments[name] = parameter.replace(
                kind=inspect.Parameter.KEYWORD_ONLY, default=default
            )
        return arguments

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, checked by the operation except for templates."""
        return self.declared.checked(self.declared.among(given), is_templated)

    def job_arguments(self, context: "Context") -> dict[str, Any]:
        """Return the arguments; check the values that templates have filled in."""
        return self.declared.checked(self.declared.filled_in(self.arguments))


def _forwarding(cls: type[DeclaredOperator]) -> Any:
    """Return an `__init__` that only calls the parent's.

    Airflow wraps the `__init__` of each operator class, so a class needs its own.
    """

    def __init__(self: Any, *, table: str, **kwargs: Any) -> None:  # noqa: N807  # it becomes one
        super(cls, self).__init__(table=table, **kwargs)

    return __init__
