"""The range of a consumer's run, and the start and the name of a new consumer.

Airflow's `[state_store] clear_on_success` (off by default) deletes the range of a run. Then a
cleared run gets the newest range.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import NEVER_EXPIRE

if TYPE_CHECKING:
    from airflow.sdk import Context

GIVEN = "opal_given"
Start = str | int  # "head", "all", or the last version, or seq of an event, that counts as seen


def checked_start(start: Start) -> Start:
    """Return a valid start, or raise ValueError."""
    is_number = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if start not in ("head", "all") and not is_number:
        raise ValueError(
            f"start={start!r} is unknown; "
            "use 'head', 'all' or the number of the last version or event that counts as seen"
        )
    return start


def default_consumer(context: "Context") -> str:
    """Return the default name of a task's consumer."""
    ti = context["ti"]
    return f"{ti.dag_id}.{ti.task_id}"


def given_to(context: "Context") -> dict[str, Any] | None:
    """Return the range that an earlier try of this run stored, or None.

    A try before a clear of the run counts, too.
    """
    stored = context["task_state_store"].get(GIVEN)
    return dict(stored) if isinstance(stored, dict) else None


def give_to(context: "Context", given: Mapping[str, Any]) -> dict[str, Any]:
    """Store the range of this try and all later tries of the run, and return it."""
    stored = dict(given)
    context["task_state_store"].set(GIVEN, stored, retention=NEVER_EXPIRE)
    return stored
