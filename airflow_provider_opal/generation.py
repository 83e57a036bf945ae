"""The generation of a task's run: its retries share one; every clear begins another.

The generation is a part of the job's token (`token_of` in `operators/spark.py`), so a retry applies once, and a clear does the job again.

Airflow says of no try whether it is a retry or a clear. What a task sees: `max_tries`, which a retry leaves as it is and a clear sets to
tries so far + `retries`; and the run's count of clears, which `reset_dag_runs=false` of the REST API leaves as it is. Either may stay in a
clear that moves the other (a lower `retries` can make the sum what it was), so both are kept with the task at its first try, where no edit
of the DAG reaches them. When another task of the run was cleared between two tries, the second counts as a clear too: nothing tells them
apart, and to do a job again is harmless where to leave it out is not.
"""

from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import NEVER_EXPIRE

if TYPE_CHECKING:
    from airflow.sdk import Context

GENERATION = "opal_generation"
# Earlier generations that are remembered: Airflow's state store takes some 64 KB a value
MAX_EARLIER = 100


def generation_of(context: "Context") -> str:
    """The id of the task instance at the first try: unique, also when a run was deleted and made anew with the same name."""
    store, now = context["task_state_store"], _seen(context)
    kept: Any = store.get(GENERATION)
    generation: dict[str, Any] = {"id": str(context["ti"].id), **now, "ended": False, "earlier": []}
    if isinstance(kept, dict):
        if _was_cleared(kept, now, context["task"].retries or 0):
            generation["earlier"] = [*kept["earlier"], kept["id"]][-MAX_EARLIER:]
        else:
            generation = {**kept, "tries": now["tries"]}
    if generation != kept:
        store.set(GENERATION, generation, retention=NEVER_EXPIRE)
    return str(generation["id"])


def earlier_generations(context: "Context") -> list[str]:
    """Return the ids of the generations before this one, oldest first."""
    kept: Any = context["task_state_store"].get(GENERATION)
    return [str(earlier) for earlier in kept["earlier"]] if isinstance(kept, dict) else []


def end_generation(context: "Context") -> None:
    """The task has done its work: what is run after this is no retry, unless its worker dies before it can say so."""
    store = context["task_state_store"]
    if isinstance(kept := store.get(GENERATION), dict):
        store.set(GENERATION, {**kept, "ended": True}, retention=NEVER_EXPIRE)


def _seen(context: "Context") -> dict[str, Any]:
    ti = context["ti"]
    return {
        "max_tries": ti.max_tries,
        "tries": ti.try_number,
        "clears": context["dag_run"].clear_number or 0,
    }


def _was_cleared(kept: dict[str, Any], now: dict[str, Any], retries: int) -> bool:
    if (kept["max_tries"], kept["clears"]) != (now["max_tries"], now["clears"]):
        return True
    # The sum of a clear that left the run's count alone is what it was; of a retry it is so only after an edit of `retries`
    return (
        bool(kept["ended"])
        and now["tries"] > kept["tries"]
        and bool(kept["tries"] + retries == now["max_tries"])
    )
