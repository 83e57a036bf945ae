"""A JobSpec: the operation that a job has to run, as JSON without secrets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from opal_lake.arguments.declared import Declared
from opal_lake.errors import InvalidInputError
from opal_lake.operations import operation_named
from opal_lake.result import Json, check_names

_NO_ARGUMENTS: Mapping[str, Any] = {}
OperationT_co = TypeVar("OperationT_co", bound=Declared, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Json, Generic[OperationT_co]):
    """An operation on a table: in JSON its name and its arguments.

    The token, which makes repeats harmless, stands next to the arguments.
    """

    operation: OperationT_co
    table: str
    token: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operation, str):
            raise InvalidInputError(
                f"operation={self.operation!r} is a name; "
                f"write JobSpec.of({self.operation!r}, table, arguments)"
            )
        argument = self.operation.token_argument
        if not argument:
            return
        own = getattr(self.operation, argument)
        if own is None:
            return
        # The token has one place, so that equal jobs are equal as JSON
        if self.token not in (None, own):
            raise InvalidInputError(
                f"the job has the token {self.token!r}, and its arguments have {own!r}; "
                "give it once"
            )
        # Not by assignment: specs are frozen
        object.__setattr__(self, "token", own)
        object.__setattr__(self, "operation", self._with_token(None))

    @property
    def job(self) -> OperationT_co:
        """The operation with the token as one of its arguments."""
        return self._with_token(self.token)

    def _with_token(self, token: str | None) -> OperationT_co:
        argument = self.operation.token_argument
        if not argument or getattr(self.operation, argument) == token:
            return self.operation
        arguments = {**vars(self.operation), argument: token}
        return type(self.operation)(**arguments)

    @classmethod
    def of(
        cls, operation: str, table: str, arguments: object = _NO_ARGUMENTS, token: str | None = None
    ) -> "JobSpec[Any]":
        """Return a spec for an operation by its name, with its arguments as JSON has them."""
        return JobSpec(operation=operation_named(operation).of(arguments), table=table, token=token)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON holds it."""
        return {
            "operation": self.operation.title,
            "arguments": self.operation.to_arguments(),
            "table": self.table,
            "token": self.token,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "JobSpec[Any]":
        """Return the spec that JSON holds."""
        check_names(
            "JobSpec", data, {"operation": True, "table": True, "arguments": False, "token": False}
        )
        return cls.of(**data)
