"""Checks on values of a table's metadata, which is untrusted: their type, and limits of size (FORMAT, untrusted metadata).

Each check gives the value back or raises a ValueError; `decoding.py` makes that an error which names the file. Nothing here needs
Arrow, since Airflow's scheduler reads job results.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, TypeGuard

LATEST = "latest"  # where changes may begin: after the newest version
MOST_NESTED = 64  # types within types, or values within those of a result
_SIGNED, _UNSIGNED, _CRC = 1 << 63, 1 << 64, 1 << 32
_FIRST_MOMENT, _LAST_MOMENT = (
    -62_135_596_800_000_000,
    253_402_300_800_000_000,
)  # the years 1 to 9999
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}").fullmatch
_BUSINESS_SNAPSHOT = re.compile(r"(?![0-9]+\Z)[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}").fullmatch


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of this format")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_HALF_A_CHARACTER = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]").search


def parse_canonical(data: bytes) -> Any:
    """JSON as commits have it: ValueError also for what no UTF-8 can say, which could not be written again."""
    is_suspect = (
        b"\\ud" in data or b"\\uD" in data
    )  # the search below takes a hundred times as long
    if is_suspect and _HALF_A_CHARACTER(data):  # whole ones are written as they are
        raise ValueError("it has an escape of an unpaired surrogate")
    return parse_json(data)


def parse_json(data: bytes) -> Any:
    """Any JSON: ValueError also for what is nested too deeply."""
    try:
        return _DECODER.decode(data.decode())
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number from 0 to what 63 bits hold."""
    return type(value) is int and 0 <= value < _SIGNED


def count(value: Any) -> int:
    """From 0 to what 63 bits hold."""
    if not is_count(value):
        raise ValueError(f"{value!r} is no count")
    return value


def counts(values: Any) -> tuple[int, ...]:
    """A list of them."""
    numbers = tuple(listed(values))
    for value in numbers:
        if type(value) is not int or not 0 <= value < _SIGNED:
            raise ValueError(f"{value!r} is no count")
    return numbers


def word(value: Any) -> int:
    """A signed 64-bit number."""
    if type(value) is not int or not -_SIGNED <= value < _SIGNED:
        raise ValueError(f"{value!r} is no 64-bit number")
    return value


def moment(value: Any) -> int:
    """Microseconds since 1970, of a time that has a date."""
    if type(value) is not int or not _FIRST_MOMENT <= value < _LAST_MOMENT:
        raise ValueError(f"{value!r} is no time in microseconds")
    return value


def hash_word(value: Any) -> int:
    """An unsigned 64-bit number."""
    if type(value) is not int or not 0 <= value < _UNSIGNED:
        raise ValueError(f"{value!r} is no word of a hash")
    return value


def crc(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _CRC:
        raise ValueError(f"{value!r} is no CRC")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def plain_id(value: Any) -> str:
    """An id that goes into file names."""
    if not isinstance(value, str) or not _ID(value):
        raise ValueError(f"{value!r} is no id: up to 64 letters, digits, `_`, `-` and `.`")
    return value


def is_business_snapshot(value: Any) -> bool:
    """Whether it can name one. Digits alone would be a version where changes are asked for."""
    return isinstance(value, str) and _BUSINESS_SNAPSHOT(value) is not None


def business_snapshot(value: Any) -> str:
    if not is_business_snapshot(value):
        raise ValueError(f"{value!r} is no business snapshot")
    return str(value)


def listed(value: Any) -> list[Any]:
    """A list, and no text or mapping, which could be iterated as well."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is no list")
    return list(value)


def mapped(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no mapping")
    return value


def numbered(value: Any) -> dict[str, int]:
    """Texts to counts."""
    return {name: count(number) for name, number in mapped(value).items()}


def shallow(value: Any, most: int = MOST_NESTED) -> Any:
    """A value without more than so many within one another: what is walked later has its own stack."""
    level = [value]
    for _ in range(most):
        level = [part for member in level for part in _parts(member)]
        if not level:
            return value
    raise ValueError(f"more than {most} values are nested")


def _parts(value: Any) -> Iterable[Any]:
    return (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
