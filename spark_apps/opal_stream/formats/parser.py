"""The parser of a format, and what it makes of the values of messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import NewColumns, merged

BadValues = list[tuple[int, str]]  # position in what was parsed, and what is wrong


@dataclass(slots=True, kw_only=True)
class Parsed:
    """The rows of values, one for each of `positions`, with the values' columns.

    - `deleted` rows are deletes; None if the format does not mark them.
    - `new` are columns that the table lacks, if the parser knows those of the table.
    - `unchanged` are for each row the columns whose values the message lacks, as they did not
      change; None if no row lacks any.
    """

    rows: pa.Table
    positions: list[int]
    bad: BadValues = field(default_factory=list)
    deleted: pa.Array | None = None
    new: NewColumns | None = None
    unchanged: Sequence[tuple[str, ...]] | None = None


class Parser(Protocol):
    """A parser of values, none of them null. It remembers schemas, not values."""

    def parse(self, values: Sequence[bytes]) -> Parsed: ...

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """Return the position of the first value with a new schema.

        What comes before it is flushed, then the new schema is learned.
        """
        ...

    def learn(self, value: bytes) -> None:
        """Learn the schema of a value."""
        ...

    def take_over(self, other: Any) -> None:
        """Use the schemas that a parser of the same kind has learned."""
        ...


def halve_until_good(
    values: Sequence[bytes],
    parse: Callable[[Sequence[bytes]], Parsed],
    errors: tuple[type[Exception], ...],
) -> Parsed:
    """Parse all values at once; where that fails, parse halves.

    So a few bad values cost a few steps, and the good ones are still parsed many at a time.
    """
    parts: list[Parsed] = []
    bad: BadValues = []
    good: list[int] = []
    waiting = [(0, len(values))] if values else []
    while waiting:
        start, stop = waiting.pop()
        try:
            part = parse(values[start:stop])
        except errors as error:
            if stop - start == 1:
                bad.append((start, _one_line(error)))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]  # the first half is popped first
            continue
        positions = range(start, stop)
        if part.new is not None:
            part.new = part.new.moved(positions)
        parts.append(part)
        good.extend(positions)
    return _joined(parts, good, bad)


def _joined(parts: Sequence[Parsed], good: list[int], bad: BadValues) -> Parsed:
    if not parts:
        return Parsed(rows=pa.table({}), positions=good, bad=bad)
    deleted = [part.deleted for part in parts]
    unchanged: list[tuple[str, ...]] = []
    for part in parts:
        unchanged += part.unchanged or [()] * part.rows.num_rows
    return Parsed(
        rows=pa.concat_tables([part.rows for part in parts]),
        positions=good,
        bad=bad,
        deleted=None if None in deleted else pa.concat_arrays(deleted),
        new=merged(part.new for part in parts),
        unchanged=unchanged if any(unchanged) else None,
    )


def _one_line(error: Exception) -> str:
    """Return the reason without the number of the row, which is that of the batch.

    So messages with the same mistake are counted together.
    """
    text = str(error).strip().splitlines()[0].removesuffix(" in row 0")
    return text[:300] or type(error).__name__
