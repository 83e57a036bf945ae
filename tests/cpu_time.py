"""The processor time of a piece of work, for tests of how work grows."""

import gc
import time
from collections.abc import Callable


def least_cpu_s(work: Callable[[], object], *, times: int = 3) -> float:
    """Return the seconds of processor time of the fastest of several runs.

    Other tests leave many objects in this process: a collection of them between two readings of
    the clock would count as the work's own time. So the collector pauses.
    """
    return min(_cpu_s(work) for _ in range(times))


def _cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        began_s = time.process_time()
        work()
        return time.process_time() - began_s
    finally:
        gc.enable()
