"""A process that somebody watches ends with its watcher, whatever ended that: it flushes, and stops.

The watcher holds the other end of the standard input, and writes a line now and then. The end of the input alone would not do: another
child of the watcher may hold the pipe open, and a watcher that hangs closes nothing.
"""

import logging
import os
import select
import sys
import threading
from collections.abc import Callable

_CHUNK = 4096
logger = logging.getLogger(__name__)


def stop_when_left_alone(stop: Callable[[], None], longest_s: float) -> None:
    """Calls `stop` once, from a thread of its own."""
    threading.Thread(target=_listen, args=(stop, sys.stdin.fileno(), longest_s), name="opal-stream-watched", daemon=True).start()


def _listen(stop: Callable[[], None], descriptor: int, longest_s: float) -> None:
    while True:
        ready, _, _ = select.select([descriptor], [], [], longest_s)
        if not ready:
            logger.warning("nothing was heard from the watcher for %g s: flushing, and ending", longest_s)
            break
        if not os.read(descriptor, _CHUNK):
            logger.warning("the watcher is gone: flushing, and ending")
            break
    stop()
