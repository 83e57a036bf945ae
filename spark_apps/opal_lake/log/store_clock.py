"""The clock of the store, which all writers share (FORMAT, §12).

A writer's own clock may be wrong. Within a bound of the store's clock, it gives the finer time of a
commit. If it is behind, the store's time is used; if it is ahead, the writer commits nothing. If
the store has no time, the writer's own clock is used.
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
    """Return the time by which ages are measured: the store's, else the writer's own."""
    store_us = storage.now_us()
    if store_us is None:
        return clock.now_us()
    return store_us


def writer_now_us(own_us: int, store_us: int | None, spec: TableSpec, uri: str) -> int:
    """Return the time of a commit or a claim, from the clocks of writer and store.

    Raises ClockError if the writer's clock is too far ahead.
    """
    if store_us is None or abs(own_us - store_us) <= clock_bound_us(spec):
        return own_us
    if own_us < store_us:
        return store_us
    raise ClockError(
        f"this machine's clock says {moment_text(own_us)}, and the store of {uri} "
        f"{moment_text(store_us)}: it is ahead by more than clock_bound "
        f"({spec.word('clock_bound')}). Nothing was committed, because all later times of the "
        "table would be wrong. Set the clock right (NTP), then run it again"
    )


def clock_notes(store_us: int | None, root: Root, uri: str) -> tuple[str, ...]:
    """Return a warning if the newest version's time is in the future.

    Then some writer's clock was wrong, and so are all commit times since.
    """
    if store_us is None or root.timestamp_us - store_us <= clock_bound_us(root.spec):
        return ()
    warning = (
        f"version {root.version} is of {moment_text(root.timestamp_us)}, and the store's clock "
        f"says {moment_text(store_us)}: times of commits are wrong, because a writer's clock was; "
        f"run `opal repair-clock {uri}`"
    )
    return (warning,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The rule that decides which recorded times are trusted at a given time.

    `has_store_time` is true if the store has a time of its own.
    """

    has_store_time: bool
    bound_us: int
    now_us: int

    def since(self, recorded_us: int, stored_us: int) -> int:
        """Return since when an object exists: the later of its two times.

        Too early a time would expire the object early. A recorded time in the future is that of a
        wrong clock, and is ignored. Without a store time the recorded time counts: copies, archives
        and images change the times of files.
        """
        if not self.has_store_time:
            return recorded_us
        is_credible = recorded_us <= self.now_us + self.bound_us
        return max(stored_us, recorded_us) if is_credible else stored_us
