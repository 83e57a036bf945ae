"""Who hears of commits: entry points of the group `opal.after_commit`, where the environment names a place for data-change events.

A listener gets the log and the state after the commit. The commit stands, whatever becomes of the listener.
"""

import functools
import importlib.metadata
import logging
import os
from collections.abc import Callable
from typing import Any

GROUP = "opal.after_commit"
SWITCH = "LAKECHIME_URL"

logger = logging.getLogger(__name__)


def tell_of_commit(log: Any, state: Callable[[], Any]) -> None:
    """Costs nothing where nobody wants to hear. `state` is made only for a listener."""
    if not os.environ.get(SWITCH):
        return
    for listener in _listeners():
        try:
            listener(log, state())
        except Exception as error:  # noqa: BLE001  # what was committed is what counts
            logger.warning(
                "%s: a listener of the group %s failed (%r); the commit stands",
                log.storage.uri,
                GROUP,
                error,
            )


@functools.cache
def _listeners() -> tuple[Callable[[Any, Any], None], ...]:
    loaded = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            loaded.append(entry.load())
        except Exception as error:  # noqa: BLE001  # a broken one must not take the others with it
            logger.warning(
                "the listener %s cannot be loaded (%r); reinstall its package", entry.value, error
            )
    return tuple(loaded)
