"""The model table: a few lines over lists and dictionaries that decide what is right.

Values are Python's own. Nothing here is shared with the code that it judges.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

RowId = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A row as it was put. `processed` is its MetaGen's version, None while pending."""

    key: tuple[Any, ...]
    delta: Any
    ties: tuple[Any, ...]
    row_id: RowId
    deleted: bool
    processed: int | None = None
    partition_key: str | None = None
    values: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the sort key between rows of one key; a null comes before every value."""
        return (
            self.delta,
            *((tie is not None, 0 if tie is None else tie) for tie in self.ties),
            self.row_id,
        )


ShownAt = Callable[[int], Iterable[ModelRow]]  # the visible rows of a version


def visible(
    rows: Iterable[ModelRow], version: int | None = None, event_time: Any = None
) -> list[ModelRow]:
    """Return the newest row of each key at a version and event time, but for deletes."""
    newest: dict[tuple[Any, ...], ModelRow] = {}
    for row in known(rows, version):
        if event_time is not None and row.delta > event_time:
            continue
        if row.key not in newest or newest[row.key].order < row.order:
            newest[row.key] = row
    return sorted((row for row in newest.values() if not row.deleted), key=lambda row: row.row_id)


def net(
    rows: Iterable[ModelRow], partition_key: str, version: int | None = None, event_time: Any = None
) -> list[ModelRow]:
    """Return the newest row of each key among those of a partition key."""
    return visible([row for row in rows if row.partition_key == partition_key], version, event_time)


def known(rows: Iterable[ModelRow], version: int | None = None) -> list[ModelRow]:
    """Return the rows that a MetaGen took up by that version."""
    return [
        row
        for row in rows
        if row.processed is not None and (version is None or row.processed <= version)
    ]


def untils(rows: Iterable[ModelRow], version: int | None = None) -> dict[RowId, Any]:
    """Return when each row stops being valid; rows that stay valid are absent."""
    by_key: dict[tuple[Any, ...], list[ModelRow]] = {}
    for row in known(rows, version):
        by_key.setdefault(row.key, []).append(row)
    until_of: dict[RowId, Any] = {}
    for members in by_key.values():
        members.sort(key=lambda row: row.order)
        until_of.update((row.row_id, after.delta) for row, after in pairwise(members))
        until_of.update((row.row_id, row.delta) for row in members if row.deleted)
    return until_of


def intervals(
    rows: Iterable[ModelRow], version: int | None = None
) -> list[tuple[ModelRow, Any, Any, bool]]:
    """Return each row with the event times between which it was visible."""
    members = known(rows, version)
    shown: list[tuple[ModelRow, Any, Any, bool]] = []
    for key in {row.key for row in members}:
        own = [row for row in members if row.key == key]
        moments = sorted({row.delta for row in own})
        valid = [next(iter(visible(own, version, moment)), None) for moment in moments]
        for index, row in enumerate(valid):
            if row is not None and (index == 0 or valid[index - 1] is not row):
                after = next(
                    (later for later in range(index, len(valid)) if valid[later] is not row), None
                )
                shown.append(
                    (
                        row,
                        row.delta,
                        None if after is None else moments[after],
                        after is not None and valid[after] is None,
                    )
                )
    return shown


def changes(shown_at: ShownAt, start: int, end: int) -> list[tuple[int, str, ModelRow]]:
    """Return each version's changes to the visible rows, in the order of a feed."""
    versions = range(max(start, 1), end + 1)
    return [
        (version, kind, row)
        for version in versions
        for kind, row in net_changes(shown_at, version, version)
    ]


def net_changes(shown_at: ShownAt, start: int, end: int) -> list[tuple[str, ModelRow]]:
    """Return the sum of the changes of a range of versions."""
    before = {row.key: row for row in shown_at(max(start, 1) - 1)}
    after = {row.key: row for row in shown_at(end)}
    feed: list[tuple[str, ModelRow]] = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is not None and new is not None and old.row_id == new.row_id:
            continue
        if old is not None:
            feed.append(("delete" if new is None else "update_preimage", old))
        if new is not None:
            feed.append(("insert" if old is None else "update_postimage", new))
    return feed
