"""Who hears of commits: entry points of the group `opal.after_commit`.

A listener gets the log, and a function that returns the state after the commit: it decides by itself whether it wants to hear, and calls it
only then. The commit stands, whatever becomes of the listener.
"""

import functools
import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any

GROUP = "opal.after_commit"

logger = logging.getLogger(__name__)

State = Callable[[], Any]


def tell_of_commit(log: Any, state: State) -> None:
    """`state` is made only for a listener that asks for it."""
    for listener in _listeners():
        try:
            listener(log, state)
        except Exception as error:  # noqa: BLE001  # what was committed is what counts
            logger.warning("%s: a listener of the group %s failed (%r); the commit stands", log.storage.uri, GROUP, error)


@functools.cache
def _listeners() -> tuple[Callable[[Any, State], None], ...]:
    loaded = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            loaded.append(entry.load())
        except Exception as error:  # noqa: BLE001  # a broken one must not take the others with it
            logger.warning("the listener %s cannot be loaded (%r); reinstall its package", entry.value, error)
    return tuple(loaded)
