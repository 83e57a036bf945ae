"""`opal stream` under Airflow: a process that a task or its trigger watches.

The watcher is a triggerer (of a deferred task) or a worker. Both work in the same way, because
neither is reliable: a triggerer is killed, and its triggers go to another; a worker's pod ends with
its task. So a process never outlives its watcher. The alternative would be a daemon on the worker,
whose id is stored, and a trigger that checks that it lives. But with most executors the daemon's
machine ends with the task, and a trigger on another machine sees nothing. A process whose starter
died would belong to nobody. Instead:

- the process is a child, and ends with its watcher, however that ends
  (`opal_stream/supervise/process.py`);
- only the table stores the progress: a successor goes on after the last commit, wherever it runs;
- should two of them meet for a moment, the table's commits fence one off, and no row is written
  twice. That one fails, is started again after a pause, and then the other has ended.

After `restarts` failures in a row the task fails, with its own retries and alerts. A process that
does not end when it is asked to is killed, but not before its last flush has waited for the store
as long as it may. Of several processes (`processes`) the child is their supervisor, which watches
them in the same way; it has time to end them first. Spark has time to end its micro-batch.
"""

from airflow_provider_opal.streaming.job import StreamJob
from opal_stream.supervise.process import RESTARTS, Outcome, Say, Tuning, WatchedProcess
from opal_stream.timeouts import SPARK_DRAIN_S, drain_s, supervisor_drain_s

__all__ = ["RESTARTS", "Outcome", "StreamProcess"]


class StreamProcess(WatchedProcess):
    """The process of a job."""

    def __init__(
        self,
        job: StreamJob,
        say: Say,
        *,
        restarts: int = RESTARTS,
        run_for_s: float | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        def command() -> tuple[list[str], dict[str, str]]:
            words, environment = job.command()
            say(f"starting {' '.join(words[1:])}")
            return words, environment

        reads = f"{', '.join(job.arguments['topics'])} into {job.table}"
        super().__init__(
            command,
            say,
            reads=reads,
            restarts=restarts,
            run_for_s=run_for_s,
            drain_s=drain_of(job),
            tuning=tuning,
        )


def drain_of(job: StreamJob) -> float:
    """Return how long a process may take to end, in seconds."""
    if job.arguments.get("spark"):
        return SPARK_DRAIN_S
    return supervisor_drain_s() if job.arguments.get("processes") else drain_s()
