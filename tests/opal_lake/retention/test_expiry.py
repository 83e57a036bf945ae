"""The versions that a retention lets expire, for a stream that commits every second."""

import time

from opal_lake.operations.retain import Retain
from opal_lake.retention.log_digest import Entry, LogDigest
from opal_lake.retention.retention import plan_expiry
from opal_lake.storage.memory import MemoryStorage
from tests.opal_lake.shop import create

SECOND, COMMITS = 1_000_000, 20_000


def test_expiry_is_planned_in_seconds_though_each_commit_has_a_claim() -> None:
    """Looking through the log for each claim would take half a minute."""
    head = create(MemoryStorage("expiry")).snapshot_at()
    numbers = range(1, COMMITS + 1)
    entries = {
        number: Entry(
            version=number, timestamp_us=number * SECOND, number=number, paths=(), sides=()
        )
        for number in numbers
    }
    digest = LogDigest(
        entries=entries, roots={}, modified_us={number: number * SECOND for number in numbers}
    )
    began = time.process_time()
    expiry = plan_expiry(
        head,
        digest,
        {number: number * SECOND for number in numbers},
        Retain(window="1h", grace="1h"),
        COMMITS * SECOND,
    )
    assert time.process_time() - began < 5
    assert (expiry.stale, expiry.claims) == (frozenset(), frozenset(numbers))
