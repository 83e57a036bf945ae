"""What each job asks of an S3 store: requests by verb, counted at moto's server, for a table of so many small upserts.

python -m tests.bench.requests [--commits 22,100] [--parts]
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.ids import RandomIds
from opal_lake.inspect.check import check_table
from opal_lake.inspect.describe import describe
from opal_lake.log.commit_log import CommitLog
from opal_lake.maintenance.due import policy_of, run_maintenance
from opal_lake.read.explain import explain
from opal_lake.read.read import file_filter
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on, table_on
from tests.fixtures_s3 import s3_server
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.s3_requests import VERBS, Requests, counted

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
        """As another process sees it: nothing is at hand."""
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


def jobs(
    start: Callable[[str], Hours], commits: int
) -> Iterator[tuple[str, Hours, Callable[[Table], object]]]:
    """Each on a table of its own; what is yielded is done while requests are counted."""
    yield "upsert, inline", start("upsert").upsert(commits), one_more
    yield "read", start("read").upsert(commits), lambda table: table.read()
    yield "metagen", start("metagen").upsert(commits, "batch"), lambda table: table.metagen()
    yield (
        "compact, minor",
        start("compact").upsert(commits),
        compact,
    )
    yield (
        "compact again",
        compacted(start("again").upsert(commits)),
        compact,
    )
    yield "zorder", start("zorder").upsert(commits), order
    yield "maintain, nothing due", compacted(start("maintain").upsert(commits)), maintain
    yield (
        "retain, first, nothing to do",
        start("retain1").upsert(commits),
        lambda table: table.retain(window="9000d"),
    )
    yield (
        "retain, again, nothing to do",
        retained(start("retain2").upsert(commits)),
        lambda table: table.retain(window="9000d"),
    )
    yield (
        "retain, 5 commits later",
        retained(start("retain3").upsert(commits)).upsert(5),
        lambda table: table.retain(window="9000d"),
    )
    yield (
        "retain, all but newest expire",
        retained(start("retain4").upsert(commits)),
        lambda table: table.retain(window="0s", grace="0s"),
    )
    yield (
        "retain, dry run",
        start("dry").upsert(commits),
        lambda table: table.retain(window="9000d", dry_run=True),
    )
    yield "describe", start("describe").upsert(commits), describe
    yield "history", start("history").upsert(commits), lambda table: [*table.commits()]
    yield "history, 10", start("history10").upsert(commits), lambda table: [*table.commits(10)]
    yield "check", start("check").upsert(commits), check_table
    yield (
        "check, shallow",
        start("shallow").upsert(commits),
        lambda table: check_table(table, deep=False),
    )
    yield (
        "explain",
        start("explain").upsert(commits),
        lambda table: explain(file_filter(table.snapshot_at(), None, None)),
    )
    yield (
        "read of an old version",
        start("old").upsert(commits),
        lambda table: table.read(version=5),
    )
    yield (
        "read as of a time",
        start("time").upsert(commits),
        lambda table: table.read(timestamp=middle(table)),
    )
    yield (
        "restore",
        start("restore").upsert(commits),
        lambda table: table.restore(version=commits // 2),
    )
    yield "changes", start("changes").upsert(commits), lambda table: table.changes(1)
    yield "savepoint", start("savepoint").upsert(commits), lambda table: table.savepoint("s")


def middle(table: Table) -> datetime:
    """When the middle one of its versions was committed."""
    return datetime.fromtimestamp(
        table.log.read_commit(table.snapshot_at().version // 2).timestamp_us / 1e6, UTC
    )


def one_more(table: Table) -> None:
    table.ingest(
        pa.table([["k0001", "new"], [10**6] * 2, [1] * 2], schema=SCHEMA),
        metadata="inline",
        token="one-more",
    )


def order(table: Table) -> None:
    fields = tuple(table.snapshot_at().spec.schema.field(name) for name in ("sku", "price"))
    zorder(table, fields)


def maintain(table: Table) -> None:
    run_maintenance(table, policy_of(table.snapshot_at().spec, {"window": "9000d"}), {})


def compacted(hours: Hours) -> Hours:
    compact(hours.later(1).table)
    return hours


def retained(hours: Hours) -> Hours:
    hours.table.retain(window="9000d", grace="1h")
    return hours


def run(commits: int, only: str = "") -> Iterator[tuple[str, Requests]]:
    with s3_server() as options:
        for name, hours, job in jobs(lambda place: Hours(f"s3://lake/{place}", options), commits):
            if only in name:
                table = hours.table
                with counted(options, hours.storage.uri) as requests:
                    job(table)
                yield name, requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--commits", default="22", help="how many small upserts, or several numbers, as 22,100"
    )
    parser.add_argument("--parts", action="store_true", help="also by part of the table")
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    given = parser.parse_args()
    for commits in map(int, given.commits.split(",")):
        print(
            f"{f'after {commits} commits':<32} {'all':>6}"
            + "".join(f"{verb:>8}" for verb in VERBS)
            + f"{'repeated':>10}"
        )
        for name, requests in run(commits, given.only):
            counts = "".join(f"{requests.verbs[verb]:8}" for verb in VERBS)
            print(
                f"{name:<32} {requests.total:6}{counts}{sum(requests.repeated.values()) - len(requests.repeated):10}",
                flush=True,
            )
            if given.parts:
                print("\n".join(str(requests).splitlines()[1:]))
        print()


if __name__ == "__main__":
    main()
