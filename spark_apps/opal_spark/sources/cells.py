"""The conversion of texts to a column's type, exactly or not at all.

A text becomes null if its value would be rounded, cut off, shifted or guessed. `try_cast` alone
rounds decimals, drops zones and fractions, and reads `2020` as a date and `10:15` as a time of
today. The patterns here exclude such texts.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from opal_lake.definition.schema import Atomic, decimal_parts, type_name

# The datetime patterns of a source's options, by type name
Patterns = Mapping[str, str]

_OPTIONS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
}
_INTEGERS = ("byte", "short", "integer", "long")
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_NOT_FINITE = r"^\s*(?i:nan|[+-]?inf(inity)?)\s*$"
_DAY = r"^\s*[+-]?\d{4,}-\d{1,2}-\d{1,2}"
_TIME = r"[T ]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d{0,6}0*)?)?"
_DATE = _DAY + r"([T ]0{1,2}:00(:00(\.0+)?)?)?\s*$"
_LOCAL = _DAY + rf"({_TIME})?\s*$"
_ZONED = _DAY + rf"{_TIME}\s*[A-Za-z+-]\S*\s*$"


def patterns_of(options: Mapping[str, str]) -> Patterns:
    """Return the datetime patterns among a reader's options."""
    given = {name.casefold(): value for name, value in options.items()}
    patterns = {}
    for kind, option in _OPTIONS.items():
        if option.casefold() in given:
            patterns[kind] = given[option.casefold()]
    return patterns


def parse_text(text: Column, kind: Atomic, patterns: Patterns) -> Column:
    """Return the value of a text; null for null and for a text that is not valid."""
    if kind.name in patterns:
        return _by_pattern(text, kind, patterns[kind.name])
    if parts := decimal_parts(kind.name):
        return _decimal(text, *parts)
    return _PARSERS[kind.name](text, kind)


def wrong_type(path: str, kind: Atomic) -> str:
    """Return the reason for a text that is not a valid value.

    The reason does not contain the text, so that rows can be counted by reason.
    """
    return f"column {path!r} is not a valid {type_name(kind)}"


def bind(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return `use(value)`; the value is computed once, however often it is used."""
    # The parameter of a lambda is a variable in the generated code
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _by_pattern(text: Column, kind: Atomic, pattern: str) -> Column:
    # The whole text is one cell: this parser has no separator or quote that occurs in it
    options = {"sep": "\u0001", "quote": "", "escape": "\u0002", _OPTIONS[kind.name]: pattern}
    return F.from_csv(text, f"v {kind.name}", options).getField("v")


def _same(text: Column, _: Atomic) -> Column:
    return text


def _cast(text: Column, kind: Atomic) -> Column:
    return text.try_cast(kind.name)


def _decimal(text: Column, precision: int, scale: int) -> Column:
    value = text.try_cast(f"decimal({precision},{scale})")
    plain = text.rlike(rf"^\s*[+-]?\d*(\.\d{{0,{scale}}}0*)?\s*$")
    scientific = text.rlike("[eE]") & (value.cast("double") == text.try_cast("double"))
    return F.when(plain | scientific, value)


def _float(text: Column, kind: Atomic) -> Column:
    value = text.try_cast(kind.name)
    # 1e400 would be infinite
    finite = text.rlike(_NUMBER) & (F.abs(value) < F.lit(float("inf")))
    return F.when(finite | text.rlike(_NOT_FINITE), value)


def _date(text: Column, _: Atomic) -> Column:
    return F.when(text.rlike(_DATE), text.try_cast("date"))


def _timestamp(text: Column, _: Atomic) -> Column:
    value = text.try_cast("timestamp")
    # A text without a zone is a time in the session's zone, in which some times do not exist
    exists = text.rlike(_LOCAL) & (value.cast("timestamp_ntz") == text.try_cast("timestamp_ntz"))
    return F.when(exists | text.rlike(_ZONED), value)


def _timestamp_ntz(text: Column, _: Atomic) -> Column:
    return F.when(text.rlike(_LOCAL), text.try_cast("timestamp_ntz"))


_PARSERS: dict[str, Callable[[Column, Atomic], Column]] = {
    **dict.fromkeys((*_INTEGERS, "boolean", "binary"), _cast),
    **dict.fromkeys(("float", "double"), _float),
    "string": _same,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
