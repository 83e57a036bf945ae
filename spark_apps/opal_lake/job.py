"""What a scheduler and a job agree on: a JobSpec in, a JobResult out. Both go through JSON and hold no secret."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from opal_lake.errors import InvalidInputError

ON_BAD_ROWS = ("fail", "quarantine")
ON_EMPTY = ("fail", "accept")
METADATA = ("batch", "inline")
OPERATIONS = (
    "create",
    "ingest",
    "metagen",
    "read",
    "consume",
    "rebuild_key_store",
    "bootstrap",
    "compact",
    "zorder",
    "retain",
    "maintain",
    "set_properties",
)


class _Json:
    """JSON there and back, for flat dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        known = {member.name for member in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        if unknown := sorted(set(data) - known):
            raise InvalidInputError(f"{cls.__name__} has no field {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidInputError(f"{cls.__name__}: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidInputError(f"{cls.__name__} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InvalidInputError(f"{cls.__name__} must be a JSON object, not {type(data).__name__}")
        return cls.from_dict(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(_Json):
    """What to do: an operation on a table, with the arguments of that operation and a token that makes repeats harmless."""

    operation: str
    table: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    token: str | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InvalidInputError(f"operation {self.operation!r} is unknown; use one of {', '.join(OPERATIONS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(_Json):
    """What was done. `version` is its commit, None when nothing had to change; `repeated` marks the answer of an earlier run."""

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
        object.__setattr__(self, "notes", tuple(self.notes))  # JSON has lists only, and a repeat equals its first run
        object.__setattr__(self, "examples", tuple(self.examples))


def check_visible(result: JobResult) -> JobResult:
    """The result that a token found, for an ingest that was to be inline: it may be that of a try in batch mode."""
    if result.counts.get("rows") and "segments" not in result.counts:
        raise InvalidInputError(f"version {result.version} ingested these rows in batch mode, and they wait for a metagen: run one")
    return result


def check_metadata(metadata: str) -> None:
    if metadata not in METADATA:
        raise InvalidInputError(f"metadata={metadata!r} is unknown; use one of {', '.join(METADATA)}")
