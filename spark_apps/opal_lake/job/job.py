"""What a scheduler and a job agree on: a JobSpec in, a JobResult out. Both go through JSON and hold no secret."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from opal_lake import checked
from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from opal_lake.job.operations.declared import Operation

_NO_ARGUMENTS: Mapping[str, Any] = {}
OperationT_co = TypeVar("OperationT_co", bound="Operation", covariant=True)


def _check_names(name: str, data: Mapping[str, Any], known: Mapping[str, bool]) -> None:
    """`known` says of each field whether it is needed."""
    if unknown := sorted(map(str, set(data) - set(known))):
        raise InvalidInputError(
            f"{name} has no field {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    if missing := [
        repr(field) for field, is_needed in known.items() if is_needed and field not in data
    ]:
        raise InvalidInputError(f"{name} needs the field {', '.join(missing)}; add it")


class _Json:
    """JSON there and back, for flat dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        members = fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        _check_names(
            cls.__name__,
            data,
            {
                member.name: member.default is MISSING and member.default_factory is MISSING
                for member in members
            },
        )
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidInputError(f"{cls.__name__} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InvalidInputError(
                f"{cls.__name__} must be a JSON object, not {type(data).__name__}"
            )
        return cls.from_dict(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(_Json, Generic[OperationT_co]):
    """What to do: an operation on a table, with a token that makes repeats harmless. In JSON the operation is its name and `arguments`."""

    operation: OperationT_co
    table: str
    token: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operation, str):
            raise InvalidInputError(
                f"operation={self.operation!r} is a name; write JobSpec.of({self.operation!r}, table, arguments)"
            )

    @classmethod
    def of(
        cls, operation: str, table: str, arguments: object = _NO_ARGUMENTS, token: str | None = None
    ) -> "JobSpec[Any]":
        """With the operation by its name, and its arguments as JSON has them."""
        from opal_lake.job.operations import operation_named

        return JobSpec(operation=operation_named(operation).of(arguments), table=table, token=token)

    def to_dict(self) -> dict[str, Any]:
        operation = {"operation": self.operation.name, "arguments": self.operation.to_arguments()}
        return {**operation, "table": self.table, "token": self.token}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "JobSpec[Any]":
        _check_names(
            "JobSpec", data, {"operation": True, "table": True, "arguments": False, "token": False}
        )
        return cls.of(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(_Json):
    """What was done. `version` is its commit, None when nothing had to change; of a metagen without work the newest one, at which all
    that it was asked for is visible. `repeated` marks the answer of an earlier run. `examples` of a metagen are the partition keys
    that stay pending, the oldest first.
    """

    operation: str
    table: str
    version: int | None = None
    token: str | None = None
    repeated: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    timings_ms: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    examples: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name in ("notes", "examples"):  # JSON has lists only, and a repeat equals its first run
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InvalidInputError(f"{name}={given!r} of a result must be a list")
            object.__setattr__(self, name, tuple(given))


_RESULT_PARTS: dict[str, Callable[[Any], Any]] = {
    "operation": checked.text,
    "table": checked.text,
    "version": lambda version: None if version is None else checked.count(version),
    "token": lambda token: None if token is None else checked.text(token),
    "repeated": checked.flag,
    "counts": lambda counts: {
        name: checked.word(number) for name, number in checked.mapped(counts).items()
    },
    "timings_ms": lambda timings: {
        name: checked.word(number) for name, number in checked.mapped(timings).items()
    },
    "notes": lambda notes: [checked.text(note) for note in checked.listed(notes)],
    "examples": lambda examples: [
        checked.mapped(example) for example in checked.listed(checked.shallow(examples))
    ],
}


def checked_result(data: Any) -> dict[str, Any]:
    """A result from a table's metadata, which is untrusted; ValueError if a part has the wrong type."""
    return {
        name: _RESULT_PARTS.get(name, checked.shallow)(value)
        for name, value in checked.mapped(data).items()
    }


def check_visible(result: JobResult) -> JobResult:
    """The result that was stored for a token, for an inline ingest: it may be that of an earlier attempt in batch mode."""
    if result.counts.get("rows") and "segments" not in result.counts:
        raise InvalidInputError(
            f"version {result.version} ingested these rows in batch mode, and they wait for a metagen: run one"
        )
    return result
