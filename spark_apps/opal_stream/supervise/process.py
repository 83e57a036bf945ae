"""`opal stream` as a watched process: restarted when it fails, and never left alone.

The process is a child, and reads a pipe that the watcher holds. The watcher's end, however it
comes, closes the pipe; where another child holds it open, or the watcher hangs, the beats stop.
Either way the process flushes what it has, and ends (`--watched`).

A failed process is started again after 1, 2, 4 ... 60 s, unless its exit code says that the same
would fail again. After `restarts` restarts without a minute of work between them the watcher gives
up. A process that is asked to end and does not in time is killed: its last flush has the time that
it may wait for a store (`timeouts.py`).

Needs no Kafka client: Airflow's side watches in the same way.
"""

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from opal_lake.exit_codes import FINAL, MEANINGS, OK, STOPPED
from opal_stream.supervise.lines import read_lines
from opal_stream.timeouts import drain_s as usual_drain_s

WATCHED_S = 60  # after so long without a beat a process ends
RESTARTS = 10
RESTART_PAUSE_S = 1.0  # before one is started that has ended unasked
_WORKED_S = 60.0  # a process that ran so long has worked: its failures are counted from 1 again
_KILLED_S = 5.0
_LAST_LINES, _SHOWN = 5, 200
COUNTS = ("records", "bad", "flushes", "missing")
_LONGEST_TOTALS = 1 << 24  # bytes: an interval names each partition that it has read
Say = Callable[[str], None]
# Returns the words of a command line, and the environment that goes with them
Command = Callable[[], tuple[list[str], Mapping[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The pauses between restarts, which double, and the pause between beats."""

    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    beat_s: float = 5.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The end of a process.

    `totals` are its last report, also before a failure. A failure is final if the same would fail
    again.
    """

    totals: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    is_final: bool = False
    code: int | None = None


class WatchedProcess:
    """One stream, and one process of it at a time.

    `reads` names what it reads. `stop` lets it flush and end.
    """

    def __init__(
        self,
        command: Command,
        say: Say,
        *,
        reads: str,
        restarts: int = RESTARTS,
        run_for_s: float | None = None,
        drain_s: float | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._command = command
        self._say = say
        self._reads = reads
        self._max_restarts = restarts
        self._ends_s = None if run_for_s is None else time.monotonic() + run_for_s
        self._drain_s = usual_drain_s() if drain_s is None else drain_s
        self._tuning = tuning or Tuning()
        self._process: asyncio.subprocess.Process | None = None
        self._began_s = 0.0
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.restarted = 0
        self.is_killed = False

    async def watch(self) -> Outcome:
        """Run until the process is done, or fails finally; then return its outcome.

        Whatever ends this ends the process.
        """
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._stop_asked.set()
        failures = 0
        totals: dict[str, Any] = {}
        while True:
            self._began_s = time.monotonic()
            outcome = await self._run_once()
            totals = _summed(totals, outcome.totals)
            outcome.totals = totals
            if outcome.failure is None or outcome.is_final or self._stopping:
                return outcome
            has_worked = time.monotonic() - self._began_s >= _WORKED_S
            if has_worked:
                failures = 0
            failures += 1
            if failures > self._max_restarts:
                return outcome
            tuning = self._tuning
            pause_s = min(tuning.first_pause_s * 2 ** (failures - 1), tuning.longest_pause_s)
            self._say(f"{outcome.failure}; started again in {pause_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), pause_s)
            if self._stopping:
                return outcome
            self.restarted += 1

    def stop(self, drain_s: float | None = None) -> None:
        """Ask the process to end; kill it if it has not within `drain_s`.

        May be called from a signal handler. What a killed process has not flushed is read again.
        """
        self._stopping = True
        if drain_s is not None:
            self._drain_s = drain_s
        if self._loop is not None:
            with suppress(RuntimeError):  # nobody watches any more
                self._loop.call_soon_threadsafe(self._stop_asked.set)
        self._signal(signal.SIGTERM)

    @property
    def up_s(self) -> float:
        """The seconds that the process has been running; 0 between two processes."""
        is_up = self._process is not None and self._process.returncode is None
        if is_up:
            return time.monotonic() - self._began_s
        return 0.0

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _start(self) -> asyncio.subprocess.Process:
        words, environment = await asyncio.to_thread(self._command)
        pipe = asyncio.subprocess.PIPE
        # A session of its own: a signal to this process's group must not end it before it flushes
        return await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )

    async def _run_once(self) -> Outcome:
        self.last_lines.clear()
        self.is_killed = False
        try:
            process = self._process = await self._start()
        except (OSError, RuntimeError) as error:
            # Without memory, a thread, a descriptor or the file itself: later there may be one
            return Outcome(failure=f"the stream of {self._reads} could not be started: {error}")
        self._say(f"process {process.pid} reads {self._reads}")
        beats = asyncio.ensure_future(self._beat(process))
        reading = asyncio.ensure_future(self._read(process))
        if self._stopping:  # asked while the process was being started
            self._signal(signal.SIGTERM)
        try:
            await self._wait(process, reading)
        finally:
            # This watcher is being ended. If its own process is killed before it gets here, the
            # child ends alone, as its pipe closes
            if not (reading.done() or self.is_killed):
                self._signal(signal.SIGTERM)
                await self._kill_if_late(process, reading)
            beats.cancel()
            reading.cancel()
        code = -signal.SIGKILL if process.returncode is None else process.returncode
        return self._outcome(code, reading.result() if reading.done() else "")

    async def _read(self, process: asyncio.subprocess.Process) -> str:
        """Read all that a process writes until it ends; return its last line.

        A process that nobody reads would wait for a reader.
        """
        _, report, _ = await asyncio.gather(
            self._listen(process), _last_line(process), process.wait()
        )
        return report

    async def _wait(
        self, process: asyncio.subprocess.Process, reading: "asyncio.Future[Any]"
    ) -> None:
        """Wait until a process has ended, and kill it if it is late.

        Its time begins when it is asked to end, or has ended and left children that hold its pipes.
        """
        asked: asyncio.Future[Any] = asyncio.ensure_future(self._stop_asked.wait())
        try:
            while not (reading.done() or asked.done() or process.returncode is not None):
                await asyncio.wait(
                    {reading, asked},
                    timeout=self._tuning.beat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            asked.cancel()
        if not reading.done():
            await self._kill_if_late(process, reading)

    async def _kill_if_late(
        self, process: asyncio.subprocess.Process, reading: "asyncio.Future[Any]"
    ) -> None:
        """Kill a process that does not end in time.

        Not even a kill ends what waits for a disk that is gone: that process is left alone.
        """
        _, late = await asyncio.wait([reading], timeout=self._drain_s)
        if late:
            subject = "it" if process.returncode is None else "what it started"
            self._say(f"{subject} has not ended in {self._drain_s:g} s, and is killed")
            self.is_killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait([reading], timeout=_KILLED_S)

    async def _beat(self, process: asyncio.subprocess.Process) -> None:
        """Write the beats of a watcher, and stop the process when its time is over."""
        assert process.stdin is not None
        beat_s = self._tuning.beat_s
        with suppress(ConnectionError):
            while True:
                process.stdin.write(b"\n")
                await process.stdin.drain()
                left_s = beat_s
                if self._ends_s is not None:
                    left_s = self._ends_s - time.monotonic()
                if left_s <= 0 and not self._stopping:
                    self._say("its time is over: it flushes, and ends")
                    self.stop()
                if self._stopping:
                    await asyncio.sleep(beat_s)
                else:
                    await asyncio.sleep(max(0.0, min(beat_s, left_s)))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in read_lines(process.stderr):
            self.last_lines.append(line)
            self._say(line)

    def _outcome(self, code: int, report: str) -> Outcome:
        if code == OK:
            return Outcome(totals=self._totals(report), code=code)
        if self._stopping and code == -signal.SIGTERM:
            # It ended before it handled signals, and so before it had read anything
            return Outcome(totals=_parsed(report), code=code)
        if code < 0:
            reason = f"it was ended by signal {-code}"
            if self.is_killed:
                reason += f", {self._drain_s:g} s after it was asked to end"
        elif code == STOPPED:
            # Its meaning asks a person to run it again: here the supervisor does
            reason = f"exit code {code}"
        else:
            reason = MEANINGS.get(code, f"exit code {code}")
        text = "\n".join([f"the stream of {self._reads} failed: {reason}", *self.last_lines])
        return Outcome(totals=_parsed(report), failure=text, is_final=code in FINAL, code=code)

    def _totals(self, report: str) -> dict[str, Any]:
        """Return the totals of a process that succeeded.

        Its work is in the table also if its report cannot be read.
        """
        totals = _parsed(report)
        if report and not totals:
            self._say(f"it has ended, and its counts are unknown: it wrote {report[:_SHOWN]!r}")
        return totals


def _parsed(report: str) -> dict[str, Any]:
    """Return the totals of a report; none of what is not a JSON object."""
    with suppress(ValueError):
        totals = json.loads(report or "{}")
        if isinstance(totals, dict):
            return totals
    return {}


def _summed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of a process and of its predecessors together."""
    together = {**before, **now}
    for name in COUNTS:
        if name in together:
            together[name] = int(before.get(name) or 0) + int(now.get(name) or 0)
    versions = [totals.get("version") for totals in (before, now)]
    known = [version for version in versions if version is not None]
    if known:
        together["version"] = max(known)
    return together


async def _last_line(process: asyncio.subprocess.Process) -> str:
    """Return the last line of the output, the report of the process."""
    last = ""
    assert process.stdout is not None
    async for line in read_lines(process.stdout, _LONGEST_TOTALS):
        last = line or last
    return last
