"""An executor whose tasks others get in the way of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opal_lake.engine.executor import Ordering, T, Task, W
from opal_lake.engine.in_process import InProcess


def nobody() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(InProcess):
    """An executor that runs others' work before and after the tasks of a rewrite."""

    before: Callable[[], object] = nobody
    after: Callable[[], object] = nobody

    def run(self, task: Callable[[W, str], T], works: Sequence[W]) -> list[T]:
        self.before()
        results = InProcess.run(self, task, works)
        self.after()
        return results

    def in_order(self, ordering: Ordering, task: Task[T]) -> list[list[T]]:
        self.before()
        results = InProcess.in_order(self, ordering, task)
        self.after()
        return results
