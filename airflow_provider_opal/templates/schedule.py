"""The timetable of a pipeline's schedule, whose runs have a partition key."""

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
    """Return a schedule for `DAG(schedule=)`, also for a DAG with an OpalTaskGroup.

    - A cron expression or a preset: each run has the key of the interval that just ended, written
      with `partition_key_format`.
    - An asset, or assets joined as `a & b`: a run for each key of their events.
    - None: only manual runs, with or without a key.
    - A timetable: returned unchanged.
    """
    if isinstance(schedule, str):
        cron = cron_of(schedule)
        try:
            pendulum.timezone(timezone)
        except ValueError as error:
            raise ValueError(
                f"unknown time zone {timezone!r}; "
                "write a name of the IANA database, such as 'Europe/Berlin'"
            ) from error
        if partition_key_format is not None:
            check_keys(cron, partition_key_format, timezone)
        return CronPartitionTimetable(
            cron,
            timezone=timezone,
            run_offset=-1,  # the key is that of the interval that ended
            key_format=partition_key_format or format_of(cron, timezone),
        )
    if partition_key_format is not None:
        raise ValueError(
            f"partition_key_format={partition_key_format!r} needs a cron schedule, "
            f"but schedule is {schedule!r}; leave out partition_key_format"
        )
    if schedule is None:
        return PartitionedAtRuntime()
    if isinstance(schedule, BaseTimetable):
        return schedule
    if isinstance(schedule, BaseAsset):
        return PartitionedAssetTimetable(assets=schedule)
    if isinstance(schedule, list | tuple) and any(isinstance(member, Asset) for member in schedule):
        raise ValueError(
            "schedule is a list of assets, which events with partition keys never trigger; "
            "join the assets instead: schedule=first & second"
        )
    raise ValueError(
        f"schedule={schedule!r} is not a schedule; "
        "give a cron expression, '@daily', an asset, a timetable or None"
    )


def in_zone(moment: datetime | None, timezone: str) -> datetime | None:
    """Return a moment with a time zone; a moment without one is in `timezone`."""
    if moment is None or moment.tzinfo:
        return moment
    return moment.replace(tzinfo=pendulum.timezone(timezone))


def run_bounds(
    schedule: Any, start: datetime | None, end: datetime | None, timezone: str
) -> tuple[datetime | None, datetime | None]:
    """Return when the runs of the first and of the last partition are due.

    The run of a partition is due one interval after the partition's start. Airflow's `start_date`
    and `end_date` are bounds of due times: without this shift, a pipeline from the first of a month
    would begin with the day before.
    """
    start, end = in_zone(start, timezone), in_zone(end, timezone)
    if not isinstance(schedule, str):
        return start, end
    from croniter import croniter

    def after(moment: datetime) -> datetime:
        local = moment.astimezone(pendulum.timezone(timezone))
        due: datetime = croniter(cron_of(schedule), local).get_next(datetime)
        return due

    if start is not None:
        # The first partition begins at `start` itself, if the schedule has this moment
        first_partition = after(start - timedelta(seconds=1))
        start = after(first_partition)
    if end is not None:
        end = after(end)
    return start, end
