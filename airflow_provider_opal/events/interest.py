"""The events that a sensor, a trigger or an operator wants: tables, partition values, tags."""

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
    """Return each table as (cluster, table); `cluster` is that of a table without one."""
    pairs = []
    for table in tables:
        if isinstance(table, str):
            pairs.append((cluster, table))
        else:
            pairs.append((str(table[0]), str(table[1])))
    return pairs


def foreign_assets(tables: Sequence[tuple[str, str]]) -> list["Asset"]:
    """Return the assets of tables; leave out templates and invalid names."""
    assets = []
    for cluster, table in tables:
        with suppress(ValueError):
            assets.append(lakechime_asset(table, cluster=cluster))
    return assets


def partition_key(partition: Sequence[Any]) -> str:
    """Return the values of a partition as one key, such as '2026-11-01/DE'."""
    return "/".join(_value_text(value) for value in partition)


def _value_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def asset_keys(event: "DataChangeEvent") -> tuple[str | None, str | None]:
    """Return the keys of an event's partition and snapshot.

    A key is None if the event has none, or if Airflow does not accept it.
    """
    partition = None if event.partition is None else partition_key(event.partition)
    return _allowed(partition), _allowed(event.snapshot_id)


def _allowed(key: str | None) -> str | None:
    """Return a partition key that Airflow accepts, or None."""
    if key is None or len(key) > MAX_KEY or not key.strip():
        return None
    return key


def checked_tables(tables: Any) -> list[Any]:
    """Return tables as a list of names, or of (cluster, name), or raise ValueError."""
    if isinstance(tables, str) or not isinstance(tables, Sequence) or not tables:
        raise ValueError(
            f"tables={tables!r} is not a list of tables; "
            "write ['shop.orders'], or [('prod', 'shop.orders')] with their clusters"
        )
    for table in tables:
        is_pair = isinstance(table, Sequence) and len(table) == 2
        if not isinstance(table, str) and not is_pair:
            raise ValueError(
                f"{table!r} is not a table; "
                "write 'shop.orders', or ('prod', 'shop.orders') with its cluster"
            )
    return list(tables)


def checked_partition(partition: Any) -> list[Any]:
    """Return a partition as a list with a value for each level, or raise ValueError."""
    if isinstance(partition, str) or not isinstance(partition, Sequence) or len(partition) == 0:
        raise ValueError(
            f"partition={partition!r} is not a list of values; "
            "write one value for each level, such as ['{{ partition_key }}', 'DE']"
        )
    return list(partition)


def checked_tags(tags: Any) -> dict[str, str]:
    """Return tags as a dict of texts by names, or raise ValueError."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping) or not all(isinstance(text, str) for text in tags.values()):
        raise ValueError(
            f"tags={tags!r} is not a mapping of names to texts; "
            "write {'completeness.hourly': '99'}"
        )
    return dict(tags)


def checked_mode(mode: str) -> str:
    """Return a mode, 'any' or 'all', or raise ValueError."""
    if mode not in MODES and not is_templated(mode):
        raise ValueError(
            f"mode={mode!r} is unknown; use 'any' (of the tables) or 'all'. "
            "A sensor also accepts Airflow's modes 'poke' and 'reschedule'"
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
    """Return one interest for all tables, or with mode 'all' one for each table."""
    from lakechime import Interest

    pairs = tuple((cluster, table) for cluster, table in tables)
    groups = [pairs]
    if mode == "all":
        groups = [(pair,) for pair in pairs]
    values = None if partition is None else tuple(partition)
    return [
        Interest(tables=group, after=after, partition=values, tags=dict(tags or {}))
        for group in groups
    ]
