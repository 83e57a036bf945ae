"""Outages of what a stream writes next to its table, which never stop the stream.

An outage is logged once, and so is its end.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outage:
    """The failed writes to one destination; `what` is written there."""

    what: str
    failed: int = 0

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Log a failure of the write within, instead of raising it."""
        try:
            yield
        except (OSError, BufferError, ValueError) as error:
            self.failed += 1
            if self.failed == 1:
                logger.warning(
                    "%s cannot be written; the stream goes on without them: %s", self.what, error
                )
            return
        if self.failed:
            logger.warning("%s are written again, after %d failed writes", self.what, self.failed)
            self.failed = 0
