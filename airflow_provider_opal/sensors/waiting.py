"""How a sensor waits in the triggerer: for as long as its timeout says in all, however often it is woken for nothing."""

from datetime import timedelta
from time import time
from typing import TYPE_CHECKING, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger


def defer_within(
    sensor: BaseSensorOperator, trigger: "BaseTrigger", deadline_s: float | None
) -> NoReturn:
    """Defers to the method `resume`, which gets the deadline, and gives it back here. None: the time begins now."""
    deadline_s = time() + sensor.timeout if deadline_s is None else deadline_s
    left_s = deadline_s - time()
    if left_s <= 0:
        raise AirflowSensorTimeout(
            f"nothing came within the timeout of {sensor.timeout:g} s; give a longer timeout=, or clear the task"
        )
    sensor.defer(
        trigger=trigger,
        method_name="resume",
        kwargs={"deadline_s": deadline_s},
        timeout=timedelta(seconds=left_s),
    )
    raise AssertionError("defer never returns")
