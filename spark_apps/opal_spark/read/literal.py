"""SQL literals as values, where Spark compares the column with exactly that value; else None.

Zones are this process's: a session's zone whose rules differ between Java's and Python's time-zone data would be read differently. Before
1970 they do differ, so that such texts are None, unless the zone is a fixed one.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlglot import exp

from opal_lake.data.prune import Given
from opal_lake.spec.schema import Atomic, Field, decimal_parts

_TYPE = exp.DataType.Type
_INTEGER_CASTS = {_TYPE.TINYINT: 8, _TYPE.SMALLINT: 16, _TYPE.INT: 32, _TYPE.BIGINT: 64}
_INSTANT_CASTS = (_TYPE.TIMESTAMPTZ, _TYPE.TIMESTAMPLTZ)
_NUMBER = re.compile(r"(?=\.?\d)\d*(\.\d*)?\Z")
_DOUBLE = re.compile(r"(?=\.?\d)\d*(\.\d*)?[eE][+-]?\d+\Z")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?(Z|[+-]\d{2}:\d{2})?)?\Z"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{2}):(\d{2})\Z")
_LONG_DIGITS, _DECIMAL_DIGITS = 20, 38
_ZONES_AGREE_FROM = 1970
_WITHOUT_GAPS = ("UTC", "Etc/UTC", "GMT", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralReader:
    """Reads the literals of one SQL text."""

    sql: str
    session_zone: str

    def read(self, node: exp.Expr, field: Field, *, in_list: bool = False) -> Given | None:
        """The value, if the literal is of a kind that Spark compares with that column without loss.

        In a list Spark compares times with texts as texts.
        """
        if not isinstance(field.type, Atomic):
            return None
        kind = field.type.name
        match node:
            case exp.Paren():
                return self.read(node.this, field, in_list=in_list)
            case exp.Boolean():
                return bool(node.this)
            case exp.HexString():
                return _bytes(str(node.this))
            case exp.Literal(is_string=True):
                return self._text_value(kind, node, in_list=in_list)
            case exp.Cast(this=exp.Literal(is_string=True)) if _is_plain_cast(
                node
            ):  # DATE'...' as well as CAST('...' AS DATE)
                return self._time_value(kind, node)
        number = _number(node)
        return number if number is not None and _is_compared_exactly(kind, number) else None

    def read_text(self, node: exp.Expr) -> str | None:
        """A string, unless Spark might read its escapes or quotes differently."""
        plain = (
            isinstance(node, exp.Literal)
            and node.is_string
            and "\\" not in self.sql
            and '"' not in self.sql
        )
        return str(node.this) if plain else None

    def _text_value(self, kind: str, node: exp.Literal, *, in_list: bool) -> Given | None:
        text = self.read_text(node)
        if text is None or kind == "string":
            return text
        if in_list:
            return None
        if kind == "date":
            return _date(text)
        if kind == "timestamp":
            return self._instant(text, unambiguous=True)
        # Spark compares wall-clock times with texts as instants of the session's zone: in a gap, 02:30 equals 03:30
        return (
            _wall_clock(text)
            if kind == "timestamp_ntz" and self.session_zone in _WITHOUT_GAPS
            else None
        )

    def _time_value(self, kind: str, node: exp.Cast) -> Given | None:
        text, target = str(node.this.this), node.to.this
        if target == _TYPE.DATE:
            day = _date(text)
            if (
                kind == "timestamp"
            ):  # a day begins after a gap at midnight, however far the gap reaches into it
                return self._instant(text, unambiguous=True) if day else None
            return day if kind == "date" or day is None else self._time_of(kind, text)
        if kind == "timestamp" and target in _INSTANT_CASTS:
            return self._instant(text)
        return (
            self._time_of(kind, text)
            if target == _TYPE.TIMESTAMPNTZ and _wall_clock(text)
            else None
        )

    def _time_of(self, kind: str, text: str) -> datetime | None:
        """A wall-clock time as the column's type; a wall-clock column never becomes an instant, because that does not keep the order."""
        if kind == "timestamp":
            return self._instant(text)
        return _wall_clock(text) if kind == "timestamp_ntz" else None

    def _instant(self, text: str, *, unambiguous: bool = False) -> datetime | None:
        time = _time(text)
        if time is None or time.tzinfo is not None:
            return time
        zone = _zone(self.session_zone)
        if zone is None or (isinstance(zone, ZoneInfo) and time.year < _ZONES_AGREE_FROM):
            return None
        first, second = time.replace(tzinfo=zone), time.replace(tzinfo=zone, fold=1)
        if unambiguous and first.utcoffset() != second.utcoffset():
            return None
        return first  # of a repeated hour Spark takes the first too, and goes by the old offset in a gap


def _is_plain_cast(node: exp.Cast) -> bool:
    return all(name in ("this", "to") or not value for name, value in node.args.items())


def _bytes(digits: str) -> bytes | None:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def _number(node: exp.Expr) -> int | float | Decimal | None:
    match node:
        case exp.Neg():
            number = _number(node.this)
            return None if number is None else -number
        case exp.Literal(is_string=False):
            return _plain_number(str(node.this))
        case exp.Cast(this=exp.Literal(is_string=False)) if _is_plain_cast(
            node
        ):  # 5L and 5D as well as CAST(5 AS BIGINT)
            return _cast_number(_plain_number(str(node.this.this)), node.to.this)
    return None


def _plain_number(text: str) -> int | float | Decimal | None:
    if _NUMBER.match(text):
        return Decimal(text) if "." in text else int(text)
    return float(text) if _DOUBLE.match(text) else None


def _cast_number(number: Given | None, target: object) -> int | float | None:
    if target == _TYPE.DOUBLE and isinstance(number, int | float | Decimal):
        return float(number)
    bits = _INTEGER_CASTS.get(target) if isinstance(target, _TYPE) else None
    return (
        number
        if bits is not None and isinstance(number, int) and number < 1 << (bits - 1)
        else None
    )


def _is_compared_exactly(kind: str, number: float | Decimal) -> bool:
    """Spark widens both sides to one decimal type; where that would take more than 38 digits it rounds one of them."""
    if isinstance(number, float):
        return True
    exponent = Decimal(number).as_tuple().exponent
    assert isinstance(exponent, int)
    precision, scale = decimal_parts(kind) or (0, 0)
    return max(precision - scale, _LONG_DIGITS) + max(scale, -exponent) <= _DECIMAL_DIGITS


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE.match(text) else None
    except ValueError:
        return None


def _time(text: str) -> datetime | None:
    match = _TIME.match(text)
    if match is None:
        return None
    day, clock, fraction, offset = match.groups()
    try:
        return datetime.fromisoformat(
            f"{day}T{clock or '00:00:00'}.{(fraction or '').ljust(6, '0')}{offset or ''}"
        )
    except ValueError:
        return None


def _wall_clock(text: str) -> datetime | None:
    time = _time(text)
    return time if time is not None and time.tzinfo is None else None


def _zone(name: str) -> tzinfo | None:
    if name in _WITHOUT_GAPS:
        return UTC
    if match := _OFFSET.match(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return (
            timezone(-offset if match[1] == "-" else offset)
            if offset < timedelta(hours=18)
            else None
        )
    if "/" not in name:  # three letters mean one thing to Java and another to the time-zone data
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
