"""The interface of a format's parser, and the result of parsing the values of messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import NewColumns, merge_new_columns

BadValues = list[tuple[int, str]]  # the position among the parsed values, and what is wrong


@dataclass(slots=True, kw_only=True)
class Parsed:
    """The rows of the good values, and their positions among the parsed values.

    - `deleted` says for each row whether it is a delete; None if the format does not mark deletes.
    - `new` are columns that the table lacks; None also if the parser does not know the table's.
    - `unchanged` are for each row the columns that the message leaves out because they did not
      change; None if no row has such columns.
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
        """Return the position of the first value with a new schema; None if none has one.

        The caller flushes the values before it, then calls `learn` with it.
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
    """Parse all values at once.

    If that raises one of `errors`, parse their halves, and so on.

    So a few bad values cost a few steps, and most good values are still parsed many at a time.
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
    """Join results; `good` are the positions of all their rows."""
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
        new=merge_new_columns(part.new for part in parts),
        unchanged=unchanged if any(unchanged) else None,
    )


def _one_line(error: Exception) -> str:
    """Return the first line of an error, without Arrow's row number.

    The number differs, but messages with the same mistake must be counted together.
    """
    first_line = str(error).strip().splitlines()[0]
    reason = first_line.removesuffix(" in row 0")[:300]
    return reason or type(error).__name__
