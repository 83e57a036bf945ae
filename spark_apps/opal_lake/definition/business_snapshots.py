"""Business snapshots: the business days, or hours, that a table's ingests belong to, one after the other (FORMAT, business snapshots)."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from opal_lake import checked
from opal_lake.errors import InvalidInputError, NotFoundError

_SHOWN = 5
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Rows of a business snapshot that came before the one before it was finished: since when, and the numbers of their ingests.

    The rows themselves lie in data files like any others, as pending segments, which `opal_lake.savepoints.business_snapshot` leaves out.
    """

    since_us: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessSnapshots:
    """Which are finished, which one is open, and which are held back until it is finished.

    Names rise: finished ones are the least, held ones the greatest. `newest_finished` stays known when its savepoint is released.
    """

    finished: tuple[str, ...] = ()
    newest_finished: str | None = None
    open: str | None = None
    held: Mapping[str, Held] = field(default_factory=dict)

    @property
    def newest(self) -> str | None:
        """Of all that have begun, or whose rows are held back."""
        return max(
            (*self.held, *(name for name in (self.open, self.newest_finished) if name is not None)),
            default=None,
        )

    @property
    def next(self) -> str | None:
        """The one that opens when the open one is finished."""
        return min(self.held, default=None)

    @property
    def held_numbers(self) -> frozenset[int]:
        """The ingests whose rows no MetaGen may take up yet."""
        return frozenset(number for held in self.held.values() for number in held.numbers)

    def is_named_like(self, name: str) -> bool:
        """Whether a business snapshot of the table could have this name."""
        return self.newest is not None and _form(name) == _form(self.newest)

    def is_held(self, name: str) -> bool:
        """Whether rows of it are held back, if they came now."""
        return self.open is not None and name > self.open

    def due_us(self, name: str, drift_us: int) -> int | None:
        """When the one before it may be finished: when the drift of its first rows is over, or of those of a later one."""
        return min(
            (held.since_us + drift_us for known, held in self.held.items() if known >= name),
            default=None,
        )

    def with_rows(self, name: str, number: int | None, now_us: int) -> "BusinessSnapshots":
        """After rows of a business snapshot came: it opens, or they are held back."""
        if name == self.open:
            return self
        if self.open is None:
            return replace(self, open=name)
        before = self.held.get(name, Held(since_us=now_us, numbers=()))
        numbers = before.numbers if number is None else (*before.numbers, number)
        return replace(self, held={**self.held, name: replace(before, numbers=numbers)})

    def finish(self, name: str) -> "BusinessSnapshots":
        """After no more rows of it come: the next one opens."""
        later = {known: rows for known, rows in self.held.items() if known > name}
        opened = min(later, default=None)
        held = {known: rows for known, rows in later.items() if known != opened}
        return BusinessSnapshots(
            finished=(*self.release((name,)).finished, name),
            newest_finished=name,
            open=opened,
            held=held,
        )

    def without_numbers(self, numbers: Collection[int]) -> "BusinessSnapshots":
        """Forget held back ingests of which nothing is left, and names that only they brought."""
        held = {}
        for name, known in self.held.items():
            left = tuple(number for number in known.numbers if number not in numbers)
            if left or not known.numbers:
                held[name] = replace(known, numbers=left)
        return replace(self, held=held)

    def with_repaired_clock(self, moment_us: int) -> "BusinessSnapshots":
        """After the clock was repaired at a moment: nothing came later."""
        held = {
            name: replace(rows, since_us=min(rows.since_us, moment_us))
            for name, rows in self.held.items()
        }
        return replace(self, held=held)

    def release(self, names: Collection[str]) -> "BusinessSnapshots":
        """After savepoints of these names were given up."""
        return replace(self, finished=tuple(name for name in self.finished if name not in names))

    def check_ingest(self, name: str, savepoints: Collection[str]) -> None:
        """InvalidInputError unless rows of it may come: business snapshots never fall."""
        if (problem := self.problem_of(name)) is not None:
            raise InvalidInputError(problem)
        if name in savepoints and name != self.open and name not in self.held:
            raise InvalidInputError(
                f"business snapshot {name} would become a savepoint of that name, and there is one already; release it: "
                f"table.release({name!r}), or `opal savepoint TABLE {name} --release`"
            )

    def problem_of(self, name: str) -> str | None:
        """Why no rows of it may come, and what would work; None if they may."""
        if name == checked.LATEST or not checked.is_business_snapshot(name):
            return (
                f"{name!r} is no business snapshot; write a date as 2022-07-15, or up to 100 letters, digits, '_', '.', ':', '+' and '-' "
                f"that are neither digits alone nor {checked.LATEST!r}"
            )
        if _DATE.match(name) and not _is_date(name):
            return (
                f"business snapshot {name} is written as a date, and the calendar has no such day"
            )
        if self.newest is not None and not self.is_named_like(name):
            return (
                f"business snapshot {name} is not written as {self.newest} is, but names are ordered as texts; write all in one form, as "
                f"2022-07-15, with leading zeros"
            )
        if self.newest_finished is not None and name <= self.newest_finished:
            works = (
                "a later one"
                if self.open is None
                else f"{self.open}, which is open, or a later one"
            )
            return f"business snapshot {name} is not after {self.newest_finished}, which is finished; ingest its rows as {works}"
        if self.open is not None and name < self.open:
            return (
                f"business snapshot {name} is before {self.open}, which is open, and the next one may not be earlier; ingest "
                f"its rows as {self.open}"
            )
        return None

    def version_of(self, name: str, savepoints: Mapping[str, int], head: int) -> int:
        """The version at which it is read: of the open one the newest."""
        if name == self.open:
            return head
        if name in self.finished and name in savepoints:
            return savepoints[name]
        if name in self.held:
            raise NotFoundError(
                f"the rows of business snapshot {name} are held back until {self.open} is finished: by the first metagen after the drift "
                "time, or by finish_business_snapshot"
            )
        raise NotFoundError(f"there is no business snapshot {name!r}; {self._known_text()}")

    def _known_text(self) -> str:
        known = [
            *([finished_text(self.finished)] if self.finished else []),
            *([] if self.open is None else [f"{self.open} (open)"]),
        ]
        return (
            f"readable are {', '.join(known)}"
            if known
            else "none has begun: name one with ingest(business_snapshot=...)"
        )


def finished_text(names: Sequence[str]) -> str:
    """The last ones, and how many there are: `... (120 in all), 2022-07-18, 2022-07-19`. There may be holes between any two."""
    more = [f"... ({len(names):,} in all)"] if len(names) > _SHOWN else []
    return ", ".join([*more, *names[-_SHOWN:]])


def first_of(counts: Mapping[str | None, int]) -> str | None:
    """With which a table begins, so that its rows show how all are written: the least of those written as most rows have it."""
    rows: Counter[str] = Counter()
    names = [name for name in counts if name is not None and checked.is_business_snapshot(name)]
    for name in names:
        rows[_form(name)] += counts[name]
    return min((name for name in names if _form(name) == rows.most_common(1)[0][0]), default=None)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _form(name: str) -> str:
    return re.sub(r"[0-9]", "0", name)


def business_to_json(business: BusinessSnapshots) -> dict[str, Any]:
    """Only what there is."""
    parts: dict[str, Any] = {
        "finished": list(business.finished),
        "newest_finished": business.newest_finished,
        "open": business.open,
        "held": [
            [name, held.since_us, list(held.numbers)]
            for name, held in sorted(business.held.items())
        ],
    }
    return {name: value for name, value in parts.items() if value}


def business_from_json(data: Any) -> BusinessSnapshots:
    parts = checked.mapped(data)
    return BusinessSnapshots(
        finished=tuple(map(checked.business_snapshot, checked.listed(parts.get("finished", ())))),
        newest_finished=checked.business_snapshot(parts["newest_finished"])
        if "newest_finished" in parts
        else None,
        open=checked.business_snapshot(parts["open"]) if "open" in parts else None,
        held=dict(map(_held_from_json, checked.listed(parts.get("held", ())))),
    )


def _held_from_json(item: Any) -> tuple[str, Held]:
    name, since_us, numbers = checked.listed(item)
    return checked.business_snapshot(name), Held(
        since_us=checked.moment(since_us), numbers=checked.counts(numbers)
    )
