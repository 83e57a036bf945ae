"""The result of a job, for schedulers and the table's log: JSON without secrets."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Self

from opal_lake import checked
from opal_lake.errors import InvalidInputError


def check_names(name: str, data: Mapping[str, Any], known: Mapping[str, bool]) -> None:
    """Raise InvalidInputError for unknown fields, and for missing required ones.

    `known` maps the names of fields to whether they are required.
    """
    unknown = sorted(map(str, set(data) - set(known)))
    if unknown:
        unknown_text, known_text = ", ".join(unknown), ", ".join(sorted(known))
        raise InvalidInputError(f"{name} has no field {unknown_text}; its fields are {known_text}")
    missing: list[str] = []
    for field_name, is_required in known.items():
        if is_required and field_name not in data:
            missing.append(repr(field_name))
    if missing:
        raise InvalidInputError(f"{name} needs the field {', '.join(missing)}; add it")


class Json:
    """A base of flat dataclasses that have a JSON form."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # all are dataclasses

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        is_required: dict[str, bool] = {}
        for member in fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            has_default = member.default is not MISSING or member.default_factory is not MISSING
            is_required[member.name] = not has_default
        check_names(cls.__name__, data, is_required)
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidInputError(
                f"{cls.__name__} is not JSON ({error}); write a JSON object"
            ) from error
        if not isinstance(data, dict):
            raise InvalidInputError(
                f"{cls.__name__} must be a JSON object, not {type(data).__name__}"
            )
        return cls.from_dict(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(Json):
    """The result of a job.

    `version` is the version that the job committed, or None if nothing had to change. A metagen
    without work has the newest version: there the selected rows are visible already. `repeated`
    marks the result of an earlier job with the same token. `examples` of a metagen are the
    partition keys that stay pending, the oldest first.
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
        """Return the result with the time that the whole job took."""
        return replace(self, timings_ms={**self.timings_ms, "total": round(passed_s * 1000)})

    def __post_init__(self) -> None:
        # JSON has only lists: as tuples, a result read back equals the first one.
        for name in ("notes", "examples"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InvalidInputError(f"{name} of a result must be a list, got {given!r}")
            object.__setattr__(self, name, tuple(given))


def _numbers(value: Any) -> dict[str, int]:
    return {name: checked.word(number) for name, number in checked.mapped(value).items()}


def _texts(value: Any) -> list[str]:
    return [checked.text(text) for text in checked.listed(value)]


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [checked.mapped(member) for member in checked.listed(checked.shallow(value))]


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "operation": checked.text,
    "table": checked.text,
    "version": lambda version: checked.optional(version, checked.count),
    "token": lambda token: checked.optional(token, checked.text),
    "repeated": checked.flag,
    "counts": _numbers,
    "timings_ms": _numbers,
    "notes": _texts,
    "examples": _mappings,
}


def checked_result(data: Any) -> dict[str, Any]:
    """Return a result from a table's untrusted metadata, with its fields checked.

    Raises ValueError if a field has the wrong type. A field that this build does not know may have
    any type.
    """
    result: dict[str, Any] = {}
    for name, value in checked.mapped(data).items():
        check = _CHECKS.get(name, checked.shallow)
        result[name] = check(value)
    return result


def check_visible(result: JobResult) -> JobResult:
    """Return the stored result of an inline ingest's token.

    Raises InvalidInputError if an earlier ingest in batch mode stored the result: its rows are
    still pending.
    """
    # Only an ingest that made its rows visible counts segments
    is_pending = result.counts.get("rows") and "segments" not in result.counts
    if is_pending:
        raise InvalidInputError(
            f"version {result.version} ingested these rows in batch mode, and they are pending; "
            "run a metagen to make them visible"
        )
    return result
