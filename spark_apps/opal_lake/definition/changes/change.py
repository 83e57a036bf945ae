"""The base of all changes of a table's definition, and their form in JSON.

A change is one JSON object. Its verb is the key of the first argument, and the other arguments
follow by name: `{"rename": "a.b", "to": "c"}`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Self

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a table's definition.

    A subclass declares its arguments as fields of a frozen dataclass, the first one required.
    `verb` is the key of that one in JSON. `done` is the count of a job's result. `checks_rows` is
    true for changes that read the rows of the table first.
    """

    verb: ClassVar[str]
    done: ClassVar[str]
    example: ClassVar[str]
    checks_rows: ClassVar[bool] = False
    # Arguments that may be any literal, not only texts
    literals: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Raise InvalidInputError for an argument of a wrong type."""
        for member in fields(self):
            value = getattr(self, member.name)
            if value is None and member.default is None:
                continue
            if not isinstance(value, self._types_of(member)):
                raise InvalidInputError(
                    f"{self.verb}: {key_of(type(self), member)}={value!r} is not valid; "
                    f"write {self.example}"
                )

    @classmethod
    def _types_of(cls, member: "Field[Any]") -> type | tuple[type, ...]:
        """Return the types that an argument may have, by its default."""
        if member.name in cls.literals:
            return (str, int, float, bool)
        return bool if isinstance(member.default, bool) else str

    def applied(self, spec: TableSpec) -> TableSpec:
        """Return the changed spec; raise InvalidInputError if the change does not fit.

        A change that changes nothing returns an equal spec.
        """
        raise NotImplementedError

    def note(self) -> str:
        """Return what the change did, such as `renamed column 'a' to 'b'`."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the change as one JSON object, without arguments that have their default."""
        data: dict[str, Any] = {}
        for member in fields(self):
            value = getattr(self, member.name)
            if member.default is MISSING or value != member.default:
                data[key_of(type(self), member)] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the change of a JSON object that has the verb of this class."""
        names = {key_of(cls, member): member for member in fields(cls)}
        unknown = sorted(map(str, set(data) - set(names)))
        if unknown:
            raise InvalidInputError(
                f"{cls.verb} has no argument {', '.join(unknown)}; write {cls.example}"
            )
        for key, member in names.items():
            if key not in data and member.default is MISSING:
                raise InvalidInputError(f"{cls.verb} needs {key!r}; write {cls.example}")
        return cls(**{names[key].name: value for key, value in data.items()})


def key_of(kind: type[Change], member: "Field[Any]") -> str:
    """Return the key of an argument in JSON: the verb for the first one."""
    return kind.verb if member is next(_fields_of(kind)) else member.name


def _fields_of(kind: type[Change]) -> "Iterator[Field[Any]]":
    return iter(fields(kind))
