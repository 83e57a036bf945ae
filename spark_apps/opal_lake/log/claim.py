"""The claim of job numbers. A job's number is unique, and is part of the names of its files."""

from opal_lake import layout
from opal_lake.clock import Clock
from opal_lake.errors import NotWrittenError, StorageError
from opal_lake.ids import MAX_PART
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.log.snapshot import Root
from opal_lake.log.store_clock import writer_now_us
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed

_MAX_NUMBERS_TRIED = 100_000
_MAX_FAILED_PUTS = 3


def claim_number(storage: Storage, root: Root, operation: str, clock: Clock) -> int:
    """Claim the next free job number, and return it.

    If it is unknown whether a claim was stored, its number is skipped. Raises ClockError if the
    writer's clock is too far ahead.
    """
    now_us = writer_now_us(clock.now_us(), storage.now_us(), root.spec, storage.uri)
    claim = {"operation": operation, "table_id": root.table_id, "timestamp_us": now_us}
    body = seal(canonical_json(claim))
    failures = 0
    first = root.greatest_number + 1
    end = min(root.greatest_number + _MAX_NUMBERS_TRIED, MAX_PART)
    for number in range(first, end):
        try:
            if storage.put_if_absent(layout.claim_path(number), body):
                return number
        except NotWrittenError:
            raise
        except StorageError:
            failures += 1
            if failures == _MAX_FAILED_PUTS:
                raise
    raise StorageError(
        f"{storage.uri}/{layout.CLAIMS} has no free job number after {root.greatest_number:,}; "
        "look for a writer that starts jobs in an endless loop"
    )


def claimed_operation(storage: Storage, path: str) -> str:
    """Return the operation of the job that made a claim."""
    claim = unseal(read_sealed(storage, path), f"{storage.uri}/{path}")
    return str(claim.get("operation"))
