"""The limit of bad rows that an ingest may put into quarantine."""

import re
from dataclasses import dataclass
from fractions import Fraction

from opal_lake.errors import InvalidInputError

_ROWS = re.compile(r"[0-9]{1,18}")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectThreshold:
    """A limit of rejected rows, above which an ingest fails.

    Either `rows` or `percent` is given.
    """

    rows: int | None = None
    percent: Fraction | None = None

    def is_exceeded(self, rejected: int, read: int) -> bool:
        return rejected > self.max_rejected(read)

    def max_rejected(self, read: int) -> int:
        """Return how many of the rows that an ingest read may be rejected."""
        if self.rows is not None:
            return self.rows
        percent = self.percent or Fraction(0)
        return int(read * percent / 100)

    def __str__(self) -> str:
        if self.percent is None:
            return f"{self.rows:,}"
        return f"{float(self.percent):g}%"


def parse_threshold(value: int | str | None, on_bad_rows: str) -> RejectThreshold | None:
    """Parse a number of rows, or a percentage of them such as '5%'.

    Raises InvalidInputError for another value, and for a threshold without quarantine.
    """
    if value is None:
        return None
    if on_bad_rows != "quarantine":
        raise InvalidInputError(
            f"reject_threshold={value!r} has no effect with on_bad_rows={on_bad_rows!r}; "
            "add on_bad_rows='quarantine' (--quarantine)"
        )
    # True and False are numbers in Python
    text = ""
    if not isinstance(value, bool):
        text = str(value).strip()
    if _ROWS.fullmatch(text):
        return RejectThreshold(rows=int(text))
    match = _PERCENT.fullmatch(text)
    if match is None or Fraction(match[1]) > 100:
        raise InvalidInputError(
            f"reject_threshold={value!r} is not a threshold; "
            "write a number of rows such as 100, or a percentage of them such as '5%'"
        )
    return RejectThreshold(percent=Fraction(match[1]))
