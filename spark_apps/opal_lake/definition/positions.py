"""Positions: how far each application has read its source (FORMAT, positions)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opal_lake import checked
from opal_lake.errors import FencedError, InvalidInputError

MAX_CHARACTERS = 1024  # of an application's id
_TOO_LARGE = 1 << 63  # positions have 63 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A move of an application from position `start` to `end`, which it reads next.

    A commit accepts the move only if the application is at `start`. An application is at 0 until a
    commit moves it; with `first`, its first move may have any `start`. With `back`, `end` may be
    less than `start`, to read a part of the source again.
    """

    start: int
    end: int
    first: bool = False
    back: bool = False

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            position = getattr(self, name)
            if type(position) is not int:
                raise InvalidInputError(
                    f"{name}={position!r} of an Advance is not a whole number; "
                    "positions are counted from 0, below 2^63"
                )
        if not 0 <= self.start < _TOO_LARGE or not 0 <= self.end < _TOO_LARGE:
            raise InvalidInputError(
                f"the position goes from {self.start} to {self.end}; "
                "positions are counted from 0, below 2^63"
            )
        if self.end < self.start and not self.back:
            raise InvalidInputError(
                f"the position goes from {self.start} back to {self.end}; "
                "pass back=True to read it again"
            )

    def fits(self, position: int) -> bool:
        """Return whether an application at this position may make the move."""
        if position == self.start:
            return True
        return self.first and position == 0


def check_names(positions: Mapping[str, Advance], application: Sequence[Any] | None = None) -> None:
    """Raise InvalidInputError for an invalid name of an application.

    Also if `application`, the one with a sequence, has a position as well.
    """
    for name in positions:
        if not name or len(name) > MAX_CHARACTERS:
            raise InvalidInputError(
                f"{name[:80]!r} is not the name of an application; "
                f"give it 1 to {MAX_CHARACTERS:,} characters"
            )
    if application is not None and application[0] in positions:
        raise InvalidInputError(
            f"application {application[0]!r} has a sequence and a position in one ingest; "
            "give it only one of both"
        )


def fenced_error(
    table: str, application: str, advance: Advance, position: int, writer: str
) -> FencedError:
    """Return the error for a move that does not start at the application's `position`.

    `writer` describes the commit that moved the application to its position.
    """
    fact = (
        f"{table}: application {application!r} is at position {position}, "
        f"not at {advance.start}: {writer}"
    )
    remedy = (
        "another process reads for this application. Nothing was committed; stop this process, or "
        "go on from the table's position"
    )
    if position == 0:
        remedy = f"nothing was committed; to begin at {advance.start}, pass first=True"
    return FencedError(f"{fact}; {remedy}", application, advance.start, position)


def advanced(applications: Mapping[str, int], positions: Mapping[str, Advance]) -> dict[str, int]:
    """Return the last applied sequence of each application after some moves.

    A sequence is one less than the position. An application at position 0 has no sequence.
    """
    sequences = dict(applications)
    for name, advance in positions.items():
        sequences[name] = advance.end - 1
    return {name: sequence for name, sequence in sequences.items() if sequence >= 0}


def positions_to_json(positions: Mapping[str, Advance]) -> dict[str, list[int]]:
    return {name: [advance.start, advance.end] for name, advance in positions.items()}


def positions_from_json(data: Any) -> dict[str, Advance]:
    positions = {}
    for name, pair in checked.mapped(data).items():
        start, end = map(checked.count, checked.listed(pair))
        # `first` is not written: the commits before show whether it was
        positions[name] = Advance(start=start, end=end, back=end < start)
    return positions
