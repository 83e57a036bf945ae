"""Flushes to track, for tests."""

import time

from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.tracking.events import FlushEvents

PARTITION = Partition(topic="orders", number=1)


def flush(high: int) -> FlushEvents:
    moment_ms = time.time_ns() // 1_000_000 - 2_000
    flushed = Consumed(
        low=0, high=high, records=high, bytes=10 * high, oldest_ms=moment_ms, newest_ms=moment_ms
    )
    return FlushEvents(consumed={PARTITION: flushed}, version=4, took_s=0.25, bad=1)
