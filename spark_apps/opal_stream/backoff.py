"""The pauses between attempts at a step that fails, and the moment to give up."""

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

    `what` names the step that fails, for the log. The error is raised after `give_up_s` without the
    store, or after `broker_give_up_s` without Kafka. A process that ends waits only `give_up_s` for
    Kafka, too.
    """

    what: str
    give_up_s: float
    broker_give_up_s: float | None = None
    is_ending: Callable[[], bool] = lambda: False
    pause_s: float = FIRST_PAUSE_S
    store_failed_s: float = 0.0
    broker_failed_s: float | None = None  # None before Kafka's first failure
    counted_until_s: float = field(default_factory=time.monotonic)  # the end of both sums

    def wait(self, error: Exception, while_waiting: Callable[[], None]) -> None:
        """Pause before the next attempt; raise `error` if it has lasted too long.

        `while_waiting` is called once, before the pause.
        """
        is_of_broker = isinstance(error, KafkaError) and self.broker_give_up_s is not None
        self._add_failure_time(is_of_broker=is_of_broker)
        if self.pause_s > self._left_s(is_of_broker=is_of_broker):
            raise error
        logger.warning("%s failed and is tried again: %s", self.what, error)
        while_waiting()
        time.sleep(self.pause_s)
        self._add_failure_time(is_of_broker=is_of_broker)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def _add_failure_time(self, *, is_of_broker: bool) -> None:
        """Add the time since the last call to the failure time of Kafka or of the store.

        The two are counted apart: a store has not failed while Kafka was away. If their failures
        alternate, both times grow.
        """
        now_s = time.monotonic()
        elapsed_s = now_s - self.counted_until_s
        self.counted_until_s = now_s
        if not is_of_broker:
            self.store_failed_s += elapsed_s
        elif self.broker_failed_s is None:
            self.broker_failed_s = 0.0  # Kafka's failure time begins with its first failure
        else:
            self.broker_failed_s += elapsed_s

    def _left_s(self, *, is_of_broker: bool) -> float:
        """Return the seconds left before the error of Kafka or of the store is raised."""
        if not is_of_broker or self.broker_give_up_s is None:
            return self.give_up_s - self.store_failed_s
        limit_s = self.give_up_s if self.is_ending() else self.broker_give_up_s
        return limit_s - (self.broker_failed_s or 0.0)
