"""What a declaration of arguments can do: check them, read them from JSON and write them there."""

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
    """A frozen dataclass. Its methods are those of `Declared`: made for each class they would be most of what parsing a DAG file costs."""
    return dataclass(kw_only=True, init=False, eq=False, repr=False, match_args=False)(cls)


def nothing_open(_: object) -> bool:
    """Every value is known."""
    return False


class _Parameters:
    """What `inspect.signature` and editors at run time say of a declaration."""

    def __get__(self, instance: object, owner: type["Declared"]) -> Signature:
        members = owner.fields().items()
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY if member.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
                    default=Parameter.empty if is_required(member) else default_of(member),
                    annotation=plain_type(member.type),
                )
                for name, member in sorted(members, key=lambda pair: bool(pair[1].kw_only))
            ]
        )


class Declared:
    """Arguments of an operation. Values are checked when one is made, and kept as JSON holds them.

    None is what is not given, unless the argument takes it and has another default.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # how messages call it: its name, unless `name` is one of its arguments
    token_argument: ClassVar[str] = ""  # the argument that makes a repeat harmless, if there is one

    __signature__: ClassVar[Signature] = _Parameters()  # type: ignore[assignment]  # of each class its own

    def __init__(self, *in_order: Any, **values: Any) -> None:
        known = {member.name: member for member in fields(self)}  # type: ignore[arg-type]  # every subclass is a dataclass
        if in_order:
            values = _by_name(self.title, known, in_order, values)
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"{self.title}() got an unexpected keyword argument {unknown[0]!r}")
        given = {
            name: value
            for name, value in values.items()
            if value is not None or _takes_none(known[name])
        }
        if missing := [
            name for name, member in known.items() if is_required(member) and name not in given
        ]:
            if nothing := [name for name in missing if name in values]:
                raise InvalidInputError(
                    f"{self.title} needs {nothing[0]}, and it is None; give one"
                )
            raise TypeError(f"{self.title}() missing the arguments {', '.join(map(repr, missing))}")
        vars(self).update(
            {
                name: given[name] if name in given else default_of(member)
                for name, member in known.items()
            }
        )
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
        return not any(_differ(value, vars(other)[name]) for name, value in vars(self).items())

    __hash__ = None  # type: ignore[assignment]  # as of its lists and objects

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_arguments().items())})"

    @classmethod
    def of(cls, arguments: object) -> Self:
        """From a JSON object; null is what is not given."""
        if not isinstance(arguments, Mapping):
            raise InvalidInputError(
                f"arguments of {cls.title} must map names to values, and are {_word(type(arguments))}"
            )
        known = cls.fields()
        given = {
            name: value
            for name, value in arguments.items()
            if value is not None or (name in known and _takes_none(known[name]))
        }
        if unknown := sorted(map(str, set(arguments) - set(known))):
            raise InvalidInputError(
                f"{cls.title} has no argument {', '.join(unknown)}; known are {', '.join(known)}"
            )
        if missing := [
            name for name, member in known.items() if is_required(member) and name not in given
        ]:
            raise InvalidInputError(f"{cls.title} needs the argument {', '.join(missing)}; add it")
        return cls(**cls.plain(given))

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """The same, where JSON may have other forms of them, too."""
        return arguments

    def to_arguments(self) -> dict[str, Any]:
        """For JSON: all that are not the default."""
        arguments = {
            name: getattr(self, name)
            for name, member in self.fields().items()
            if _differ(getattr(self, name), default_of(member))
        }
        return {name: _json_value(value) for name, value in arguments.items()}

    @classmethod
    def fields(cls) -> "dict[str, Field[Any]]":
        """Return the arguments as they are declared; what one needs comes first, the token last."""
        known = {member.name: member for member in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        return {
            name: known[name]
            for name in sorted(
                known, key=lambda name: (name == cls.token_argument, not is_required(known[name]))
            )
        }

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that are arguments of this, and given: of the parameters of a function, say."""
        return given_fields(cls, values)

    @classmethod
    def taken_from(cls, values: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
        """Take the arguments of this, by names with a prefix, out of those of a function."""
        named = {name: f"{prefix}{name}" for name in cls.fields()}
        return {name: values.pop(given) for name, given in named.items() if given in values}

    @classmethod
    def changed(cls, values: Mapping[str, Any]) -> set[str]:
        """Return the names of the arguments whose values are not the default."""
        return {
            name
            for name, member in cls.fields().items()
            if name in values and _differ(values[name], default_of(member))
        }

    @classmethod
    def checked(
        cls, arguments: Mapping[str, Any], is_open: Callable[[Any], bool] = nothing_open
    ) -> dict[str, Any]:
        """Those that are given, as JSON holds them. What is open, as a template is before its run, is not looked at."""
        known = {member.name: member for member in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        checked_arguments = {
            name: value if is_open(value) else _checked(cls.title, name, value, known[name].type)
            for name, value in arguments.items()
            if value is not None
        }
        cls.check_together(
            {**{name: default_of(member) for name, member in known.items()}, **checked_arguments},
            is_open,
        )
        return checked_arguments

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Whether they go together."""

    @classmethod
    def filled_in(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What templates have made of them: of numbers and truth values texts."""
        known = cls.fields()
        return {
            name: _filled_in(value, known[name].type) if name in known else value
            for name, value in arguments.items()
        }


def _by_name(
    kind: str, known: Mapping[str, "Field[Any]"], in_order: Sequence[Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Give the arguments that came by position their names."""
    names = [name for name, member in known.items() if not member.kw_only]
    if len(in_order) > len(names):
        raise TypeError(
            f"{kind} takes {len(names)} positional arguments, and {len(in_order)} were given"
        )
    by_name = dict(zip(names, in_order, strict=False))
    if twice := sorted(by_name.keys() & values.keys()):
        raise TypeError(f"{kind} got multiple values for argument {twice[0]!r}")
    return {**by_name, **values}


def given_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of a dataclass, and given."""
    return {
        member.name: values[member.name]
        for member in fields(kind)
        if values.get(member.name) is not None
    }


def is_required(member: "Field[Any]") -> bool:
    return member.default is MISSING and member.default_factory is MISSING


def _takes_none(member: "Field[Any]") -> bool:
    """Whether None is a value of it."""
    return default_of(member) is not None and type(None) in types_of(member.type)


def default_of(member: "Field[Any]") -> Any:
    """None of one that has to be given."""
    if member.default_factory is not MISSING:
        return member.default_factory()
    return None if member.default is MISSING else member.default


def kind_of(hint: Any) -> Kind | None:
    """The kind of an argument's values, if it is one of `values`."""
    return next((part for part in _parts(hint) if isinstance(part, Kind)), None)


def help_of(hint: Any) -> Help | None:
    """The help of an argument, if it has one."""
    return next((part for part in _parts(hint) if isinstance(part, Help)), None)


def types_of(hint: Any) -> frozenset[Any]:
    """The types of a union, or the one that it is."""
    if get_origin(hint) is Annotated:
        return types_of(get_args(hint)[0])
    if get_origin(hint) in _UNIONS:
        return frozenset().union(*map(types_of, get_args(hint)))
    return frozenset({hint})


def plain_type(hint: Any) -> Any:
    """Return a type without its annotations, as a signature shows it."""
    if get_origin(hint) is Annotated:
        return plain_type(get_args(hint)[0])
    if get_origin(hint) in _UNIONS:
        return reduce(or_, map(plain_type, get_args(hint)))
    return hint


def _parts(hint: Any) -> list[Any]:
    """What annotates a type, at any depth of its unions."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return [*notes, *_parts(inner)]
    return (
        [note for part in get_args(hint) for note in _parts(part)]
        if get_origin(hint) in _UNIONS
        else []
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hint:
    """The parts of an argument's type, taken apart once: every ingest checks its arguments."""

    types: frozenset[Any]
    kind: Kind | None
    nested: type[Declared] | None


@cache
def _hint(hint: Any) -> _Hint:
    return _Hint(types=types_of(hint), kind=kind_of(hint), nested=_declared(hint))


def _checked(operation: str, name: str, value: Any, hint: Any) -> Any:
    known = _hint(hint)
    if known.nested is not None:
        return value if isinstance(value, known.nested) else known.nested.of(value)
    value = _plain_value(value, known.types)
    if known.kind is not None:
        return known.kind.check(name, value)
    if known.types == {bool} and not isinstance(value, bool):
        raise InvalidInputError(
            f"{operation}: {name}={value!r} is {_word(type(value))}, neither true nor false"
        )
    if isinstance(value, str) and any(
        get_origin(part) in (list, Sequence) for part in _union(hint)
    ):
        raise InvalidInputError(f"{name}={value!r} is a text; give a list: {name}=[{value!r}]")
    if not _fits(value, hint):
        raise InvalidInputError(f"{operation}: argument {name} {_advice(value, hint)}")
    if isinstance(value, Mapping):
        return dict(value)
    if any(get_origin(part) is tuple for part in _union(hint)):
        return tuple(value)
    return list(value) if isinstance(value, tuple) else value


def _plain_value(value: Any, types: Collection[Any]) -> Any:
    """Return numbers and lists of other libraries as those of Python."""
    if Any in types or object in types:
        return value
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    takes_list = any(get_origin(part) in (list, Sequence) for part in types)
    is_collection = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return [*value] if takes_list and is_collection else value


def _differ(one: Any, other: Any) -> bool:
    """Whether two values differ; arrays, which do not say so with one word, do."""
    try:
        return bool(one != other)
    except ValueError:
        return one is not other


def _json_value(value: Any) -> Any:
    if isinstance(value, Declared):
        return value.to_arguments()
    return value.isoformat() if isinstance(value, datetime) else value


def _filled_in(value: Any, hint: Any) -> Any:
    if types_of(hint) == {bool}:
        return filled_in_flag(value)
    kind = kind_of(hint)
    return filled_in(value) if kind is not None and kind.takes_number else value


def _declared(hint: Any) -> type[Declared] | None:
    if isinstance(hint, type) and issubclass(hint, Declared):
        return hint
    return (
        next(filter(None, map(_declared, get_args(hint))), None)
        if get_origin(hint) in (*_UNIONS, Annotated)
        else None
    )


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin in _UNIONS:
        return any(_fits(value, part) for part in parts)
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_fits(member, parts[0]) for member in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _fits(member, parts[1]) for key, member in value.items()
        )
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(parts)
            and all(map(_fits, value, parts))
        )
    if hint is Any:
        return True
    return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))


def _advice(value: Any, hint: Any) -> str:
    kinds = _union(hint)
    expected = [kind for kind in kinds if kind is not type(None)]
    word = _word(type(value))
    if get_origin(expected[0]) in (dict, Mapping):
        return f"must {_expected(expected[0])}" + (
            "" if isinstance(value, Mapping) else f", and is {word}"
        )
    if expected == [str] and isinstance(value, int) and not isinstance(value, bool):
        return f"is {word}; write it as {str(value)!r}"
    if (wrong := _wrong_member(value, expected)) is not None:
        word = f"{word} with {wrong}"
    return f"is {word}; give {' or '.join(map(_expected, expected))}" + (
        ", or leave it out" if len(expected) < len(kinds) else ""
    )


def _wrong_member(value: Any, expected: Sequence[Any]) -> str | None:
    """Return in words the first member of a list that does not fit; None for another value."""
    if not isinstance(value, list | tuple):
        return None
    for kind in expected:
        if get_origin(kind) in (list, Sequence):
            (part,) = get_args(kind)
            wrong = next(member for member in value if not _fits(member, part))
            return f"{wrong!r}, which is {_word(type(wrong))}"
    return None


def _union(hint: Any) -> tuple[Any, ...]:
    """The parts that a value may be one of."""
    if get_origin(hint) is Annotated:
        return _union(get_args(hint)[0])
    return (
        tuple(kind for part in get_args(hint) for kind in _union(part))
        if get_origin(hint) in _UNIONS
        else (hint,)
    )


def _expected(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _expected(parts[0])
    if origin in _UNIONS:
        return " or ".join(_expected(part) for part in parts)
    if origin in (list, Sequence):
        return f"a list, each {_expected(parts[0])}"
    if origin is tuple:
        return f"a pair: {' and '.join(map(_expected, parts))}"
    if origin in (dict, Mapping):
        return "map names to values" + ("" if parts[1] is Any else f", each {_expected(parts[1])}")
    return _word(hint)


def _word(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)
