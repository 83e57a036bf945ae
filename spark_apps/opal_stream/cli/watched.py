"""The side of a watched process: it flushes and ends when its watcher ends or hangs.

The watcher holds the other end of the process's standard input, and writes a line now and then. The
end of the input alone is not a safe sign: another child of the watcher may hold the pipe open, and
a watcher that hangs does not close it. So silence counts as the watcher's end, too.
"""

import json
import logging
import os
import select
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opal_stream.kafka.topics import Partition
    from opal_stream.tracking.events import FlushEvents

_CHUNK = 4096
logger = logging.getLogger(__name__)


def stop_when_left_alone(stop: Callable[[], None], longest_s: float) -> None:
    """Start a thread that calls `stop` if the watcher is gone or silent for long."""
    threading.Thread(
        target=_listen,
        args=(stop, sys.stdin.fileno(), longest_s),
        name="opal-stream-watched",
        daemon=True,
    ).start()


def _listen(stop: Callable[[], None], descriptor: int, longest_s: float) -> None:
    while True:
        ready, _, _ = select.select([descriptor], [], [], longest_s)
        if not ready:
            logger.warning(
                "the watcher has been silent for %g s: this process flushes and ends", longest_s
            )
            break
        if not os.read(descriptor, _CHUNK):
            logger.warning("the watcher is gone: this process flushes and ends")
            break
    stop()


class ReportedTotals:
    """The totals so far, printed after each flush as a line of JSON for the watcher.

    So the totals count even if this process is killed. A gap counts with the flush after it: the
    next process reports a gap again that was not committed.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._gaps: Counter[Partition] = Counter()

    def gap(self, partition: "Partition", offsets: int) -> None:
        self._gaps[partition] += offsets

    def flushed(self, flush: "FlushEvents") -> None:
        missing = sum(self._gaps.pop(partition, 0) for partition in flush.consumed)
        self._counts.update(
            records=sum(consumed.records for consumed in flush.consumed.values()),
            bad=flush.bad,
            flushes=1,
            missing=missing,
        )
        with suppress(OSError):  # the watcher is gone
            print(json.dumps({**self._counts, "version": flush.version}), flush=True)
