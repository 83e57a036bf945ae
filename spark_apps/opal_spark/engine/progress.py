"""Spark's progress, for progress lines: polled from classic Spark, pushed by Spark Connect."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opal_lake.cli.progress import Step
from opal_spark.engine.session import is_connect, task_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSteps:
    """The step that a progress line shows; `watch` a session once there is one."""

    def __init__(self) -> None:
        self._counts: Callable[[], tuple[int, int]] | None = None
        self._told = (0, 0)

    def watch(self, spark: "SparkSession") -> None:
        if is_connect(spark):
            spark.registerProgressHandler(self._tell)
            self._counts = lambda: self._told
        else:
            self._counts = lambda: task_counts(spark)

    def where(self) -> Step:
        if self._counts is None:
            return Step(name="starting Spark")
        try:
            done, total = self._counts()
        except Exception:  # noqa: BLE001  # Spark may stop between two looks, and a progress line must never end the work
            return Step(name="working")
        return Step(name="working", done=done, total=total)

    def _tell(self, stages: Iterable[Any] | None, done: bool, **_: Any) -> None:
        running = [] if done else [stage for stage in stages or () if not stage.done]
        self._told = (
            sum(stage.num_completed_tasks for stage in running),
            sum(stage.num_tasks for stage in running),
        )
