"""Listeners of commits: entry points of the group `opal.after_commit`.

Listeners are notified if the environment names a store of data-change events. A listener gets the
log and the state after the commit. If a listener fails, the commit stands.
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


def notify_of_commit(log: Any, state: Callable[[], Any]) -> None:
    """Notify the listeners of a commit.

    `state` returns the state after the commit. It is not called without a listener.
    """
    if not os.environ.get(SWITCH):
        return
    for listener in _listeners():
        try:
            listener(log, state())
        except Exception as error:  # noqa: BLE001  # a listener may raise anything
            logger.warning(
                "%s: a listener of the group %s failed (%r); the commit stands",
                log.storage.uri,
                GROUP,
                error,
            )


@functools.cache
def _listeners() -> tuple[Callable[[Any, Any], None], ...]:
    listeners = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            listeners.append(entry.load())
        except Exception as error:  # noqa: BLE001  # the other listeners are still loaded
            logger.warning(
                "the listener %s cannot be loaded (%r); reinstall its package", entry.value, error
            )
    return tuple(listeners)
