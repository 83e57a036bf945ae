"""The clock of the store, which all writers share (FORMAT, §12).

A writer's own clock may be wrong. If it differs from the store's clock by at most `clock_bound`, it
gives the time of a commit, which is finer than the store's. If it is further behind, the store's
time is used; if it is further ahead, the writer commits nothing. If the store has no time, the
writer's own clock is used.
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
    """Return the store's time, or the writer's own if the store has none."""
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
        f"this machine's clock says {moment_text(own_us)}, but the store of {uri} says "
        f"{moment_text(store_us)}: this machine's clock is ahead by more than clock_bound "
        f"({spec.word('clock_bound')}). Nothing was committed, because all later commit times of "
        "the table would be wrong. Correct the clock, for example with NTP, then run the job again"
    )


def clock_notes(store_us: int | None, root: Root, uri: str) -> tuple[str, ...]:
    """Return a warning if the newest version's time is in the future, else no notes.

    Then some writer's clock was wrong, and all commit times since then are wrong, too.
    """
    if store_us is None or root.timestamp_us - store_us <= clock_bound_us(root.spec):
        return ()
    warning = (
        f"version {root.version} has the commit time {moment_text(root.timestamp_us)}, but the "
        f"store's clock says {moment_text(store_us)}: a writer's clock was wrong, so that commit "
        f"times are wrong, too; run `opal repair-clock {uri}`"
    )
    return (warning,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The rule that decides which recorded times are trusted, at the time `now_us`.

    `has_store_time` is true if the store has a time of its own. A recorded time may be later than
    `now_us` by at most `bound_us`.
    """

    has_store_time: bool
    bound_us: int
    now_us: int

    def since(self, recorded_us: int, stored_us: int) -> int:
        """Return the time since which an object exists: the later of its two times.

        The earlier one could expire the object too early. A recorded time in the future is from a
        wrong clock, and is ignored. If the store has no time, the recorded one counts: copies,
        archives and images change the times of files.
        """
        if not self.has_store_time:
            return recorded_us
        is_credible = recorded_us <= self.now_us + self.bound_us
        if not is_credible:
            return stored_us
        return max(stored_us, recorded_us)
