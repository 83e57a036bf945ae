"""How far each application has read its source, as its commits say (FORMAT, positions)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opal_lake import checked
from opal_lake.errors import FencedError, InvalidInputError

MOST_CHARACTERS = 1024  # of an application's id
_MOST = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A commit takes an application from position `start` to `end`, the next one to read, and only if it stands at `start`.

    An application stands at 0 until a commit says otherwise; with `first` it may begin at any `start` then. With `back` it may go back,
    to read again.
    """

    start: int
    end: int
    first: bool = False
    back: bool = False

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if type(getattr(self, name)) is not int:
                raise InvalidInputError(
                    f"{name}={getattr(self, name)!r} of an Advance is not a whole number; "
                    "positions are counted from 0, below 2^63"
                )
        if not 0 <= self.start < _MOST or not 0 <= self.end < _MOST:
            raise InvalidInputError(
                f"the position goes from {self.start} to {self.end}; positions are counted from 0, below 2^63"
            )
        if self.end < self.start and not self.back:
            raise InvalidInputError(
                f"the position goes from {self.start} back to {self.end}; say back=True if it is to be read again"
            )

    def fits(self, position: int) -> bool:
        return position == self.start or (self.first and position == 0)


def check_names(positions: Mapping[str, Advance], application: Sequence[Any] | None = None) -> None:
    """One commit says one thing of an application."""
    for name in positions:
        if not name or len(name) > MOST_CHARACTERS:
            raise InvalidInputError(
                f"{name[:80]!r} names no application; give it 1 to {MOST_CHARACTERS:,} characters"
            )
    if application is not None and application[0] in positions:
        raise InvalidInputError(
            f"application {application[0]!r} has a sequence and a position in one ingest; give it one of them"
        )


def fenced_error(
    table: str, application: str, advance: Advance, position: int, writer: str
) -> FencedError:
    """`writer` says which commit took it there."""
    told = f"{table}: application {application!r} stands at {position}, not at {advance.start}: {writer}"
    way_out = "another process reads for it. Nothing was committed; stop, or go on from the position that the table has"
    if position == 0:
        way_out = f"nothing was committed; to begin at {advance.start} say first=True"
    return FencedError(f"{told}; {way_out}", application, advance.start, position)


def advanced(applications: Mapping[str, int], positions: Mapping[str, Advance]) -> dict[str, int]:
    """The last sequence that was applied of each application: the one before its position, and none at 0."""
    ends = {name: advance.end - 1 for name, advance in positions.items()}
    return {name: last for name, last in (dict(applications) | ends).items() if last >= 0}


def positions_to_json(positions: Mapping[str, Advance]) -> dict[str, list[int]]:
    return {name: [advance.start, advance.end] for name, advance in positions.items()}


def positions_from_json(data: Any) -> dict[str, Advance]:
    return {
        name: _advance(*map(checked.count, checked.listed(pair)))
        for name, pair in checked.mapped(data).items()
    }


def _advance(start: int, end: int) -> Advance:
    """Whether it was the first is not written: the commits before tell."""
    return Advance(start=start, end=end, back=end < start)
