"""What a format's parser makes of the values of messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from opal_stream.formats.schemas.new_columns import NewColumns, merged

BadValues = list[tuple[int, str]]  # position in what was parsed, and what is wrong


@dataclass(slots=True, kw_only=True)
class Parsed:
    """A row for each position of `kept`, with the columns that the values hold. `deleted` where the format itself says so.

    `new` are columns that the table lacks, if the parser was told what it has. `unchanged` are of each row the names of columns whose
    values the message lacks, as they did not change, if there are such rows.
    """

    rows: pa.Table
    kept: list[int]
    bad: BadValues = field(default_factory=list)
    deleted: pa.Array | None = None
    new: NewColumns | None = None
    unchanged: Sequence[tuple[str, ...]] | None = None


class Parser(Protocol):
    """Values, none of them null, to rows. Remembers schemas, not values."""

    def parse(self, values: Sequence[bytes]) -> Parsed: ...

    def unseen(self, values: Sequence[bytes | None]) -> int | None:
        """The position of the first value whose schema is a new one: what comes before is flushed, then the new schema is taken."""
        ...

    def learn(self, value: bytes) -> None:
        """Take the schema of a value from now on."""
        ...

    def take_over(self, other: Any) -> None:
        """The schemas that a parser of the same kind has learned."""
        ...


def halve_until_good(
    values: Sequence[bytes],
    parse: Callable[[Sequence[bytes]], Parsed],
    errors: tuple[type[Exception], ...],
) -> Parsed:
    """All at once; where that fails by halves, so that a few bad values cost a few steps and the good ones are parsed as ever."""
    parts: list[Parsed] = []
    bad: BadValues = []
    kept: list[int] = []
    waiting = [(0, len(values))] if values else []
    while waiting:
        start, stop = waiting.pop()
        try:
            part = parse(values[start:stop])
            part.new = part.new and part.new.moved(range(start, stop))
            parts.append(part)
            kept.extend(range(start, stop))
        except errors as error:
            if stop - start == 1:
                bad.append((start, _one_line(error)))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
    deleted = [part.deleted for part in parts]
    unchanged: list[tuple[str, ...]] = []
    for part in parts:
        unchanged += part.unchanged or [()] * part.rows.num_rows
    return Parsed(
        rows=pa.concat_tables([part.rows for part in parts]) if parts else pa.table({}),
        kept=kept,
        bad=bad,
        deleted=pa.concat_arrays(deleted) if parts and None not in deleted else None,
        new=merged(part.new for part in parts),
        unchanged=unchanged if any(unchanged) else None,
    )


def _one_line(error: Exception) -> str:
    """Without the number of the row, which is that of the batch: messages with one mistake are counted together."""
    text = str(error).strip().splitlines()[0].removesuffix(" in row 0")
    return text[:300] or type(error).__name__
