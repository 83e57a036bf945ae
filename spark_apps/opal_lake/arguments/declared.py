"""The base of declarations of arguments: their checks, and their form in JSON."""

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from datetime import datetime
from functools import cache, reduce
from inspect import Parameter, Signature
from numbers import Integral
from operator import or_
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from opal_lake.arguments.values import Help, Kind, filled_in, filled_in_flag
from opal_lake.errors import InvalidInputError

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    tuple: "a pair",
    type(None): "nothing",
}
_UNIONS = (Union, types.UnionType)
_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def declaration(cls: type[_T]) -> type[_T]:
    """Make a class a frozen dataclass of arguments.

    Its methods are inherited from `Declared`. If `dataclass` generated them for each class, that
    would be most of the time in which a DAG file is parsed.
    """
    return dataclass(kw_only=True, init=False, eq=False, repr=False, match_args=False)(cls)


def nothing_open(_: object) -> bool:
    """Return False: no value is a template that is rendered later."""
    return False


class _Parameters:
    """A property of classes: the signature of a declaration, for `inspect.signature`."""

    def __get__(self, instance: object, owner: type["Declared"]) -> Signature:
        members = owner.fields()
        by_position = [member for member in members.values() if not member.kw_only]
        by_name = [member for member in members.values() if member.kw_only]
        return Signature([_parameter(member) for member in (*by_position, *by_name)])


def _parameter(member: "Field[Any]") -> Parameter:
    """Return the parameter of a signature for an argument."""
    return Parameter(
        member.name,
        Parameter.KEYWORD_ONLY if member.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
        default=Parameter.empty if is_required(member) else default_of(member),
        annotation=plain_type(member.type),
    )


class Declared:
    """Arguments of an operation.

    Values are checked at construction, and stored as JSON holds them.

    None means that an argument is not given. Only an argument whose type includes None and whose
    default is something else has None as a value.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # the name in messages: `name`, unless an argument is called so
    token_argument: ClassVar[str] = ""  # the argument that makes a repeat harmless, if any

    # Each subclass has its own
    __signature__: ClassVar[Signature] = _Parameters()  # type: ignore[assignment]  # a descriptor

    def __init__(self, *in_order: Any, **values: Any) -> None:
        known = _members(type(self))
        if in_order:
            values = _by_name(self.title, known, in_order, values)
        given = {}
        for name, value in values.items():
            if name not in known:
                raise TypeError(f"{self.title}() got an unexpected keyword argument {name!r}")
            if _is_given(value, known[name]):
                given[name] = value
        missing = _missing(known, given)
        for name in missing:
            if name in values:
                raise InvalidInputError(f"{self.title} needs {name}, got None; give a value")
        if missing:
            raise TypeError(f"{self.title}() missing the arguments {', '.join(map(repr, missing))}")
        for name, member in known.items():
            if name not in given:
                given[name] = default_of(member)
        # Not by assignment: instances are frozen. In the order of the declaration, in which values
        # are checked.
        vars(self).update({name: given[name] for name in known})
        self.__post_init__()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if isinstance(vars(cls).get("name"), str):
            cls.title = cls.name

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __post_init__(self) -> None:
        vars(self).update(type(self).checked(vars(self)))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        others = vars(other)
        return all(not _differ(value, others[name]) for name, value in vars(self).items())

    __hash__ = None  # type: ignore[assignment]  # values may be lists, which have no hash

    def __repr__(self) -> str:
        arguments = [f"{name}={value!r}" for name, value in self.to_arguments().items()]
        joined = ", ".join(arguments)
        return f"{type(self).__name__}({joined})"

    @classmethod
    def of(cls, arguments: object) -> Self:
        """Return the arguments of a JSON object; null means that an argument is not given."""
        if not isinstance(arguments, Mapping):
            raise InvalidInputError(
                f"arguments of {cls.title} must map names to values, got {_word(type(arguments))}"
            )
        known = cls.fields()
        unknown = sorted(map(str, set(arguments) - set(known)))
        if unknown:
            raise InvalidInputError(
                f"{cls.title} has no argument {', '.join(unknown)}; "
                f"its arguments are {', '.join(known)}"
            )
        given = {name: value for name, value in arguments.items() if _is_given(value, known[name])}
        missing = _missing(known, given)
        if missing:
            raise InvalidInputError(f"{cls.title} needs the argument {', '.join(missing)}; add it")
        return cls(**cls.plain(given))

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of JSON in the form that the checks expect.

        A subclass may accept further forms, and turn them into this one.
        """
        return arguments

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments that differ from the default, as JSON holds them."""
        arguments = {}
        for name, member in self.fields().items():
            value = getattr(self, name)
            if _differ(value, default_of(member)):
                arguments[name] = _json_value(value)
        return arguments

    @classmethod
    def fields(cls) -> "dict[str, Field[Any]]":
        """Return the arguments by name: first the required ones, and the token last."""
        known = _members(cls)

        def rank(name: str) -> int:
            if name == cls.token_argument:
                return 2
            return 0 if is_required(known[name]) else 1

        return {name: known[name] for name in sorted(known, key=rank)}

    @classmethod
    def position_names(cls) -> list[str]:
        """Return the names of the arguments that may be given by position, in their order."""
        return _position_names(_members(cls))

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values whose names are arguments of this class, without None."""
        return given_fields(cls, values)

    @classmethod
    def taken_from(cls, values: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
        """Remove the arguments of this class from some values, and return them.

        In `values` the names of the arguments have the prefix.
        """
        arguments = {}
        for name in cls.fields():
            if prefix + name in values:
                arguments[name] = values.pop(prefix + name)
        return arguments

    @classmethod
    def changed(cls, values: Mapping[str, Any]) -> set[str]:
        """Return the names of the arguments whose values are not the default."""
        names = set()
        for name, member in cls.fields().items():
            if name in values and _differ(values[name], default_of(member)):
                names.add(name)
        return names

    @classmethod
    def checked(
        cls, arguments: Mapping[str, Any], is_open: Callable[[Any], bool] = nothing_open
    ) -> dict[str, Any]:
        """Return the given arguments as JSON holds them.

        Open values are not checked: a template is open until it is rendered for a run.
        """
        known = _members(cls)
        given = {}
        for name, value in arguments.items():
            if value is None:
                continue
            if not is_open(value):
                value = _checked(cls.title, name, value, known[name].type)
            given[name] = value
        defaults = {name: default_of(member) for name, member in known.items()}
        cls.check_together({**defaults, **given}, is_open)
        return given

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for arguments that exclude or need each other.

        Here there are none. `given` has every argument of the class.
        """

    @classmethod
    def filled_in(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with the numbers and truth values that templates left as texts."""
        known = cls.fields()
        values = dict(arguments)
        for name, member in known.items():
            if name in values:
                values[name] = _filled_in(values[name], member.type)
        return values


def _members(declared: type[Declared]) -> "dict[str, Field[Any]]":
    """Return the fields of a declaration as the class has them."""
    members = fields(declared)  # type: ignore[arg-type]  # every subclass is a dataclass
    return {member.name: member for member in members}


def _is_given(value: Any, member: "Field[Any]") -> bool:
    """Return whether a value counts as given: None does only where it is a value."""
    return value is not None or _takes_none(member)


def _missing(known: Mapping[str, "Field[Any]"], given: Mapping[str, Any]) -> list[str]:
    """Return the names of required arguments that are not given."""
    return [name for name, member in known.items() if is_required(member) and name not in given]


def _by_name(
    kind: str, known: Mapping[str, "Field[Any]"], in_order: Sequence[Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments by name: those given by position, and `values`."""
    names = _position_names(known)
    if len(in_order) > len(names):
        raise TypeError(
            f"{kind} takes {len(names)} positional arguments, and {len(in_order)} were given"
        )
    by_name = dict(zip(names, in_order, strict=False))
    repeated = sorted(by_name.keys() & values.keys())
    if repeated:
        raise TypeError(f"{kind} got multiple values for argument {repeated[0]!r}")
    return {**by_name, **values}


def _position_names(known: Mapping[str, "Field[Any]"]) -> list[str]:
    return [name for name, member in known.items() if not member.kw_only]


def given_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose names are fields of a dataclass, without None."""
    names = [member.name for member in fields(kind)]
    return {name: values[name] for name in names if values.get(name) is not None}


def is_required(member: "Field[Any]") -> bool:
    """Return whether an argument has no default."""
    return member.default is MISSING and member.default_factory is MISSING


def _takes_none(member: "Field[Any]") -> bool:
    """Return whether None is a value of an argument, rather than "not given"."""
    return default_of(member) is not None and type(None) in types_of(member.type)


def default_of(member: "Field[Any]") -> Any:
    """Return the default of an argument; None for a required one."""
    if member.default_factory is not MISSING:
        return member.default_factory()
    if member.default is MISSING:
        return None
    return member.default


def kind_of(hint: Any) -> Kind | None:
    """Return the kind of value that an argument's type is annotated with, or None."""
    for note in _notes(hint):
        if isinstance(note, Kind):
            return note
    return None


def help_of(hint: Any) -> Help | None:
    """Return the help that an argument's type is annotated with, or None."""
    for note in _notes(hint):
        if isinstance(note, Help):
            return note
    return None


def types_of(hint: Any) -> frozenset[Any]:
    """Return the types of a union, or the one type, without annotations."""
    return frozenset(_alternatives(hint))


def plain_type(hint: Any) -> Any:
    """Return a type without its annotations, as a signature shows it."""
    return reduce(or_, _alternatives(hint))


def _notes(hint: Any) -> list[Any]:
    """Return the annotations of a type, at any depth of its unions."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return [*notes, *_notes(inner)]
    notes = []
    if get_origin(hint) in _UNIONS:
        for part in get_args(hint):
            notes += _notes(part)
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hint:
    """The parts of an argument's type, cached because every ingest needs them.

    `types` are the plain types, `kind` is the kind of value, and `nested` the declaration whose
    arguments the argument holds.
    """

    types: frozenset[Any]
    kind: Kind | None
    nested: type[Declared] | None


@cache
def _hint(hint: Any) -> _Hint:
    return _Hint(types=types_of(hint), kind=kind_of(hint), nested=_declared(hint))


def _checked(operation: str, name: str, value: Any, hint: Any) -> Any:
    """Return a value as JSON holds it; raise InvalidInputError if it does not fit."""
    known = _hint(hint)
    if known.nested is not None:
        if isinstance(value, known.nested):
            return value
        return known.nested.of(value)
    value = _plain_value(value, known.types)
    if known.kind is not None:
        return known.kind.check(name, value)
    if known.types == {bool} and not isinstance(value, bool):
        raise InvalidInputError(
            f"{operation}: {name}={value!r} is {_word(type(value))}, neither true nor false"
        )
    if isinstance(value, str) and _takes_list(known.types):
        raise InvalidInputError(f"{name}={value!r} is a text; give a list: {name}=[{value!r}]")
    if not _fits(value, hint):
        raise InvalidInputError(f"{operation}: argument {name} {_advice(value, hint)}")
    if isinstance(value, Mapping):
        return dict(value)
    if any(get_origin(part) is tuple for part in known.types):
        return tuple(value)
    return list(value) if isinstance(value, tuple) else value


def _takes_list(types: Collection[Any]) -> bool:
    return any(get_origin(part) in (list, Sequence) for part in types)


def _plain_value(value: Any, types: Collection[Any]) -> Any:
    """Return a number or a list of another library, such as numpy, as Python's."""
    if Any in types or object in types:
        return value
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    is_text_or_mapping = isinstance(value, str | bytes | Mapping)
    if isinstance(value, Iterable) and not is_text_or_mapping and _takes_list(types):
        return [*value]
    return value


def _differ(value: Any, other: Any) -> bool:
    """Return whether two values differ; two arrays count as different."""
    try:
        return bool(value != other)
    except ValueError:  # arrays compare to an array, which is neither true nor false
        return value is not other


def _json_value(value: Any) -> Any:
    """Return an argument as JSON holds it."""
    if isinstance(value, Declared):
        return value.to_arguments()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def _filled_in(value: Any, hint: Any) -> Any:
    """Return the number or truth value of a rendered template; other values stay."""
    if types_of(hint) == {bool}:
        return filled_in_flag(value)
    kind = kind_of(hint)
    if kind is not None and kind.takes_number:
        return filled_in(value)
    return value


def _declared(hint: Any) -> type[Declared] | None:
    """Return the declaration that a type names, at any depth of its unions."""
    if isinstance(hint, type) and issubclass(hint, Declared):
        return hint
    if get_origin(hint) not in (*_UNIONS, Annotated):
        return None
    for part in get_args(hint):
        declared = _declared(part)
        if declared is not None:
            return declared
    return None


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type, and its members of the types of members."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin in _UNIONS:
        return any(_fits(value, part) for part in parts)
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_fits(member, parts[0]) for member in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and _members_fit(value, parts[1])
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            return False
        return all(map(_fits, value, parts))
    if hint is Any:
        return True
    if hint is int and isinstance(value, bool):  # True is an int in Python
        return False
    return isinstance(value, hint)


def _members_fit(value: Mapping[Any, Any], hint: Any) -> bool:
    return all(isinstance(key, str) and _fits(member, hint) for key, member in value.items())


def _advice(value: Any, hint: Any) -> str:
    """Return the end of a message: the type of a value, and what to give instead."""
    kinds = _alternatives(hint)
    expected = [kind for kind in kinds if kind is not type(None)]
    actual = _word(type(value))
    if get_origin(expected[0]) in (dict, Mapping):
        must = f"must {_expected(expected[0])}"
        if isinstance(value, Mapping):
            return must
        return f"{must}, got {actual}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if expected == [str] and is_number:
        return f"is {actual}; write it as {str(value)!r}"
    wrong_member = _wrong_member(value, expected)
    if wrong_member is not None:
        actual = f"{actual} with {wrong_member}"
    wanted = " or ".join(map(_expected, expected))
    is_optional = len(expected) < len(kinds)
    if is_optional:
        wanted += ", or leave it out"
    return f"is {actual}; give {wanted}"


def _wrong_member(value: Any, expected: Sequence[Any]) -> str | None:
    """Return the first member of a list that does not fit, with its type; or None."""
    if not isinstance(value, list | tuple):
        return None
    for kind in expected:
        if get_origin(kind) in (list, Sequence):
            (part,) = get_args(kind)
            wrong = next(member for member in value if not _fits(member, part))
            word = _word(type(wrong))
            return f"{wrong!r}, which is {word}"
    return None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type, in order and without annotations."""
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    if get_origin(hint) not in _UNIONS:
        return (hint,)
    allowed: list[Any] = []
    for part in get_args(hint):
        allowed += _alternatives(part)
    return tuple(allowed)


def _expected(hint: Any) -> str:
    """Return the values of a type in words, such as "a list, each a text"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _expected(parts[0])
    if origin in _UNIONS:
        return " or ".join(map(_expected, parts))
    if origin in (list, Sequence):
        return f"a list, each {_expected(parts[0])}"
    if origin is tuple:
        return f"a pair: {' and '.join(map(_expected, parts))}"
    if origin in (dict, Mapping):
        if parts[1] is Any:
            return "map names to values"
        return f"map names to values, each {_expected(parts[1])}"
    return _word(hint)


def _word(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)
