"""How many bad rows an ingest that puts them aside may meet: so many, or so many percent of all that it met."""

import re
from dataclasses import dataclass
from fractions import Fraction

from opal_lake.errors import InvalidInputError

_ROWS, _PERCENT = re.compile(r"[0-9]{1,18}"), re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectThreshold:
    """More than this fails an ingest. One of the two is given."""

    rows: int | None = None
    percent: Fraction | None = None

    def is_exceeded(self, rejected: int, met: int) -> bool:
        return rejected > self.most(met)

    def most(self, met: int) -> int:
        """The most rows that may be rejected of those that the ingest met."""
        return self.rows if self.rows is not None else int(met * (self.percent or 0) / 100)

    def __str__(self) -> str:
        return f"{self.rows:,}" if self.percent is None else f"{float(self.percent):g}%"


def parse_threshold(value: int | str | None, on_bad_rows: str) -> RejectThreshold | None:
    """From a number of rows, or a text as '5%'."""
    if value is None:
        return None
    if on_bad_rows != "quarantine":
        raise InvalidInputError(
            f"reject_threshold={value!r} has no effect with on_bad_rows={on_bad_rows!r}; add on_bad_rows='quarantine'"
        )
    text = "" if isinstance(value, bool) else str(value).strip()
    if _ROWS.fullmatch(text):
        return RejectThreshold(rows=int(text))
    match = _PERCENT.fullmatch(text)
    if match is None or Fraction(match[1]) > 100:
        raise InvalidInputError(
            f"reject_threshold={value!r} is no threshold; write a number of rows, as 100, or a share of them, as '5%'"
        )
    return RejectThreshold(percent=Fraction(match[1]))
