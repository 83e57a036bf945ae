"""The pauses between attempts at what failed, and the moment to give up."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opal_stream.errors import KafkaError

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Backoff:
    """The pauses between attempts at one step, each longer than the last.

    `what` names the step that fails, for the log. After `give_up_s` its error is raised.
    """

    what: str
    give_up_s: float
    broker_s: float | None = None  # the same for Kafka; a process that ends waits only `give_up_s`
    is_ending: Callable[[], bool] = lambda: False
    pause_s: float = FIRST_PAUSE_S
    store_s: float = 0.0  # for how long the store failed
    away_s: float | None = None  # for how long Kafka did not answer
    counted_s: float = field(default_factory=time.monotonic)  # until when both are counted

    def wait(self, error: Exception, while_waiting: Callable[[], None]) -> None:
        """Pause before the next attempt; raise the error when it has lasted too long."""
        is_away = isinstance(error, KafkaError) and self.broker_s is not None
        self._count(is_away=is_away)
        if self.pause_s > self._left_s(is_away=is_away):
            raise error
        logger.warning("%s failed and is tried again: %s", self.what, error)
        while_waiting()
        time.sleep(self.pause_s)
        self._count(is_away=is_away)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def _count(self, *, is_away: bool) -> None:
        """Add the time since the last count to the failure time of Kafka or the store.

        The two are counted apart: a store has not failed while Kafka was away. If their failures
        alternate, both times grow.
        """
        now_s = time.monotonic()
        took_s = now_s - self.counted_s
        self.counted_s = now_s
        if not is_away:
            self.store_s += took_s
        elif self.away_s is None:
            self.away_s = 0.0  # Kafka's failure time begins with its first failure
        else:
            self.away_s += took_s

    def _left_s(self, *, is_away: bool) -> float:
        """Return the seconds left before the error of Kafka or the store is raised."""
        if not is_away or self.broker_s is None:
            return self.give_up_s - self.store_s
        limit_s = self.give_up_s if self.is_ending() else self.broker_s
        return limit_s - (self.away_s or 0.0)
