"""The kinds of values that arguments have.

Each kind has one check. The check returns the value as JSON holds it. Otherwise it raises
InvalidInputError with a message that says what to write instead.
"""

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
MAX_MEGABYTES = 1 << 20  # a tebibyte
_CHANGE = '{"rename": "a", "to": "b"}'
_WHOLE = r"[0-9]{1,18}"
_NUMBER = rf"{_WHOLE}(\.[0-9]{{1,9}})?"


class Kind:
    """A kind of value: its check, its name in help, and its choices.

    `check` gets the name and the value of an argument. `takes_number` is true if the number that a
    text of digits stands for is a value of this kind.
    """

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
    """The help of an argument on a command line, and the name of its value there.

    `flag` is the name of the flag if it differs from the argument: a flag that is repeated has the
    singular.
    """

    __slots__ = ("flag", "metavar", "text")

    def __init__(self, text: str, metavar: str | None = None, *, flag: str | None = None) -> None:
        self.text = text
        self.metavar = metavar
        self.flag = flag


def span_text(name: str, value: Any) -> str:
    """Return a span of time as text, the form of a job's arguments.

    Raises InvalidInputError for another value, and for a fraction of a millisecond.
    """
    return plain_duration(_span(name, value), name=name)


def _positive_span_text(name: str, value: Any) -> str:
    """Return a span of time as text; raise InvalidInputError if it is 0."""
    text = span_text(name, value)
    if not parse_duration(text, name=name):
        raise InvalidInputError(f"{name}={value!r} is too short; give more than 0")
    return text


def span_of(name: str, value: Duration) -> timedelta:
    """Return a span of time as a timedelta, to calculate with."""
    return timedelta(microseconds=parse_duration(_span(name, value), name=name))


def _span(name: str, value: Any) -> Any:
    """Return a value that has the form of a span of time; its length is not checked."""
    if not _is_span(value):
        raise InvalidInputError(
            f"{name}={value!r} is not a duration; write it as '12h', '30d', '2w' or '1h30m', "
            "or in Python as timedelta(days=30)"
        )
    return value


def _is_span(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(DURATION, value) is not None
    return isinstance(value, timedelta) and value >= timedelta()


def delta_span(name: str, value: Any) -> str | int:
    """Return a span of time, or a whole number in the unit of a numeric delta column."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise InvalidInputError(
                f"{name}={value!r} is negative; "
                "write a whole number of at least 0, or a span of time such as '30d'"
            )
        return value
    if isinstance(value, str) and re.fullmatch(_WHOLE, value):
        return value
    return span_text(name, value)


def _delta_span_or_none(name: str, value: Any) -> str | int:
    """Return a span of the delta column; the empty text stays, for no span."""
    if value == "":
        return ""
    return delta_span(name, value)


def whole_number(name: str, value: Any) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def _megabytes(name: str, value: Any) -> int:
    """Return a size in megabytes."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= MAX_MEGABYTES:
        raise InvalidInputError(
            f"{name} must be a whole number of megabytes from 1 to {MAX_MEGABYTES}, got {value!r}"
        )
    return int(value)


def _limit(name: str, value: Any) -> int:
    """Return the greatest length of a list; 0 stands for a list of any length."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name} must be a whole number of at least 1, or 0 for all, got {value!r}"
        )
    return value


def percent(name: str, value: Any) -> int:
    """Return a share in percent, given as a percentage or as a fraction such as 0.3."""
    # A fraction of 0.005 or less would be rounded to 0
    if isinstance(value, float) and 0.005 < value <= 1:
        return round(value * 100)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        raise InvalidInputError(
            f"{name}={value!r} is not a percentage; write a whole number from 1 to 100, "
            "or a fraction such as 0.3"
        )
    return value


def codec(name: str, value: Any) -> str:
    """Return the codec of files; raise InvalidInputError unless it is zstd."""
    if not isinstance(value, str) or not re.fullmatch(CODEC, value):
        raise InvalidInputError(
            f"{name}={value!r} is not a codec; write 'zstd:1' to 'zstd:22' "
            "(higher levels make smaller files and take longer)"
        )
    return value


def cluster_columns(name: str, value: Any) -> list[str]:
    """Return the columns of a Z-order."""
    columns = _names(value)
    if columns is None:
        raise InvalidInputError(
            f"{name}={value!r} is not a list of columns; write {name}=['customer_id', 'created_at']"
        )
    if not 1 <= len(columns) <= MAX_CLUSTER_COLUMNS:
        raise InvalidInputError(
            f"{name} has {len(columns)} columns; give 1 to {MAX_CLUSTER_COLUMNS} columns, those "
            "that queries filter by most: each further column weakens the others"
        )
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise InvalidInputError(f"{name} names {', '.join(repeated)} twice; name each column once")
    return columns


def _cluster_columns_or_none(name: str, value: Any) -> list[str]:
    """Return the columns of a Z-order; an empty list stays, for no Z-order."""
    if isinstance(value, list | tuple) and not value:
        return []
    return cluster_columns(name, value)


def column_names(name: str, value: Any) -> list[str]:
    """Return the names of columns, which may be none."""
    if isinstance(value, str):
        raise InvalidInputError(f"{name}={value!r} is a text; give a list: {name}=[{value!r}]")
    columns = _names(value)
    if columns is None:
        raise InvalidInputError(
            f"{name}={value!r} is not a list of columns; write {name}=['customer_id']"
        )
    return columns


def _names(value: Any) -> list[str] | None:
    """Return the names that a value lists; None if it is not a list of names."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return None
    are_names = all(isinstance(column, str) and column for column in value)
    return list(value) if are_names else None


def function_name(name: str, value: Any) -> str:
    """Return the name of a function, which is written as `package.module:function`."""
    module, _, attribute = str(value).partition(":")
    if not isinstance(value, str) or not module or not attribute:
        raise InvalidInputError(
            f"{name}={value!r} does not name a function; write it as 'package.module:function'"
        )
    return value


def bound(name: str, value: Any) -> str | int | datetime:
    """Return a bound of a range of changes: a version, a commit time, or a name.

    A text of digits is a version. The table decides what another text means.
    """
    if isinstance(value, str) and value.strip():
        return int(value) if re.fullmatch(_WHOLE, value) else value
    if isinstance(value, datetime):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a valid {name}; give a version such as 8, "
            "a commit time such as '2026-01-31T12:00:00Z', or the name of a savepoint"
        )
    return value


def version_number(name: str, value: Any) -> int:
    """Return the number of a version."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(
            f"{name}={value!r} is not a version; write one of the numbers that `opal history` lists"
        )
    return value


def threshold(name: str, value: Any) -> int | str:
    """Return a number of rows or a percentage, which `parse_threshold` parses later."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInputError(
            f"{name}={value!r} is not a threshold; write a number of rows such as 100, "
            "or a percentage of them such as '5%'"
        )
    return value


def by_name(name: str, value: Any) -> Any:
    """Return a mapping; its names and values are checked where they are used."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(
            f"{name}={value!r} is not a mapping; write {name}={{'name': value}}"
        )
    return dict(value)


def change_list(name: str, value: Any) -> list[Any]:
    """Return changes of a table's definition as JSON objects.

    Their keys and values are checked where they are applied.
    """
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not is_list or not value:
        raise InvalidInputError(
            f"{name}={value!r} is not a list of changes; write {name}=[{_CHANGE}]"
        )
    return [_change(change) for change in value]


def _change(change: Any) -> dict[str, Any]:
    """Return one change as a JSON object."""
    plain = change.to_json() if hasattr(change, "to_json") else change
    if not isinstance(plain, Mapping):
        raise InvalidInputError(f"{change!r} is not a change; write {_CHANGE}")
    return dict(plain)


def one_of(*words: str) -> Kind:
    """Return the kind of values that are one of these words."""

    def check(name: str, value: Any) -> str:
        if value not in words:
            raise InvalidInputError(f"{name}={value!r} is unknown; use one of {', '.join(words)}")
        return str(value)

    return Kind(check, "WORD", choices=words)


def filled_in(value: Any) -> Any:
    """Return the number that a rendered template has as text; other values stay."""
    if not isinstance(value, str) or not re.fullmatch(_NUMBER, value.strip()):
        return value
    if "." in value:
        return float(value)
    return int(value)


def filled_in_flag(value: Any) -> Any:
    """Return the truth value that a rendered template has as text; other values stay."""
    if not isinstance(value, str):
        return value
    return {"true": True, "false": False}.get(value.strip().lower(), value)


TARGET_MB = Help("size of the written files, in megabytes (default: property target_mb)")
GRACE = Help("how long jobs and readers may take (default: 1d); older jobs can no longer commit")
METADATA = one_of("batch", "inline")
INGEST_MODE = one_of("append", "replace")
ON_BAD_ROWS = one_of("fail", "quarantine")
ON_NEW_COLUMNS = one_of("fail", "add", "ignore")

Metadata = Annotated[str, METADATA]
IngestMode = Annotated[str, INGEST_MODE]
OnBadRows = Annotated[str, ON_BAD_ROWS]
OnNewColumns = Annotated[str, ON_NEW_COLUMNS]
OnEmpty = Annotated[str, one_of("fail", "accept")]
FileFormat = Annotated[str, one_of("parquet", "orc")]
ChangeMode = Annotated[str, one_of(*CHANGE_MODES)]
ChangeAxis = Annotated[str, one_of(*CHANGE_AXES)]
Moment = object  # a datetime, or a text such as 2026-01-31T12:00:00+00:00
Where = Annotated[str, Help("only rows that meet this condition", "CONDITION")]
Span = Annotated[Duration, Kind(span_text, "SPAN")]
PositiveSpan = Annotated[Duration, Kind(_positive_span_text, "SPAN")]
DeltaSpan = Annotated[Duration | int, Kind(delta_span, "SPAN", takes_number=True)]
# The empty text means no span, whatever the table's property is
PolicySpan = Annotated[Duration | int, Kind(_delta_span_or_none, "SPAN", takes_number=True)]
Percent = Annotated[float, Kind(percent, "N", takes_number=True)]
MegaBytes = Annotated[int, Kind(_megabytes, "MB", takes_number=True)]
Count = Annotated[int, Kind(whole_number, "N", takes_number=True)]
Limit = Annotated[int, Kind(_limit, "N", takes_number=True)]
RowCount = Annotated[int, Kind(whole_number, "N", takes_number=True)]
Version = Annotated[int, Kind(version_number, "N", takes_number=True)]
Bound = Annotated[str | int | datetime, Kind(bound, "BOUND")]
Threshold = Annotated[int | str, Kind(threshold, "N|N%")]
Codec = Annotated[str, Kind(codec, "CODEC")]
Columns = Annotated[Sequence[str], Kind(column_names, "COLUMN")]
ClusterColumns = Annotated[Sequence[str], Kind(cluster_columns, "COLUMN")]
# The empty list means no column, whatever the table's property is
PolicyColumns = Annotated[Sequence[str], Kind(_cluster_columns_or_none, "COLUMN")]
Function = Annotated[str, Kind(function_name, "MODULE:FUNCTION")]
Properties = Mapping[str, int | str]
ByName = Annotated[Any, Kind(by_name, "NAME=VALUE")]
ChangeList = Annotated[Sequence[Any], Kind(change_list, "CHANGE")]
