"""What a stream writes beside its table may fail, and stops no stream: it is said once, and again when it can be written."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outage:
    """Of one place; `what` is written there."""

    what: str
    failed: int = 0

    @contextmanager
    def bridged(self) -> Iterator[None]:
        """Around each write."""
        try:
            yield
        except (OSError, BufferError, ValueError) as error:
            self.failed += 1
            if self.failed == 1:
                logger.warning(
                    "%s cannot be written, and the stream goes on without: %s", self.what, error
                )
            return
        if self.failed:
            logger.warning("%s are written again, after %d failed writes", self.what, self.failed)
            self.failed = 0
