"""The modules that a worker loads for a task: each new worker waits for them."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from opal_lake.write import ingest_job, metagen_job

TASKS = {
    "metagen": "opal_lake.write.metagen_task, opal_spark.engine.by_key, opal_spark.engine.tasks",
    "ingest": "opal_lake.write.ingest_task, opal_spark.engine.tasks",
    "inline": "opal_lake.write.inline, opal_spark.engine.tasks",
}
STEPS = (
    "opal_lake.table",
    "opal_lake.maintenance",
    "opal_lake.log.commit_log",
    "opal_spark.engine.executor",
)
HANDED_OUT = [  # by the names that the steps import
    (metagen_job.process_entries, "metagen"),  # type: ignore[attr-defined]
    (ingest_job.write_partition, "ingest"),  # type: ignore[attr-defined]
    (ingest_job.write_slot, "inline"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize("operation", TASKS)
def test_a_task_loads_neither_the_table_nor_the_steps_of_an_operation(operation: str) -> None:
    script = (
        f"import sys, {TASKS[operation]}\nprint(*[name for name in {STEPS} if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == []


@pytest.mark.parametrize("task, operation", HANDED_OUT)
def test_jobs_run_tasks_of_small_modules(task: Callable[..., object], operation: str) -> None:
    assert task.__module__ in TASKS[operation].split(", ")
