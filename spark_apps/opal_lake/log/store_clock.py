"""The clock that counts is the store's, which all writers share (FORMAT, clocks).

A writer's own clock may be wrong. Within a bound of the store's it gives the finer time of a commit. If it is behind, the store's time is
used; if it is ahead, the writer commits nothing. If the store has no time, the writer's own clock is used.
"""

from dataclasses import dataclass

from opal_lake.clock import Clock, moment_text
from opal_lake.definition.table_spec import TableSpec
from opal_lake.duration import parse_duration
from opal_lake.errors import ClockError
from opal_lake.log.snapshot import Root
from opal_lake.storage.protocol import Storage


def clock_bound_us(spec: TableSpec) -> int:
    return parse_duration(spec.word("clock_bound"), name="clock_bound")


def store_now_us(storage: Storage, clock: Clock) -> int:
    """Now, as ages are measured."""
    told_us = storage.now_us()
    return clock.now_us() if told_us is None else told_us


def writer_now_us(own_us: int, told_us: int | None, spec: TableSpec, uri: str) -> int:
    """The time for a commit or a claim, from the writer's own clock and the store's; ClockError if the writer's is too far ahead."""
    if told_us is None or abs(own_us - told_us) <= clock_bound_us(spec):
        return own_us
    if own_us < told_us:
        return told_us
    raise ClockError(
        f"this machine's clock says {moment_text(own_us)}, and the store of {uri} {moment_text(told_us)}: it is ahead by more than "
        f"clock_bound ({spec.word('clock_bound')}). Nothing was committed, because all later times of the table would be wrong. "
        "Set the clock right (NTP), then run it again"
    )


def clock_notes(told_us: int | None, root: Root, uri: str) -> tuple[str, ...]:
    """A warning if the newest version's time is in the future: some clock was wrong, and so are all times since then."""
    if told_us is None or root.timestamp_us - told_us <= clock_bound_us(root.spec):
        return ()
    ahead = f"version {root.version} is of {moment_text(root.timestamp_us)}, and the store's clock says {moment_text(told_us)}"
    return (
        f"{ahead}: times of commits are wrong, because a writer's clock was; run `opal repair-clock {uri}`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Which recorded times are trusted at a given time; `has_store_time` if the store has a time of its own."""

    has_store_time: bool
    bound_us: int
    now_us: int

    def since(self, recorded_us: int, stored_us: int) -> int:
        """Since when an object exists: the later of its recorded and its file's time, as too early a time expires it early.

        Copies change files' times: archives and images may set them. A recorded time in the future is that of a wrong clock and is ignored.
        """
        return (
            recorded_us
            if not self.has_store_time or stored_us < recorded_us <= self.now_us + self.bound_us
            else stored_us
        )
