"""Checks of types and sizes in a table's metadata (FORMAT, untrusted metadata).

Each check returns the value or raises ValueError, which `decoding.py` turns into an error that
names the file. This module does not need Arrow, since Airflow's scheduler reads job results.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")

LATEST = "latest"  # a start of changes: after the newest version
MAX_NESTED = 64  # levels of nested types, and of nested values in a result
_SIGNED, _UNSIGNED, _CRC = 1 << 63, 1 << 64, 1 << 32
# The years 1 to 9999, in microseconds.
_FIRST_MOMENT, _LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_800_000_000
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}").fullmatch
# Not digits alone: changes(start) would take such a name for the number of a version.
_BUSINESS_SNAPSHOT = re.compile(r"(?![0-9]+\Z)[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}").fullmatch


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of this format")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]").search


def parse_canonical(data: bytes) -> Any:
    """Parse the JSON of a commit; raise ValueError for unpaired surrogates, too.

    A commit with an unpaired surrogate could not be written again, since UTF-8 lacks it.
    """
    # This test takes a hundredth of the time of the regular expression. Paired surrogates have no
    # escape, because writers store the character itself.
    has_escape = b"\\ud" in data or b"\\uD" in data
    if has_escape and _LONE_SURROGATE(data):
        raise ValueError("the JSON has an escape of an unpaired surrogate")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """Parse any JSON; raise ValueError also if it is nested too deeply."""
    try:
        return _DECODER.decode(data.decode())
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < _SIGNED


def count(value: Any) -> int:
    """Check a whole number from 0 to 2**63 - 1."""
    if not is_count(value):
        raise ValueError(f"{value!r} is not a whole number from 0 to {_SIGNED - 1}")
    return value


def counts(values: Any) -> tuple[int, ...]:
    """Check a list of counts."""
    numbers = tuple(listed(values))
    # Not by `count`: a commit has many numbers, and a call for each takes several times as long.
    for value in numbers:
        if type(value) is not int or not 0 <= value < _SIGNED:
            raise ValueError(f"{value!r} is not a whole number from 0 to {_SIGNED - 1}")
    return numbers


def word(value: Any) -> int:
    """Check a signed 64-bit number."""
    if type(value) is not int or not -_SIGNED <= value < _SIGNED:
        raise ValueError(f"{value!r} is not a whole number of 64 bits")
    return value


def moment(value: Any) -> int:
    """Check a time in microseconds since 1970, from the year 1 to 9999."""
    if type(value) is not int or not _FIRST_MOMENT <= value < _LAST_MOMENT:
        raise ValueError(f"{value!r} is not a time in microseconds of the years 1 to 9999")
    return value


def hash_word(value: Any) -> int:
    """Check an unsigned 64-bit number."""
    if type(value) is not int or not 0 <= value < _UNSIGNED:
        raise ValueError(f"{value!r} is not an unsigned 64-bit number")
    return value


def crc(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _CRC:
        raise ValueError(f"{value!r} is not a CRC")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def plain_id(value: Any) -> str:
    """Check an id that is part of file names."""
    if not isinstance(value, str) or not _ID(value):
        raise ValueError(f"{value!r} is not an id: up to 64 letters, digits, `_`, `-` and `.`")
    return value


def is_business_snapshot(value: Any) -> bool:
    """Return whether a value can name a business snapshot."""
    return isinstance(value, str) and _BUSINESS_SNAPSHOT(value) is not None


def business_snapshot(value: Any) -> str:
    if not is_business_snapshot(value):
        raise ValueError(f"{value!r} is not the name of a business snapshot")
    return str(value)


def listed(value: Any) -> list[Any]:
    """Check a list or tuple; refuse texts and mappings, which Python can iterate, too."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is not a list")
    return list(value)


def mapped(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a mapping")
    return value


def numbered(value: Any) -> dict[str, int]:
    """Check a mapping of texts to counts."""
    return {name: count(number) for name, number in mapped(value).items()}


def shallow(value: Any, max_levels: int = MAX_NESTED) -> Any:
    """Check that values are not nested too deeply for a recursive walk."""
    level = [value]
    for _ in range(max_levels):
        next_level: list[Any] = []
        for member in level:
            next_level += _members(member)
        if not next_level:
            return value
        level = next_level
    raise ValueError(f"values are nested more than {max_levels} levels deep")


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return ()


def optional(value: Any, check: Callable[[Any], T]) -> T | None:
    """Return None for None, and the checked value otherwise."""
    return None if value is None else check(value)


def if_present(data: Mapping[str, Any], name: str, check: Callable[[Any], T]) -> T | None:
    """Return the checked value of a name, or None if the mapping lacks it.

    A null is checked, too: a field that may be absent may not be null.
    """
    return check(data[name]) if name in data else None
