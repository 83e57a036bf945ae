"""A model of business snapshots: rows that are visible, pending or held back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PutRow = tuple[str, int, str]  # key, delta, value
Arrived = tuple[str, int, int, str]  # key, delta, when it arrived, value


class RefusedError(Exception):
    """The table has to refuse this, and stay as it is."""


@dataclass(slots=True, kw_only=True)
class HeldRows:
    """Rows of a business snapshot that has not begun, and since when there are any."""

    since_us: int
    rows: list[Arrived] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class BusinessModel:
    """A model of a table with a drift time. Of equal deltas the last arrival wins."""

    drift_us: int = 0
    arrived: int = 0
    visible: list[Arrived] = field(default_factory=list)
    pending: list[Arrived] = field(default_factory=list)
    held_rows: dict[str, HeldRows] = field(default_factory=dict)
    open: str | None = None
    finished: dict[str, Mapping[str, str]] = field(default_factory=dict)
    newest_finished: str | None = None

    def content(self) -> dict[str, str]:
        """Return the value of each key."""
        best: dict[str, Arrived] = {}
        for row in self.visible:
            best[row[0]] = max(row, best.get(row[0], row), key=lambda candidate: candidate[1:3])
        return {key: row[3] for key, row in best.items()}

    def check(self, name: str) -> None:
        if (self.newest_finished is not None and name <= self.newest_finished) or (
            self.open is not None and name < self.open
        ):
            raise RefusedError(name)

    def ingest(
        self, rows: Sequence[PutRow], name: str | None, now_us: int, *, is_inline: bool
    ) -> None:
        """`now_us` is when it is committed."""
        if name is not None:
            self.check(name)
        came: list[Arrived] = [
            (key, delta, self.arrived + index, value)
            for index, (key, delta, value) in enumerate(rows)
        ]
        self.arrived += len(came)
        if name is None or self.open in (None, name):
            self.open = name or self.open
            (self.visible if is_inline else self.pending).extend(came)
        elif is_inline and not self._waits(name, now_us):
            self._finish()
            self.open = name
            self.visible.extend(came)
        else:
            self.held_rows.setdefault(name, HeldRows(since_us=now_us)).rows.extend(came)

    def _waits(self, name: str, now_us: int) -> bool:
        since_us = self.held_rows[name].since_us if name in self.held_rows else now_us
        return (
            bool(self.pending)
            or bool({*self.held_rows} - {name})
            or now_us < since_us + self.drift_us
        )

    def is_over(self, now_us: int) -> bool:
        return any(each.since_us + self.drift_us <= now_us for each in self.held_rows.values())

    def metagen(self, now_us: int) -> None:
        while True:
            self.visible += self.pending
            self.pending = []
            if not self.is_over(now_us):
                return
            self._finish()

    def finish(self, name: str) -> None:
        if name in self.finished:
            return
        if name != self.open or self.pending:
            raise RefusedError(name)
        self._finish()

    def _finish(self) -> None:
        assert self.open is not None
        self.finished[self.open] = self.content()
        self.newest_finished = self.open
        self.open = min(self.held_rows, default=None)
        if self.open is not None:
            self.pending += self.held_rows.pop(self.open).rows
