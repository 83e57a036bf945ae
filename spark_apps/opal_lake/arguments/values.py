"""The kinds of values that arguments have. Each has one check, which returns the value as JSON holds it or says what to write instead."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from opal_lake.duration import DURATION, Duration, parse_duration, plain_duration
from opal_lake.errors import InvalidInputError

CONSUMER_ROWS = ("visible", "changes")
CHANGE_AXES = ("commit", "event_time")
NET = "netChanges"
CHANGE_MODES = ("none", "dropCarryovers", NET)
MAX_CLUSTER_COLUMNS = 8
CODEC = r"zstd(:([1-9]|1[0-9]|2[0-2]))?"
_WHOLE = r"[0-9]{1,18}"
_NUMBER = rf"{_WHOLE}(\.[0-9]{{1,9}})?"


class Kind:
    """A kind of value: its check, how help names it, its choices, and whether a text of digits is a number of this kind."""

    __slots__ = ("check", "choices", "metavar", "takes_number")

    def __init__(
        self,
        check: Callable[[str, Any], Any],
        metavar: str,
        *,
        takes_number: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.check = check
        self.metavar = metavar
        self.takes_number = takes_number
        self.choices = choices


class Help:
    """What a command line says of an argument, and how it names its value.

    `flag` is the name of the flag where it is not that of the argument: one of a list, say.
    """

    __slots__ = ("flag", "metavar", "text")

    def __init__(self, text: str, metavar: str | None = None, *, flag: str | None = None) -> None:
        self.text = text
        self.metavar = metavar
        self.flag = flag


def span_text(name: str, value: Any) -> str:
    """A span of time as a job takes it: whole milliseconds."""
    return plain_duration(_span(name, value), name=name)


def _positive_span_text(name: str, value: Any) -> str:
    """A span of time that is not 0."""
    text = span_text(name, value)
    if not parse_duration(text, name=name):
        raise InvalidInputError(f"{name}={value!r} is too short; give more than 0")
    return text


def span_of(name: str, value: Duration) -> timedelta:
    """A span of time for this process to go by."""
    return timedelta(microseconds=parse_duration(_span(name, value), name=name))


def _span(name: str, value: Any) -> Any:
    """The value, if it has the form of a span of time; how long one may be is up to `parse_duration`."""
    if (
        re.fullmatch(DURATION, value)
        if isinstance(value, str)
        else isinstance(value, timedelta) and value >= timedelta()
    ):
        return value
    raise InvalidInputError(
        f"{name}={value!r} is no duration; write it as '12h', '30d', '2w' or '1h30m', or as timedelta(days=30)"
    )


def delta_span(name: str, value: Any) -> str | int:
    """A span of time; or a whole number in the unit of the delta column, if that holds numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise InvalidInputError(
                f"{name}={value!r} is negative; write a whole number of at least 0, or '30d'"
            )
        return value
    return (
        value if isinstance(value, str) and re.fullmatch(_WHOLE, value) else span_text(name, value)
    )


def _delta_span_or_none(name: str, value: Any) -> str | int:
    return "" if value == "" else delta_span(name, value)


def whole_number(name: str, value: Any) -> int:
    """Of megabytes or files: at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name}={value!r}; write a whole number of at least 1")
    return value


def _limit(name: str, value: Any) -> int:
    """Check how many entries a list has at most; 0 means all."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r}; write a whole number of at least 1, or 0 for all"
        )
    return value


def percent(name: str, value: Any) -> int:
    """A share, as 30 or 0.3."""
    if isinstance(value, float) and 0.005 < value <= 1:
        return round(value * 100)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        raise InvalidInputError(
            f"{name}={value!r} is no percentage; write a whole number from 1 to 100, or a fraction, as 0.3"
        )
    return value


def codec(name: str, value: Any) -> str:
    """How files are compressed."""
    if not isinstance(value, str) or not re.fullmatch(CODEC, value):
        raise InvalidInputError(
            f"{name}={value!r} is no codec; write 'zstd:1' to 'zstd:22', the higher the smaller and slower"
        )
    return value


def cluster_columns(name: str, value: Any) -> list[str]:
    """What a Z-order can go by."""
    columns = _names(value)
    if columns is None:
        raise InvalidInputError(
            f"{name}={value!r} is no list of columns; write {name}=['customer_id', 'created_at']"
        )
    if not 1 <= len(columns) <= MAX_CLUSTER_COLUMNS:
        raise InvalidInputError(
            f"{name} has {len(columns)} columns; give 1 to {MAX_CLUSTER_COLUMNS}, those that queries filter by most: each "
            f"further column weakens the others"
        )
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        raise InvalidInputError(f"{name} names {', '.join(twice)} twice; take one out")
    return columns


def _cluster_columns_or_none(name: str, value: Any) -> list[str]:
    return [] if isinstance(value, list | tuple) and not value else cluster_columns(name, value)


def column_names(name: str, value: Any) -> list[str]:
    """Columns that have a part in a table."""
    if isinstance(value, str):
        raise InvalidInputError(f"{name}={value!r} is a text; give a list: {name}=[{value!r}]")
    columns = _names(value)
    if columns is None:
        raise InvalidInputError(
            f"{name}={value!r} is no list of columns; write {name}=['customer_id']"
        )
    return columns


def _names(value: Any) -> list[str] | None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return (
        list(value)
        if is_list and all(isinstance(column, str) and column for column in value)
        else None
    )


def function_name(name: str, value: Any) -> str:
    """`package.module:function`."""
    module, _, attribute = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not attribute:
        raise InvalidInputError(
            f"{name}={value!r} is no function; write it as 'package.module:function'"
        )
    return str(value)


def bound(name: str, value: Any) -> str | int | datetime:
    """A version, as a number or its digits; a commit time; or a text that the table knows."""
    if isinstance(value, str) and value.strip():
        return int(value) if re.fullmatch(_WHOLE, value) else value
    if isinstance(value, datetime):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a valid {name}: give a version, as 8, a commit time, as "
            "'2026-01-31T12:00:00Z', or the name of a savepoint"
        )
    return value


def version_number(name: str, value: Any) -> int:
    """A version that there may be."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r} is no version; write a whole number, as `opal history` lists them"
        )
    return value


def threshold(name: str, value: Any) -> int | str:
    """A number of rows, or a share of them; `reject_threshold` reads it."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInputError(
            f"{name}={value!r} is not a threshold; write a number of rows, as 100, "
            "or a share of them, as '5%'"
        )
    return value


def by_name(name: str, value: Any) -> Any:
    """A mapping; what its members mean says the room that takes them."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{name}={value!r} is not a mapping; write {name}={{'name': value}}"
        )
    return dict(value)


def one_of(*words: str) -> Kind:
    """A choice."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise InvalidInputError(f"{name}={value!r} is unknown; use one of {', '.join(words)}")
        return str(value)

    return Kind(check, "WORD", choices=words)


def filled_in(value: Any) -> Any:
    """What a template has made of a number: templates make texts."""
    if isinstance(value, str) and re.fullmatch(_NUMBER, value.strip()):
        return float(value) if "." in value else int(value)
    return value


def filled_in_flag(value: Any) -> Any:
    """What a template has made of a truth value."""
    return (
        {"true": True, "false": False}.get(value.strip().lower(), value)
        if isinstance(value, str)
        else value
    )


TARGET_MB = Help("size of the files (default: property target_mb)")
GRACE = Help("how long jobs and readers may take (default: 1d); older jobs can commit no more")
METADATA = one_of("batch", "inline")
ON_BAD_ROWS = one_of("fail", "quarantine")
ON_NEW_COLUMNS = one_of("fail", "add", "ignore")

Metadata = Annotated[str, METADATA]
OnBadRows = Annotated[str, ON_BAD_ROWS]
OnNewColumns = Annotated[str, ON_NEW_COLUMNS]
OnEmpty = Annotated[str, one_of("fail", "accept")]
FileFormat = Annotated[str, one_of("parquet", "orc")]
ChangeMode = Annotated[str, one_of(*CHANGE_MODES)]
ChangeAxis = Annotated[str, one_of(*CHANGE_AXES)]
Moment = object  # a datetime, or a text as 2026-01-31T12:00:00+00:00
Where = Annotated[str, Help("a condition on rows", "CONDITION")]
Span = Annotated[Duration, Kind(span_text, "SPAN")]
PositiveSpan = Annotated[Duration, Kind(_positive_span_text, "SPAN")]
DeltaSpan = Annotated[Duration | int, Kind(delta_span, "SPAN", takes_number=True)]
PolicySpan = Annotated[
    Duration | int, Kind(_delta_span_or_none, "SPAN", takes_number=True)
]  # '' is none, whatever the table's property is
Percent = Annotated[float, Kind(percent, "N", takes_number=True)]
MegaBytes = Annotated[int, Kind(whole_number, "N", takes_number=True)]
Count = Annotated[int, Kind(whole_number, "N", takes_number=True)]
Limit = Annotated[int, Kind(_limit, "N", takes_number=True)]
RowCount = Annotated[int, Kind(whole_number, "N", takes_number=True)]
Version = Annotated[int, Kind(version_number, "N", takes_number=True)]
Bound = Annotated[str | int | datetime, Kind(bound, "BOUND")]
Threshold = Annotated[int | str, Kind(threshold, "N|N%")]
Codec = Annotated[str, Kind(codec, "CODEC")]
Columns = Annotated[Sequence[str], Kind(column_names, "COLUMN")]
ClusterColumns = Annotated[Sequence[str], Kind(cluster_columns, "COLUMN")]
PolicyColumns = Annotated[
    Sequence[str], Kind(_cluster_columns_or_none, "COLUMN")
]  # [] is none, whatever the table's property is
Function = Annotated[str, Kind(function_name, "MODULE:FUNCTION")]
Properties = Mapping[str, int | str]
ByName = Annotated[Any, Kind(by_name, "NAME=VALUE")]
