"""A pipeline's schedule as a timetable whose runs have a partition key."""

from datetime import datetime, timedelta
from typing import Any

import pendulum
from airflow.sdk import (
    Asset,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
)
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.definitions.asset import BaseAsset

from airflow_provider_opal.partition_keys import check_keys, cron_of, format_of


def keyed_schedule(
    schedule: Any, timezone: str = "UTC", partition_key_format: str | None = None
) -> Any:
    """Return what `DAG(schedule=)` takes, for a DAG of your own with an OpalTaskGroup, too.

    A cron expression or a preset: each run has the key of the interval that just ended, written by
    `partition_key_format`. Assets, one or `a & b`: a run a key. None: only by hand, with or without
    a key. A timetable is taken as it is.
    """
    if isinstance(schedule, str):
        cron = cron_of(schedule)
        try:
            pendulum.timezone(timezone)
        except ValueError as error:
            raise ValueError(
                f"there is no time zone {timezone!r}; write a name of the IANA database, as 'Europe/Berlin'"
            ) from error
        if partition_key_format is not None:
            check_keys(cron, partition_key_format, timezone)
        return CronPartitionTimetable(
            cron,
            timezone=timezone,
            run_offset=-1,
            key_format=partition_key_format or format_of(cron, timezone),
        )
    if partition_key_format is not None:
        raise ValueError(
            f"partition_key_format={partition_key_format!r} needs a cron schedule, "
            f"but schedule is {schedule!r}; leave it out"
        )
    if schedule is None:
        return PartitionedAtRuntime()
    if isinstance(schedule, BaseTimetable):
        return schedule
    if isinstance(schedule, BaseAsset):
        return PartitionedAssetTimetable(assets=schedule)
    if isinstance(schedule, list | tuple) and any(isinstance(member, Asset) for member in schedule):
        raise ValueError(
            "schedule is a list of assets, which events with partition keys never trigger; join them: schedule=a & b"
        )
    raise ValueError(
        f"schedule={schedule!r} is no schedule; give a cron expression, '@daily', an asset, a timetable or None"
    )


def in_zone(moment: datetime | None, timezone: str) -> datetime | None:
    """A moment without a zone is one of the pipeline's."""
    return (
        moment
        if moment is None or moment.tzinfo
        else moment.replace(tzinfo=pendulum.timezone(timezone))
    )


def run_bounds(
    schedule: Any, start: datetime | None, end: datetime | None, timezone: str
) -> tuple[datetime | None, datetime | None]:
    """When the runs of the partitions from `start` to `end` are due, both included: each one interval later.

    Airflow's own bounds are those of the runs, so that a pipeline from the first of a month would begin with the day before.
    """
    start, end = in_zone(start, timezone), in_zone(end, timezone)
    if not isinstance(schedule, str):
        return start, end
    from croniter import croniter

    def after(moment: datetime) -> datetime:
        due: datetime = croniter(
            cron_of(schedule), moment.astimezone(pendulum.timezone(timezone))
        ).get_next(datetime)
        return due

    tick = timedelta(seconds=1)
    return start and after(after(start - tick)), end and after(end)
