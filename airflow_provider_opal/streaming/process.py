"""`opal stream` under Airflow: a process that a task or its trigger watches.

Who watches is a triggerer (a deferred task) or a worker (one that is not). Both do it in the same way, because neither can be relied on:
a triggerer is killed, and its triggers go to another; a worker's pod ends with its task. So a process never outlives its watcher. It would
be easy to let it: a daemon on the worker, whose id is kept, and a trigger that looks whether it lives. But with most executors the daemon's
machine goes with the task, a trigger may run on another machine and see nothing, and what is started by somebody who then dies belongs to
nobody. Instead:

- the process is a child, and ends with its watcher, however that ends (`opal_stream/supervise/process.py`);
- nothing but the table knows how far it is: a successor goes on behind the last commit, whoever starts it, and wherever;
- should two of them meet for a moment, the table's commits fence one off, and nothing is there twice. It fails, is started again after a
  pause, and then finds the other one gone.

After `restarts` failures in a row it is the task that fails, with its own retries and alerts. One that does not end when it is asked to is
killed, but not before its last flush has waited for the store as long as it may. Of several processes (`processes`) the child is their
supervisor, which watches them in the same way; it has time to end them first. Spark has time to end its micro-batch.
"""

from airflow_provider_opal.streaming.job import StreamJob
from opal_stream.supervise.process import RESTARTS, Outcome, Say, WatchedProcess
from opal_stream.timeouts import SPARK_DRAIN_S, drain_s, supervisor_drain_s

__all__ = ["RESTARTS", "Outcome", "StreamProcess"]


class StreamProcess(WatchedProcess):
    """The process of a job."""

    def __init__(
        self, job: StreamJob, say: Say, *, restarts: int = RESTARTS, run_for_s: float | None = None
    ) -> None:
        def command() -> tuple[list[str], dict[str, str]]:
            words, environment = job.command()
            say(f"starting {' '.join(words[1:])}")
            return words, environment

        reads = f"{', '.join(job.arguments['topics'])} into {job.table}"
        super().__init__(
            command, say, reads=reads, restarts=restarts, run_for_s=run_for_s, drain_s=drain_of(job)
        )


def drain_of(job: StreamJob) -> float:
    """How long it may take to end, in seconds."""
    if job.arguments.get("spark"):
        return SPARK_DRAIN_S
    return supervisor_drain_s() if job.arguments.get("processes") else drain_s()
