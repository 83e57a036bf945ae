"""The loop over many tables, which looks at each of them every interval.

After a failure, the next look at the same table waits, twice as long each time. Looks at other
tables are not delayed.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from lakechime.client import LakeChime
from lakechime.producers.outbox import Source, Synced, sync
from opal_lake.clock import doubled_pause_s

LOOKERS = 8
MAX_PAUSE_SECONDS = 600.0
_TICK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The tables to watch, and the functions that receive the results.

    `client` opens a client. It is called again if it fails. `at_failure` receives a table's name,
    the error, and the seconds until the next look.
    """

    client: Callable[[], LakeChime]
    sources: Mapping[str, Source]
    interval_seconds: float
    at_result: Callable[[str, Synced], None]
    at_failure: Callable[[str, Exception, float], None]
    max_pause_seconds: float = MAX_PAUSE_SECONDS

    def run(self, stop: threading.Event) -> None:
        """Look at the tables until the event is set.

        Running looks then finish their registration in progress, and end.
        """
        tables = [_Watched(name=name, source=source) for name, source in self.sources.items()]
        shared = _Shared(open_client=self.client)
        pool = ThreadPoolExecutor(min(LOOKERS, len(tables)), thread_name_prefix="lakechime-watch")
        try:
            while not stop.is_set():
                for table in tables:
                    self._advance(table, pool, shared, stop)
                stop.wait(_TICK_SECONDS)
        finally:
            # Running looks see `stop` and end, before the client that they share is closed
            pool.shutdown(wait=True, cancel_futures=True)
            for table in tables:
                self._harvest(table)
            shared.close()

    def _advance(
        self, table: "_Watched", pool: ThreadPoolExecutor, shared: "_Shared", stop: threading.Event
    ) -> None:
        """Report the result of a finished look, and start the next look if it is due."""
        if table.look is not None and table.look.done():
            self._harvest(table)
        if table.look is None and time.monotonic() >= table.due:
            table.look = pool.submit(lambda: sync(shared.client(), table.source, stop=stop.is_set))

    def _harvest(self, table: "_Watched") -> None:
        """Report the result of the look that ended, and set the time of the next one."""
        look, table.look = table.look, None
        if look is None or look.cancelled():
            return
        try:
            synced = look.result()
        except Exception as error:  # noqa: BLE001  # the library of a format may raise any
            table.failures += 1
            longest = max(self.max_pause_seconds, self.interval_seconds)
            pause = doubled_pause_s(table.failures, 2 * self.interval_seconds, longest)
            table.due = time.monotonic() + pause
            self.at_failure(table.name, error, pause)
        else:
            table.failures = 0
            table.due = time.monotonic() + self.interval_seconds
            self.at_result(table.name, synced)


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A table with the state of its looks."""

    name: str
    source: Source
    due: float = 0.0  # time of the next look, by the monotonic clock
    failures: int = 0  # since the last success
    look: Future[Synced] | None = None


@dataclass(slots=True, kw_only=True)
class _Shared:
    """The client of all looks, which the first look opens."""

    open_client: Callable[[], LakeChime]
    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: LakeChime | None = None

    def client(self) -> LakeChime:
        with self.lock:
            if self.opened is None:
                self.opened = self.open_client()
            return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
