"""The generation of a task's run: its retries share one; every clear begins another.

The generation is a part of the job's token (`token_of` in `operators/spark.py`), so that a retry
applies once, and a clear does the job again.

Airflow does not report whether a try is a retry or a clear. A task sees two values: `max_tries`,
which a retry leaves unchanged and a clear sets to the tries so far + `retries`; and the DAG run's
count of clears, which `reset_dag_runs=false` of the REST API leaves unchanged. A clear may leave
either unchanged and move the other (a lower `retries` can make the sum equal to what it was).
Both are therefore stored with the task at its first try, where no edit of the DAG reaches them.
When another task of the DAG run was cleared between two tries, the second try counts as a clear
too: nothing distinguishes the two, and doing a job again is harmless, while leaving it out is not.
"""

from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import NEVER_EXPIRE

if TYPE_CHECKING:
    from airflow.sdk import Context

GENERATION = "opal_generation"
# Earlier generations that are remembered: Airflow's state store takes some 64 KB a value
MAX_EARLIER = 100


def generation_of(context: "Context") -> str:
    """Return the id of the current generation; store a new generation.

    The id is that of the task instance at the generation's first try. It is unique even if a DAG
    run was deleted and created again with the same name.
    """
    store = context["task_state_store"]
    now = _seen(context)
    stored: Any = store.get(GENERATION)
    earlier: list[str] = []
    is_retry = False
    if isinstance(stored, dict):
        is_retry = not _was_cleared(stored, now, context["task"].retries or 0)
        earlier = [*stored["earlier"], stored["id"]][-MAX_EARLIER:]
    generation: dict[str, Any] = {
        "id": str(context["ti"].id),
        **now,
        "ended": False,
        "earlier": earlier,
    }
    if is_retry:
        generation = {**stored, "tries": now["tries"]}
    if generation != stored:
        store.set(GENERATION, generation, retention=NEVER_EXPIRE)
    return str(generation["id"])


def earlier_generations(context: "Context") -> list[str]:
    """Return the ids of the generations before this one, oldest first."""
    stored: Any = context["task_state_store"].get(GENERATION)
    if not isinstance(stored, dict):
        return []
    return [str(earlier) for earlier in stored["earlier"]]


def end_generation(context: "Context") -> None:
    """Record that the task has done its work.

    A later try is then a clear, not a retry. A worker that dies before this call leaves the
    generation open: the next try is then a retry.
    """
    store = context["task_state_store"]
    stored = store.get(GENERATION)
    if isinstance(stored, dict):
        store.set(GENERATION, {**stored, "ended": True}, retention=NEVER_EXPIRE)


def _seen(context: "Context") -> dict[str, Any]:
    """Return the values by which a later try recognizes a clear."""
    ti = context["ti"]
    return {
        "max_tries": ti.max_tries,
        "tries": ti.try_number,
        "clears": context["dag_run"].clear_number or 0,
    }


def _was_cleared(stored: dict[str, Any], now: dict[str, Any], retries: int) -> bool:
    """Return whether the task was cleared since the stored values were seen."""
    if stored["max_tries"] != now["max_tries"] or stored["clears"] != now["clears"]:
        return True
    if not stored["ended"] or now["tries"] <= stored["tries"]:
        return False
    # A clear that leaves the run's count unchanged sets max_tries to this sum; a retry has this
    # sum only after an edit of `retries`
    return bool(stored["tries"] + retries == now["max_tries"])
