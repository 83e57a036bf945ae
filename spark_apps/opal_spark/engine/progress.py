"""Spark's progress, for progress lines. Classic Spark is polled, Spark Connect pushes it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opal_lake.cli.progress import Step
from opal_spark.engine.session import is_connect, task_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSteps:
    """The step of Spark for a progress line; call `watch` with the session."""

    def __init__(self) -> None:
        self._counts: Callable[[], tuple[int, int]] | None = None
        self._pushed_counts = (0, 0)

    def watch(self, spark: "SparkSession") -> None:
        if is_connect(spark):
            spark.registerProgressHandler(self._receive)
            self._counts = lambda: self._pushed_counts
        else:
            self._counts = lambda: task_counts(spark)

    def where(self) -> Step:
        if self._counts is None:
            return Step(name="starting Spark")
        try:
            done, total = self._counts()
        except Exception:  # noqa: BLE001  # a Spark that stops must not stop the progress line
            return Step(name="working")
        return Step(name="working", done=done, total=total)

    def _receive(self, stages: Iterable[Any] | None, done: bool, **_: Any) -> None:
        if done or stages is None:
            self._pushed_counts = (0, 0)
            return
        running = [stage for stage in stages if not stage.done]
        completed_tasks = sum(stage.num_completed_tasks for stage in running)
        tasks = sum(stage.num_tasks for stage in running)
        self._pushed_counts = (completed_tasks, tasks)
