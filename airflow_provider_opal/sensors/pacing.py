"""The waits of a sensor: the moments at which it looks, within its timeout.

Without such moments it looks every `poke_interval` seconds, like every sensor of Airflow.
`templates/wait_for.py` has the interval of the sensors in DAG templates.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

from airflow.sdk import BaseSensorOperator, conf
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_provider_opal.arguments import takes_arguments_of
from airflow_provider_opal.events.moments import moment_ms, newest_tick
from airflow_provider_opal.templated import is_templated
from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import Count, Help, Kind
from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger
    from pydantic import JsonValue

LOOKED_AT = "opal_looked_at"
UNITS = ("minute", "hour", "day", "week", "month")


def _moment(name: str, value: Any) -> Any:
    moment_ms(name, value)
    return value


def _unit(name: str, value: Any) -> str:
    """Return the unit in lower case and singular, also for `HOUR` and `hours`."""
    unit = str(value).lower().removesuffix("s")
    if unit not in UNITS:
        raise InvalidInputError(f"{name}={value!r} is unknown; use one of {', '.join(UNITS)}")
    return unit


StartTimestamp = Annotated[datetime | int | str, Kind(_moment, "TIME")]


@declaration
class Pacing(Declared):
    """The moments at which a sensor looks: start_timestamp + n * frequency.

    LakeChime's triggers use the same moments. The sensor also looks when its task begins, but never
    before `start_timestamp`. Months have the lengths of the calendar, in UTC.
    """

    name: ClassVar[str] = "pacing"

    start_timestamp: Annotated[
        StartTimestamp | None,
        Help("the first moment at which to look; goes with frequency and frequency_unit"),
    ] = None
    frequency: Annotated[Count | None, Help("the number of units between two looks")] = None
    frequency_unit: Annotated[
        Annotated[str, Kind(_unit, "UNIT", choices=UNITS)] | None, Help("the unit of frequency")
    ] = None

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError if only some of the three arguments are given."""
        del is_open
        is_given = [given[name] is not None for name in Pacing.fields()]
        if any(is_given) and not all(is_given):
            raise InvalidInputError(
                "start_timestamp, frequency and frequency_unit belong together; "
                "give all three, for example 2026-11-01T00:00:00Z, 1 and hour"
            )


class PacedSensor(BaseSensorOperator):
    """A sensor that looks at each `poke_interval`, or at the moments of a Pacing."""

    template_fields: Sequence[str] = tuple(Pacing.fields())

    @takes_arguments_of(Pacing)
    def __init__(self, **kwargs: Any) -> None:
        pacing = Pacing.checked(Pacing.taken_from(kwargs), is_templated)
        super().__init__(**kwargs)
        self.start_timestamp = pacing.get("start_timestamp")
        self.frequency = pacing.get("frequency")
        self.frequency_unit = pacing.get("frequency_unit")

    @property
    def ticks(self) -> list[Any] | None:
        """The first moment in ms, the frequency and its unit; None without a pacing."""
        given = Pacing.among(vars(self))
        if not given:
            return None
        pacing = Pacing(**Pacing.filled_in(given))
        start_ts = moment_ms("start_timestamp", pacing.start_timestamp)
        return [start_ts, pacing.frequency, str(pacing.frequency_unit).upper()]

    def is_due(self, context: "Context") -> bool:
        """Return whether the sensor should look now.

        It looks once for each moment, at the first poke after the moment. A new try looks at its
        first poke, for the newest moment that has passed. Nothing is due before the first moment.
        The last look is stored, because the process may end between two pokes.
        """
        moments = self.ticks
        if moments is None:
            return True
        newest_number = newest_tick(moments)
        if newest_number is None:  # before the first moment
            return False
        look: dict[str, JsonValue] = {"try": context["ti"].try_number, "tick": newest_number}
        if context["task_state_store"].get(LOOKED_AT) == look:
            return False
        context["task_state_store"].set(LOOKED_AT, look)
        return True

    def look_again(self, context: "Context") -> None:
        """Make the next poke due, after the trigger fired at a moment."""
        if self.ticks is not None:
            context["task_state_store"].set(LOOKED_AT, {})


def is_deferrable(given: bool | None) -> bool:
    """Return whether a sensor defers; Airflow's configuration has the default."""
    if given is None:
        return conf.getboolean("operators", "default_deferrable", fallback=False)
    return given


def defer_within(
    sensor: BaseSensorOperator, trigger: "BaseTrigger", deadline_s: float | None
) -> NoReturn:
    """Defer the sensor to its method `resume`, until the deadline at the latest.

    `resume` gets the deadline and passes it on if it defers again. With None the sensor's timeout
    begins now.
    """
    if deadline_s is None:
        deadline_s = time() + sensor.timeout
    left_s = deadline_s - time()
    if left_s <= 0:
        raise AirflowSensorTimeout(
            f"task {sensor.task_id!r} found nothing within its timeout of {sensor.timeout:g} s; "
            "give a longer timeout=, or clear the task"
        )
    # Airflow begins the timeout again at each deferral, so the deadline travels with it
    sensor.defer(
        trigger=trigger,
        method_name="resume",
        kwargs={"deadline_s": deadline_s},
        timeout=timedelta(seconds=left_s),
    )
    raise AssertionError("defer never returns")
