"""The demo's foreign table, pageviews in Delta, and its events in LakeChime."""

import pyarrow as pa

from lakechime import LakeChime

TABLE = "data.pageviews"
VIEWS = {"2026-11-01": {"home": 5, "cart": 2}, "2026-11-02": {"home": 3, "cart": 4}}


def write_pageviews(path: str) -> None:
    """Write a commit for each day."""
    from deltalake import write_deltalake

    for day, pages in VIEWS.items():
        views_of_day: list[str] = []
        for page, count in pages.items():
            views_of_day += [page] * count
        write_deltalake(
            path,
            pa.table({"day": [day] * len(views_of_day), "page": views_of_day}),
            mode="append",
            partition_by=["day"],
        )


def register_pageviews(path: str, events: str, token: str | None = None) -> int:
    """Register the table's changes as `lakechime watch` does; return its event count."""
    from lakechime.producers.delta import DeltaSource
    from lakechime.producers.outbox import Target, sync

    with LakeChime.open(events, token=token) as client:
        sync(client, DeltaSource(path=path, target=Target(table=TABLE)))
        return len(client.events([TABLE]).events)
