"""`opal stream` as a process that somebody watches: started again when it fails, and never left alone.

Who watches is a triggerer (a deferred task) or a worker (one that is not). Both do it in the same way, because neither can be relied on:
a triggerer is killed, and its triggers go to another; a worker's pod ends with its task. So a process never outlives its watcher. It would
be easy to let it: a daemon on the worker, whose id is kept, and a trigger that looks whether it lives. But with most executors the daemon's
machine goes with the task, a trigger may run on another machine and see nothing, and what is started by somebody who then dies belongs to
nobody. Instead:

- the process is a child, and reads a pipe that the watcher holds. The watcher's end, however it comes, closes the pipe; where another child
  holds it open, or the watcher hangs, the beats stop. Either way the process flushes what it has, and ends (`--watched`);
- nothing but the table knows how far it is: a successor goes on behind the last commit, whoever starts it, and wherever;
- should two of them meet for a moment, the table's commits fence one off, and nothing is there twice. It fails, is started again after a
  pause, and then finds the other one gone.

What fails is started again after 1, 2, 4 ... 60 s, unless it says that the same would fail again. After `restarts` failures without a
minute of work between them it is the task that fails, with its own retries and alerts.
"""

import asyncio
import json
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_opal.streaming.job import BEAT_S, StreamJob
from opal_lake.job.exit_codes import FINAL, MEANINGS, OK

RESTARTS = 10
DRAIN_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _WORKED_S = 1.0, 60.0, 60.0
_LAST_LINES = 5
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How it ended: `totals` are what a process that was done has told; a failure is final if the same would fail again."""

    totals: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    is_final: bool = False


class StreamProcess:
    """One stream, and one process of it at a time. `stop` lets it flush and end."""

    def __init__(self, job: StreamJob, say: Say, *, restarts: int = RESTARTS, run_for_s: float | None = None) -> None:
        self._job = job
        self._say = say
        self._restarts = restarts
        self._ends_s = None if run_for_s is None else time.monotonic() + run_for_s
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    async def watch(self) -> Outcome:
        """Until it is done, or fails for good. Whatever ends this ends the process."""
        failures = 0
        while True:
            began_s = time.monotonic()
            try:
                outcome = await self._run_once()
            finally:
                await self._end()
            if outcome.failure is None or outcome.is_final or self._stopping:
                return outcome
            failures = 1 if time.monotonic() - began_s >= _WORKED_S else failures + 1
            if failures > self._restarts:
                return outcome
            pause_s = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
            self._say(f"{outcome.failure}; started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            if self._stopping:
                return outcome

    def stop(self) -> None:
        """Also from a signal handler."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def _run_once(self) -> Outcome:
        words, environment = await asyncio.to_thread(self._job.command)
        self._say(f"starting {' '.join(words[1:])}")
        pipe = asyncio.subprocess.PIPE
        # A session of its own: who ends this process by its group must not take the chance to flush away
        process = self._process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        self._say(f"process {process.pid} reads {', '.join(self._job.topics)} into {self._job.table}")
        assert process.stdout is not None
        beats = asyncio.ensure_future(self._beat(process))
        errors = asyncio.ensure_future(self._listen(process))
        try:
            told = await process.stdout.read()
            code = await process.wait()
            await errors
        finally:
            for task in (beats, errors):
                task.cancel()
        return self._outcome(code, told.decode(errors="replace"))

    async def _beat(self, process: asyncio.subprocess.Process) -> None:
        """That somebody watches; and the end of its time."""
        assert process.stdin is not None
        with suppress(ConnectionError):
            while True:
                process.stdin.write(b"\n")
                await process.stdin.drain()
                left_s = BEAT_S if self._ends_s is None else self._ends_s - time.monotonic()
                if left_s <= 0 and not self._stopping:
                    self._say("its time is over: it flushes, and ends")
                    self.stop()
                await asyncio.sleep(BEAT_S if self._stopping else max(0.0, min(BEAT_S, left_s)))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            self._say(text)

    async def _end(self) -> None:
        """Ask, wait, and insist. A watcher that has no time for that is gone by then, and the process ends by itself."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), DRAIN_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _outcome(self, code: int, told: str) -> Outcome:
        if code == OK:
            lines = told.strip().splitlines()
            return Outcome(totals=json.loads(lines[-1]) if lines else {})
        if self._stopping and code == -signal.SIGTERM:  # it was ended before it could listen, and so before it had read anything
            return Outcome()
        what = MEANINGS.get(code, f"it was ended by signal {-code}" if code < 0 else f"exit code {code}")
        text = "\n".join([f"the stream of {self._job.table} failed: {what}", *self._last_lines])
        return Outcome(failure=text, is_final=code in FINAL)
