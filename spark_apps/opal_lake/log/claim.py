"""Numbers of jobs: each is claimed once, is carried in the names of all files of the job, and is never used again."""

from opal_lake import layout
from opal_lake.clock import Clock
from opal_lake.errors import NotWrittenError, StorageError
from opal_lake.ids import MAX_PART
from opal_lake.log.commit import canonical_json, seal
from opal_lake.log.snapshot import Root
from opal_lake.log.store_clock import writer_now_us
from opal_lake.storage.protocol import Storage

_TRIES = 100_000


def claim_number(storage: Storage, root: Root, operation: str, clock: Clock) -> int:
    """The next free number. A claim whose outcome is unknown is given up: numbers are plenty."""
    now_us = writer_now_us(clock.now_us(), storage.now_us(), root.spec, storage.uri)
    body = seal(
        canonical_json({"operation": operation, "table_id": root.table_id, "timestamp_us": now_us})
    )
    failures = 0
    for number in range(root.greatest_number + 1, min(root.greatest_number + _TRIES, MAX_PART)):
        try:
            if storage.put_if_absent(layout.claim_path(number), body):
                return number
        except NotWrittenError:
            raise
        except StorageError:
            failures += 1
            if failures == 3:
                raise
    raise StorageError(
        f"no free job number after {root.greatest_number} in {storage.uri}/{layout.CLAIMS}; look for a runaway writer"
    )
