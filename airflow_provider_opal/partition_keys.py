"""The partition keys of a schedule: how a moment is written as a key, and the interval of a key.

`operators.spark` refuses a DAG run that needs a partition key and has none.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import pendulum

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
_NUMBER = re.compile(r"\d+\Z")


def cron_of(schedule: str) -> str:
    """Return the cron expression of a preset; any other text unchanged."""
    cron = PRESETS.get(schedule, schedule)
    if cron.startswith("@"):
        raise ValueError(
            f"the schedule {schedule!r} makes no partition keys; "
            f"use a cron expression or one of {', '.join(PRESETS)}"
        )
    return cron


def format_of(cron: str, timezone: str = "UTC") -> str:
    """Return the shortest format in which the moments of a schedule differ.

    The format has no colons, which Hadoop's paths cannot contain. Outside UTC it has the offset: an
    hour that occurs twice when summer time ends has two offsets.
    """
    # An incomplete expression counts as one with stars
    minute, hour = (*cron.split(), "*", "*")[:2]
    offset = "" if timezone == "UTC" else "%z"
    if not _NUMBER.match(minute):
        return f"%Y-%m-%dT%H-%M{offset}"
    if not _NUMBER.match(hour):
        return f"%Y-%m-%dT%H{offset}"
    return "%Y-%m-%d"


def check_keys(cron: str, partition_key_format: str, timezone: str = "UTC") -> None:
    """Raise ValueError if two runs in a row would have the same key."""
    from croniter import croniter

    # Any two runs in a row show it
    ticks = croniter(cron, datetime(2026, 1, 1))
    first, second = ticks.get_next(datetime), ticks.get_next(datetime)
    key = first.strftime(partition_key_format)
    if key == second.strftime(partition_key_format):
        raise ValueError(
            f"partition_key_format {partition_key_format!r} gives the runs of {first} and {second} "
            f"the same key {key!r}; "
            f"include more of the time, for example {format_of(cron, timezone)!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInterval:
    """A schedule of `keyed_schedule`, which knows the interval of each of its keys."""

    cron: str
    timezone: str
    partition_key_format: str

    @classmethod
    def of(
        cls, schedule: str, timezone: str = "UTC", partition_key_format: str | None = None
    ) -> Self:
        cron = cron_of(schedule)
        if partition_key_format is not None:
            check_keys(cron, partition_key_format, timezone)
        return cls(
            cron=cron,
            timezone=timezone,
            partition_key_format=partition_key_format or format_of(cron, timezone),
        )

    def bounds(self, key: str) -> tuple[datetime, datetime]:
        """Return the start and the end of a key's interval, in UTC.

        Raises ValueError if the schedule does not make such a key.
        """
        from croniter import croniter

        zone = pendulum.timezone(self.timezone)
        try:
            start = datetime.strptime(key, self.partition_key_format)  # noqa: DTZ007  # zone: below
        except ValueError as error:
            raise ValueError(
                f"the partition key {key!r} does not have the format "
                f"{self.partition_key_format!r} of the schedule; "
                "trigger the DAG with a key in that format"
            ) from error
        if start.tzinfo is None:
            start = start.replace(tzinfo=zone)
        else:
            # The format has an offset. The schedule counts in its own zone
            start = start.astimezone(zone)
        ends: datetime = croniter(self.cron, start).get_next(datetime)
        return start.astimezone(UTC), ends.astimezone(UTC)
