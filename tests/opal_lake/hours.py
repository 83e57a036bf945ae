"""A table whose writers commit once an hour: what jobs ask of a store is counted on it."""

from collections.abc import Mapping

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.ids import RandomIds
from opal_lake.log.commit_log import CommitLog
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on, table_on
from tests.fixtures_s3 import put_objects

SCHEMA = pa.schema([("sku", pa.string()), ("at", pa.int64()), ("price", pa.int32())])
HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000


class Hours:
    """A table whose writers commit once an hour, by a clock of their own."""

    def __init__(self, uri: str, options: Mapping[str, str], **properties: int | str) -> None:
        self.storage = open_storage(uri, options)
        self.hour = 0
        create_on(
            self.storage,
            plan_spec(SCHEMA, TableLayout(keys=["sku"], delta="at", properties=properties)),
            ManualClock(at_us=START_US),
        )

    @property
    def table(self) -> Table:
        """The table as another process opens it, with empty caches."""
        clock = ManualClock(at_us=START_US + self.hour * HOUR_US, step_us=1)
        return Table(
            log=CommitLog(storage=self.storage, clock=clock, ids=RandomIds()),
            cache=table_on(self.storage).cache,
        )

    def upsert(self, commits: int, metadata: str = "inline") -> "Hours":
        for _ in range(commits):
            self.hour += 1
            keys = [f"k{key:04d}" for key in range(5)] + [
                f"n{self.hour:06d}-{key}" for key in range(5)
            ]
            batch = pa.table([keys, [self.hour] * 10, [self.hour] * 10], schema=SCHEMA)
            self.table.ingest(batch, metadata=metadata, token=f"t{self.hour}")
        return self

    def later(self, hours: int) -> "Hours":
        self.hour += hours
        return self


def upserted(uri: str, options: dict[str, str], commits: int, **properties: int | str) -> Hours:
    """Make a table in memory and copy it to a store, which sees later requests only."""
    hours = Hours(f"memory://{uri.removeprefix('s3://')}", {}, **properties).upsert(commits)
    objects = {entry.path: hours.storage.get(entry.path) for entry in hours.storage.list("")}
    put_objects(options, uri, objects)
    hours.storage = open_storage(uri, options)
    return hours
