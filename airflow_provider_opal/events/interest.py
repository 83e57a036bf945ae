"""Which events a sensor, a trigger or an operator means: tables by cluster, partition values, tags."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_opal.assets import DEFAULT_CLUSTER, lakechime_asset
from airflow_provider_opal.templated import is_templated

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from lakechime import DataChangeEvent, Interest

MODES = ("any", "all")
MAX_KEY = 250  # Airflow's own limit


def table_pairs(tables: Sequence[Any], cluster: str = DEFAULT_CLUSTER) -> list[tuple[str, str]]:
    """(cluster, table) of each: a name alone is one of `cluster`."""
    return [
        (cluster, table) if isinstance(table, str) else (str(table[0]), str(table[1]))
        for table in tables
    ]


def foreign_assets(tables: Sequence[tuple[str, str]]) -> list["Asset"]:
    """Their assets, without those that a run has to fill in, and those whose names no asset may have."""
    assets = []
    for cluster, table in tables:
        with suppress(ValueError):
            assets.append(lakechime_asset(table, cluster=cluster))
    return assets


def partition_key(partition: Sequence[Any]) -> str:
    """The values of a partition as one key: '2026-11-01/DE'. A text stands for itself, anything else is JSON."""
    return "/".join(
        value
        if isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), sort_keys=True)
        for value in partition
    )


def asset_keys(event: "DataChangeEvent") -> tuple[str | None, str | None]:
    """The partition key and the snapshot's key of an event; None where it has none, or one that Airflow does not take."""
    return _allowed(None if event.partition is None else partition_key(event.partition)), _allowed(
        event.snapshot_id
    )


def _allowed(key: str | None) -> str | None:
    return key if key is not None and key.strip() and len(key) <= MAX_KEY else None


def checked_tables(tables: Any) -> list[Any]:
    """Names, or (cluster, name), of one table at least."""
    if isinstance(tables, str) or not isinstance(tables, Sequence) or not tables:
        raise ValueError(
            f"tables={tables!r} is no list of tables; write ['shop.orders'], or [('prod', 'shop.orders')] with their clusters"
        )
    for table in tables:
        if not isinstance(table, str) and not (isinstance(table, Sequence) and len(table) == 2):
            raise ValueError(
                f"{table!r} is no table; write 'shop.orders', or ('prod', 'shop.orders') with its cluster"
            )
    return list(tables)


def checked_partition(partition: Any) -> list[Any]:
    """One value a level."""
    if isinstance(partition, str) or not isinstance(partition, Sequence) or len(partition) == 0:
        raise ValueError(
            f"partition={partition!r} is no list of values; write one a level, as ['{{{{ partition_key }}}}', 'DE']"
        )
    return list(partition)


def checked_tags(tags: Any) -> dict[str, str]:
    """Texts by names."""
    if not isinstance(tags, Mapping | None) or any(
        not isinstance(value, str) for value in (tags or {}).values()
    ):
        raise ValueError(
            f"tags={tags!r} are no texts by names; write {{'completeness.hourly': '99'}}"
        )
    return dict(tags or {})


def checked_mode(mode: str) -> str:
    """Whether one table is enough."""
    if mode not in MODES and not is_templated(mode):
        raise ValueError(
            f"mode={mode!r} is unknown; use 'any' (of the tables) or 'all'; a sensor's may be Airflow's 'poke' or 'reschedule', too"
        )
    return mode


def interests_of(
    tables: Sequence[Sequence[str]],
    *,
    after: int = 0,
    partition: Sequence[Any] | None = None,
    tags: Mapping[str, str] | None = None,
    mode: str = "any",
) -> list["Interest"]:
    """One for all tables, or one for each of them."""
    from lakechime import Interest

    pairs = tuple((cluster, table) for cluster, table in tables)
    groups = [(pair,) for pair in pairs] if mode == "all" else [pairs]
    values = None if partition is None else tuple(partition)
    return [
        Interest(tables=group, after=after, partition=values, tags=dict(tags or {}))
        for group in groups
    ]
