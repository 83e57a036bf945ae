"""Times that a stream waits for a failing store or Kafka, and so may need to end."""

GIVE_UP_S = 60.0  # for a store, unless `--give-up-after` sets another time
# For Kafka, unless `--broker-timeout` sets another time. Buffered rows wait meanwhile, and are not
# lost
BROKER_TIMEOUT, BROKER_TIMEOUT_S = "1h", 3600.0
_DRAIN_S = 30.0
SPARK_DRAIN_S = 600.0  # Spark ends after its micro-batch, which may take long
_ROUNDS = 5  # a supervisor ends its processes, then its committer, and may need one more committer


def drain_s(give_up_s: float = GIVE_UP_S) -> float:
    """Return the seconds that a process gets to end.

    Its last flush may have to wait for the store.
    """
    return give_up_s + _DRAIN_S


def supervisor_drain_s(give_up_s: float = GIVE_UP_S) -> float:
    """Return the seconds that a process that watches others gets to end."""
    return _ROUNDS * drain_s(give_up_s)
