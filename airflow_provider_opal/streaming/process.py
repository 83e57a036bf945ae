"""`opal stream` under Airflow: a process that a task or its trigger watches.

The watcher is a triggerer (of a deferred task) or a worker. Neither is reliable: a triggerer may be
killed, and its triggers then go to another one. A worker's pod ends with its task. So a process
never outlives its watcher. The alternative would be a daemon on the worker whose id is stored, and
a trigger that checks that the daemon lives. But with most executors the daemon's machine ends with
the task, and a trigger on another machine cannot see it. Nobody would end a daemon whose starter
died. Instead:

- The process is a child, and ends with its watcher, however the watcher ends
  (`opal_stream/supervise/process.py`).
- Only the table stores the progress: a successor goes on after the last commit, wherever it runs.
- If two processes of a stream run for a moment, one of them cannot commit, and no row is written
  twice. It fails and is started again after a pause, when the other process has ended.

After `restarts` failures in a row the task fails, with its own retries and alerts. A process that
does not end on request is killed, but only after the time that its last flush may wait for the
store. With `processes` the child is a supervisor, which watches the processes in the same way and
gets time to end them. Spark gets time to end its micro-batch.
"""

from airflow_provider_opal.streaming.job import StreamJob
from opal_stream.supervise.process import RESTARTS, Outcome, Say, Tuning, WatchedProcess
from opal_stream.timeouts import SPARK_DRAIN_S, drain_s, supervisor_drain_s

__all__ = ["RESTARTS", "Outcome", "StreamProcess"]


class StreamProcess(WatchedProcess):
    """The process of a stream's job, which is started again after a failure."""

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
    if job.arguments.get("processes"):
        return supervisor_drain_s()
    return drain_s()
