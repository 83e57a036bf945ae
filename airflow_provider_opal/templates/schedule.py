"""A pipeline's schedule as a timetable whose runs have a partition key."""

import re
from typing import Any

from airflow.sdk import Asset, CronPartitionTimetable, PartitionedAssetTimetable, PartitionedAtRuntime
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.definitions.asset import BaseAsset

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
_NUMBER = re.compile(r"\d+\Z")


def timetable_of(schedule: Any, timezone: str, key_format: str | None) -> Any:
    """What `DAG(schedule=)` takes.

    A cron expression or a preset: each run has the key of the interval that just ended, written by `key_format`. Assets, one or `a & b`:
    a run a key. None: only by hand, with or without a key. A timetable is taken as it is.
    """
    if schedule is None:
        return PartitionedAtRuntime()
    if isinstance(schedule, BaseTimetable):
        return schedule
    if isinstance(schedule, BaseAsset):
        return PartitionedAssetTimetable(assets=schedule)
    if isinstance(schedule, list | tuple) and any(isinstance(member, Asset) for member in schedule):
        raise ValueError("schedule is a list of assets, which keyed events never wake; join them: schedule=a & b")
    if not isinstance(schedule, str):
        raise ValueError(
            f"schedule={schedule!r} is no schedule; give a cron expression, a preset as '@daily', an asset, a timetable or None"
        )
    cron = PRESETS.get(schedule, schedule)
    if cron.startswith("@"):
        raise ValueError(f"schedule={schedule!r} makes no partitions; use a cron expression or one of {', '.join(PRESETS)}")
    return CronPartitionTimetable(cron, timezone=timezone, run_offset=-1, key_format=key_format or format_of(cron))


def format_of(cron: str) -> str:
    """As much of a moment as tells the keys of a schedule apart; without colons, which paths of Hadoop cannot hold."""
    minute, hour = (*cron.split(), "*", "*")[:2]
    if not _NUMBER.match(minute):
        return "%Y-%m-%dT%H-%M"
    return "%Y-%m-%d" if _NUMBER.match(hour) else "%Y-%m-%dT%H"
