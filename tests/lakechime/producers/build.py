"""Helpers for tests of producers: the registered events of a table."""

from collections.abc import Sequence
from typing import Any

from lakechime import DataChangeEvent, LakeChime, chain
from lakechime.chains import ProblemKind
from lakechime.producers.opal import is_empty_ingest
from opal_lake.table import Table
from tests.opal_lake import shop

NAME = "shop.prices"


def events_of(client: LakeChime, table: str) -> list[DataChangeEvent]:
    return [registered.event for registered in client.events([table], limit=10_000).events]


def gaps_of(client: LakeChime, table: str) -> list[bool]:
    return [registered.gap for registered in client.events([table], limit=10_000).events]


def check_chain(client: LakeChime, table: str, snapshots: Sequence[str]) -> None:
    """Each snapshot once, in order, each naming the one before."""
    events = events_of(client, table)
    assert [*dict.fromkeys(event.snapshot_id for event in events)] == [*snapshots]
    assert len({(event.snapshot_id, event.partition) for event in events}) == len(events)
    if events:
        followed = chain(events)
        assert followed.snapshots == tuple(snapshots)
        assert followed.start is None
    assert not any(gaps_of(client, table))


def put(table: Table, *values: shop.Row, **options: Any) -> Any:
    rows, deleted = shop.rows(values)
    return table.ingest(rows, deleted, **options)


def equal_to_log(client: LakeChime, table: Table, name: str = NAME) -> None:
    """Assert that events are the commits that changed the view, in the log's order."""
    commits = [
        commit
        for commit in reversed([*table.commits()])
        if commit.changes_view or is_empty_ingest(commit)
    ]
    events = events_of(client, name)
    snapshots = [*dict.fromkeys(event.snapshot_id for event in events)]
    assert snapshots == [str(commit.version) for commit in commits]
    assert len({(event.snapshot_id, event.partition) for event in events}) == len(events)
    order = [int(event.snapshot_id or 0) for event in events]
    assert order == sorted(order)
    before = dict(zip(snapshots[1:], snapshots, strict=False))
    assert all(event.prev_snapshot_id == before.get(str(event.snapshot_id)) for event in events)
    followed = chain(events, on_problems="report")
    assert followed.snapshots == tuple(snapshots)
    assert {problem.kind for problem in followed.problems} <= {ProblemKind.RESTORE}
    assert not any(entry.gap for entry in client.events([name], limit=10_000).events)
