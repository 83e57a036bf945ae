"""Tables with a batch an hour, for tests of retention and of old versions."""

from opal_lake.clock import ManualClock
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.storage import Storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.opal_lake.shop import Row, create, rows

HOUR = 3_600_000_000  # microseconds
START = 1_700_000_000_000_000


def at_hour(
    storage: Storage, hour: float, writer: str = "", *, tuning: Tuning = DEFAULT_TUNING
) -> Table:
    """Return the table of a writer whose clock shows an hour."""
    clock = ManualClock(at_us=START + int(hour * HOUR), step_us=1)
    ids = CountingIds(prefix=f"{writer or 'w'}-{hour}")
    log = CommitLog(storage=storage, clock=clock, ids=ids, tuning=tuning)
    return Table(log=log, cache=MemoryRuns(storage=storage))


def batch(hour: int) -> list[Row]:
    return [(f"k{hour % 3}", hour, hour), (f"n{hour}", hour, 1), (f"n{hour - 1}", hour, None)]


def history(
    storage: Storage, hours: int, *, tuning: Tuning = DEFAULT_TUNING, **properties: int | str
) -> Table:
    """Create a table and ingest a batch an hour, as versions 1 to `hours`."""
    settings = {"checkpoint_commits": 4, "fold_files": 0, **properties}
    spec = create(MemoryStorage(), **settings).snapshot_at().spec
    create_on(storage, spec, ManualClock(at_us=START, step_us=1), CountingIds(prefix="made"))
    grow(storage, range(1, hours + 1), tuning=tuning)
    return at_hour(storage, hours + 0.5, tuning=tuning)


def grow(storage: Storage, hours: range, *, tuning: Tuning = DEFAULT_TUNING) -> None:
    for hour in hours:
        at_hour(storage, hour, tuning=tuning).ingest(
            *rows(batch(hour)), metadata="inline", token=f"t{hour}", partition_key=f"p{hour % 2}"
        )


def paths(storage: Storage, prefix: str = "") -> list[str]:
    return [stored.path for stored in storage.list(prefix)]
