"""What a job did, as a scheduler and the table's log keep it. It goes through JSON and holds no secret."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Self

from opal_lake import checked
from opal_lake.errors import InvalidInputError


def check_names(name: str, data: Mapping[str, Any], known: Mapping[str, bool]) -> None:
    """Raise InvalidInputError for unknown and missing fields; `known` says which are required."""
    if unknown := sorted(map(str, set(data) - set(known))):
        raise InvalidInputError(
            f"{name} has no field {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    if missing := [
        repr(field) for field, is_needed in known.items() if is_needed and field not in data
    ]:
        raise InvalidInputError(f"{name} needs the field {', '.join(missing)}; add it")


class Json:
    """JSON there and back, for flat dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        members = fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        check_names(
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
class JobResult(Json):
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

    def timed(self, passed_s: float) -> "JobResult":
        """Return the result with how long all of it took."""
        return replace(self, timings_ms={**self.timings_ms, "total": round(passed_s * 1000)})

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
