"""What a store was told of a table."""

from collections.abc import Sequence

from lakechime import DataChangeEvent, LakeChime, chain


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
