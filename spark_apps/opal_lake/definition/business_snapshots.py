"""Business snapshots: the business days, or hours, of a table's ingests, one after the other.

FORMAT describes their rules under business snapshots.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from opal_lake import checked
from opal_lake.errors import InvalidInputError, NotFoundError

_MAX_SHOWN = 5  # names of finished business snapshots in a message
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Rows of a business snapshot that were ingested while an earlier one was open.

    `since_us` is the time of the first ingest, `numbers` are the numbers of all ingests. The rows
    are pending segments, which a MetaGen leaves out (`opal_lake.savepoints.business_snapshot`).
    """

    since_us: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessSnapshots:
    """The finished, the open and the held back business snapshots of a table.

    Names rise: the open name is greater than all finished ones, and less than all held back ones.
    `newest_finished` stays known when its savepoint is released.
    """

    finished: tuple[str, ...] = ()
    newest_finished: str | None = None
    open: str | None = None
    held_back: Mapping[str, HeldBack] = field(default_factory=dict)  # by name

    @property
    def newest(self) -> str | None:
        """The greatest name of all business snapshots, also of those held back."""
        names = [*self.held_back]
        names += [name for name in (self.open, self.newest_finished) if name is not None]
        return max(names, default=None)

    @property
    def next(self) -> str | None:
        """The business snapshot that opens after the open one, None if none is held back."""
        return min(self.held_back, default=None)

    @property
    def held_numbers(self) -> frozenset[int]:
        """The numbers of the ingests whose rows no MetaGen may process yet."""
        numbers: set[int] = set()
        for rows in self.held_back.values():
            numbers.update(rows.numbers)
        return frozenset(numbers)

    def is_named_like(self, name: str) -> bool:
        """Return whether a business snapshot of the table could have this name."""
        return self.newest is not None and _form(name) == _form(self.newest)

    def is_held(self, name: str) -> bool:
        """Return whether rows of a business snapshot would be held back if ingested now."""
        return self.open is not None and name > self.open

    def due_us(self, name: str, drift_us: int) -> int | None:
        """Return when the business snapshot before `name` may be finished, or None.

        That is `drift_us` after the first rows of `name`, or of a later business snapshot.
        """
        later = [rows.since_us for known, rows in self.held_back.items() if known >= name]
        if not later:
            return None
        return min(later) + drift_us

    def with_rows(self, name: str, number: int | None, now_us: int) -> "BusinessSnapshots":
        """Return the state after an ingest of rows of a business snapshot.

        The business snapshot opens if none is open; otherwise its rows are held back. `number` is
        that of the ingest.
        """
        if name == self.open:
            return self
        if self.open is None:
            return replace(self, open=name)
        rows = self.held_back.get(name, HeldBack(since_us=now_us, numbers=()))
        if number is not None:
            rows = replace(rows, numbers=(*rows.numbers, number))
        return replace(self, held_back={**self.held_back, name: rows})

    def finish(self, name: str) -> "BusinessSnapshots":
        """Return the state after a business snapshot is finished: the next one opens."""
        # Names rise: rows of earlier ones are no longer accepted (I27)
        later = {known: rows for known, rows in self.held_back.items() if known > name}
        opened = min(later, default=None)
        if opened is not None:
            del later[opened]
        return BusinessSnapshots(
            finished=(*self.release((name,)).finished, name),
            newest_finished=name,
            open=opened,
            held_back=later,
        )

    def without_numbers(self, numbers: Collection[int]) -> "BusinessSnapshots":
        """Return the state without some held back ingests, given by their numbers.

        A business snapshot without other ingests is removed.
        """
        held_back = {}
        for name, rows in self.held_back.items():
            remaining = tuple(number for number in rows.numbers if number not in numbers)
            if remaining or not rows.numbers:
                held_back[name] = replace(rows, numbers=remaining)
        return replace(self, held_back=held_back)

    def with_repaired_clock(self, moment_us: int) -> "BusinessSnapshots":
        """Return the state after a clock repair: no time of it is later than the repair's."""
        held_back = {}
        for name, rows in self.held_back.items():
            held_back[name] = replace(rows, since_us=min(rows.since_us, moment_us))
        return replace(self, held_back=held_back)

    def release(self, names: Collection[str]) -> "BusinessSnapshots":
        """Return the state after savepoints of these names were released."""
        remaining = tuple(name for name in self.finished if name not in names)
        return replace(self, finished=remaining)

    def check_ingest(self, name: str, savepoints: Collection[str]) -> None:
        """Raise InvalidInputError unless rows of a business snapshot may be ingested now."""
        problem = self.problem_of(name)
        if problem is not None:
            raise InvalidInputError(problem)
        if name in savepoints and name != self.open and name not in self.held_back:
            raise InvalidInputError(
                f"the table has a savepoint {name}, a name that the business snapshot {name} needs "
                f"for its own savepoint; release the savepoint: table.release({name!r}), or "
                f"`opal savepoint TABLE {name} --release`"
            )

    def problem_of(self, name: str) -> str | None:
        """Return why rows of a business snapshot may not be ingested, and the next step.

        None if they may.
        """
        if name == checked.LATEST or not checked.is_business_snapshot(name):
            return (
                f"{name!r} is not a valid name of a business snapshot; use a date such as "
                "2022-07-15, or up to 100 letters, digits, '_', '.', ':', '+' and '-'. Digits "
                f"alone, and {checked.LATEST!r}, are not allowed"
            )
        if _DATE.match(name) and not _is_date(name):
            return (
                f"business snapshot {name} looks like a date, but the calendar has no such day; "
                "correct the day"
            )
        if self.newest is not None and not self.is_named_like(name):
            return (
                f"business snapshot {name} does not have the form of {self.newest}, but names are "
                "ordered as texts; write all names in one form with leading zeros, such as "
                "2022-07-15"
            )
        if self.newest_finished is not None and name <= self.newest_finished:
            target = "a later one"
            if self.open is not None:
                target = f"{self.open}, which is open, or a later one"
            return (
                f"business snapshot {name} is not after {self.newest_finished}, which is finished; "
                f"ingest its rows as {target}"
            )
        if self.open is not None and name < self.open:
            return (
                f"business snapshot {name} is before {self.open}, which is open, and the next one "
                f"may not be earlier; ingest its rows as {self.open}"
            )
        return None

    def version_of(self, name: str, savepoints: Mapping[str, int], head: int) -> int:
        """Return the version at which a business snapshot is read; `head` if it is open.

        Raises NotFoundError if it is unknown, or held back.
        """
        if name == self.open:
            return head
        if name in self.finished and name in savepoints:
            return savepoints[name]
        if name in self.held_back:
            raise NotFoundError(
                f"the rows of business snapshot {name} are held back until {self.open} is "
                "finished: by the first metagen after the drift time, or by "
                "finish_business_snapshot"
            )
        raise NotFoundError(f"unknown business snapshot {name!r}; {self._known_text()}")

    def _known_text(self) -> str:
        readable = []
        if self.finished:
            readable.append(finished_text(self.finished))
        if self.open is not None:
            readable.append(f"{self.open} (open)")
        if not readable:
            return "the table has none yet: name one with ingest(business_snapshot=...)"
        return f"the readable ones are {', '.join(readable)}"


def finished_text(names: Sequence[str]) -> str:
    """Describe names by the last ones: `... (120 in all), 2022-07-18, 2022-07-19`.

    Not by the first and the last one: days may be missing between them.
    """
    shown = [*names[-_MAX_SHOWN:]]
    if len(names) > _MAX_SHOWN:
        shown.insert(0, f"... ({len(names):,} in all)")
    return ", ".join(shown)


def first_of(counts: Mapping[str | None, int]) -> str | None:
    """Return the name with which a table begins; `counts` has the rows of each name.

    It is the least name of the form that most rows have: all later names must have its form.
    """
    rows: Counter[str] = Counter()
    names = [name for name in counts if name is not None and checked.is_business_snapshot(name)]
    for name in names:
        rows[_form(name)] += counts[name]
    if not names:
        return None
    [(usual_form, _)] = rows.most_common(1)
    return min(name for name in names if _form(name) == usual_form)


def _is_date(text: str) -> bool:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return False
    return day.isoformat() == text


def _form(name: str) -> str:
    """Return the form of a name: the name with all digits as 0."""
    return re.sub(r"[0-9]", "0", name)


def business_to_json(business: BusinessSnapshots) -> dict[str, Any]:
    """Return the state as JSON, without empty members."""
    held_back = []
    for name, rows in sorted(business.held_back.items()):
        held_back.append([name, rows.since_us, list(rows.numbers)])
    members: dict[str, Any] = {
        "finished": list(business.finished),
        "newest_finished": business.newest_finished,
        "open": business.open,
        "held": held_back,
    }
    return {name: value for name, value in members.items() if value}


def business_from_json(data: Any) -> BusinessSnapshots:
    members = checked.mapped(data)
    finished = checked.listed(members.get("finished", ()))
    held_back = checked.listed(members.get("held", ()))
    return BusinessSnapshots(
        finished=tuple(map(checked.business_snapshot, finished)),
        newest_finished=_name_of(members, "newest_finished"),
        open=_name_of(members, "open"),
        held_back=dict(map(_held_from_json, held_back)),
    )


def _name_of(members: Mapping[str, Any], member: str) -> str | None:
    if member not in members:
        return None
    return checked.business_snapshot(members[member])


def _held_from_json(item: Any) -> tuple[str, HeldBack]:
    name, since_us, numbers = checked.listed(item)
    rows = HeldBack(since_us=checked.moment(since_us), numbers=checked.counts(numbers))
    return checked.business_snapshot(name), rows
