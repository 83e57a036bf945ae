"""What a run of a consumer was given, where a new consumer begins, and what it is called.

Airflow's `[state_store] clear_on_success` (off by default) deletes what a run keeps: a cleared run then gets what is newest.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import NEVER_EXPIRE

if TYPE_CHECKING:
    from airflow.sdk import Context

GIVEN = "opal_given"
Start = str | int  # "head", "all", or the last version, or place of an event, that counts as seen


def checked_start(start: Start) -> Start:
    """The start, if it is one."""
    if not (
        start in ("head", "all")
        or (isinstance(start, int) and not isinstance(start, bool) and start >= 0)
    ):
        raise ValueError(
            f"start={start!r} is unknown; use 'head', 'all' or the number of the last version that counts as seen"
        )
    return start


def default_consumer(context: "Context") -> str:
    """A consumer's name unless it has one of its own."""
    ti = context["ti"]
    return f"{ti.dag_id}.{ti.task_id}"


def given_to(context: "Context") -> dict[str, Any] | None:
    """What this run was given at an earlier try, or before it was cleared."""
    stored = context["task_state_store"].get(GIVEN)
    return dict(stored) if isinstance(stored, dict) else None


def give_to(context: "Context", what: Mapping[str, Any]) -> dict[str, Any]:
    """For this try and all later ones of this run."""
    fixed = dict(what)
    context["task_state_store"].set(GIVEN, fixed, retention=NEVER_EXPIRE)
    return fixed
