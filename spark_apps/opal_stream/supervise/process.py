"""`opal stream` as a process that somebody watches: started again when it fails, and never left alone.

The process is a child, and reads a pipe that the watcher holds. The watcher's end, however it comes, closes the pipe; where another child
holds it open, or the watcher hangs, the beats stop. Either way the process flushes what it has, and ends (`--watched`).

What fails is started again after 1, 2, 4 ... 60 s, unless it says that the same would fail again. After `restarts` failures without a
minute of work between them the watcher gives up. What does not end in time when it is asked to is killed: a last flush has the time that
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

from opal_lake.exit_codes import FINAL, MEANINGS, OK
from opal_stream.supervise.lines import lines_of
from opal_stream.timeouts import drain_s as usual_drain_s

WATCHED_S, BEAT_S = 60, 5
RESTARTS = 10
AGAIN_S = 1.0  # before one is started that has ended unasked
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _WORKED_S = 1.0, 60.0, 60.0
_KILLED_S = 5.0
_LAST_LINES, _SHOWN = 5, 200
COUNTS = ("records", "bad", "flushes", "missing")
_LONGEST_TOTALS = 1 << 24  # an interval names each partition that it has read
Say = Callable[[str], None]
Command = Callable[
    [], tuple[list[str], Mapping[str, str]]
]  # the words, and the environment beside them


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How it ended: `totals` are what it told, also before it failed; a failure is final if the same would fail again."""

    totals: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    is_final: bool = False
    code: int | None = None


class WatchedProcess:
    """One stream, and one process of it at a time; `reads` says what it does. `stop` lets it flush and end."""

    def __init__(
        self,
        command: Command,
        say: Say,
        *,
        reads: str,
        restarts: int = RESTARTS,
        run_for_s: float | None = None,
        drain_s: float | None = None,
    ) -> None:
        self._command = command
        self._say = say
        self._reads = reads
        self._restarts = restarts
        self._ends_s = None if run_for_s is None else time.monotonic() + run_for_s
        self._drain_s = usual_drain_s() if drain_s is None else drain_s
        self._process: asyncio.subprocess.Process | None = None
        self._began_s = 0.0
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.restarted = 0
        self.is_killed = False

    async def watch(self) -> Outcome:
        """Until it is done, or fails for good. Whatever ends this ends the process."""
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._stop_asked.set()
        in_a_row, told = 0, dict[str, Any]()
        while True:
            self._began_s = time.monotonic()
            outcome = await self._run_once()
            outcome.totals = told = _together(told, outcome.totals)
            if outcome.failure is None or outcome.is_final or self._stopping:
                return outcome
            in_a_row = 1 if time.monotonic() - self._began_s >= _WORKED_S else in_a_row + 1
            if in_a_row > self._restarts:
                return outcome
            pause_s = min(_FIRST_PAUSE_S * 2 ** (in_a_row - 1), _LONGEST_PAUSE_S)
            self._say(f"{outcome.failure}; started again in {pause_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), pause_s)
            if self._stopping:
                return outcome
            self.restarted += 1

    def stop(self, drain_s: float | None = None) -> None:
        """Also from a signal handler. A process that has not ended in its time is killed: what it has not flushed is read again."""
        self._stopping = True
        self._drain_s = self._drain_s if drain_s is None else drain_s
        if self._loop is not None:
            with suppress(RuntimeError):  # nobody watches any more
                self._loop.call_soon_threadsafe(self._stop_asked.set)
        self._signal(signal.SIGTERM)

    @property
    def up_s(self) -> float:
        """For how long the process has been there; 0 between two of them."""
        is_up = self._process is not None and self._process.returncode is None
        return time.monotonic() - self._began_s if is_up else 0.0

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _start(self) -> asyncio.subprocess.Process:
        words, environment = await asyncio.to_thread(self._command)
        pipe = asyncio.subprocess.PIPE
        # A session of its own: who ends this process by its group must not take the chance to flush away
        return await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )

    async def _run_once(self) -> Outcome:
        self.last_lines.clear()
        self.is_killed = False
        try:
            process = self._process = await self._start()
        except (
            OSError,
            RuntimeError,
        ) as error:  # no memory, no thread, no descriptor, no such file: later there may be
            return Outcome(failure=f"the stream of {self._reads} could not be started: {error}")
        self._say(f"process {process.pid} reads {self._reads}")
        beats, reading = (
            asyncio.ensure_future(self._beat(process)),
            asyncio.ensure_future(self._read(process)),
        )
        if self._stopping:  # said while it was being started
            self._signal(signal.SIGTERM)
        try:
            await self._wait(process, reading)
        finally:
            if not (
                reading.done() or self.is_killed
            ):  # this watcher is being ended; one that has no time is gone by then: it ends alone
                self._signal(signal.SIGTERM)
                await self._insist(process, reading)
            beats.cancel()
            reading.cancel()
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        return self._outcome(code, reading.result() if reading.done() else "")

    async def _read(self, process: asyncio.subprocess.Process) -> str:
        """All that it writes, until it has ended: one that nobody reads waits for a reader. Returns what it tells in the end."""
        _, told, _ = await asyncio.gather(
            self._listen(process), _last_line(process), process.wait()
        )
        return told

    async def _wait(
        self, process: asyncio.subprocess.Process, reading: "asyncio.Future[Any]"
    ) -> None:
        """Until it has ended. Once it is asked to it has its time; so has what it leaves behind, and what holds its pipes."""
        asked: asyncio.Future[Any] = asyncio.ensure_future(self._stop_asked.wait())
        try:
            while not (reading.done() or asked.done() or process.returncode is not None):
                await asyncio.wait(
                    {reading, asked}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            asked.cancel()
        if not reading.done():
            await self._insist(process, reading)

    async def _insist(
        self, process: asyncio.subprocess.Process, reading: "asyncio.Future[Any]"
    ) -> None:
        """Not even a kill ends what waits for a disk that is gone: that is left alone."""
        _, late = await asyncio.wait([reading], timeout=self._drain_s)
        if late:
            what = "it" if process.returncode is None else "what it started"
            self._say(f"{what} has not ended in {self._drain_s:g} s, and is killed")
            self.is_killed = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait([reading], timeout=_KILLED_S)

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
        async for line in lines_of(process.stderr):
            self.last_lines.append(line)
            self._say(line)

    def _outcome(self, code: int, told: str) -> Outcome:
        if code == OK:
            return Outcome(totals=self._totals(told), code=code)
        if (
            self._stopping and code == -signal.SIGTERM
        ):  # it was ended before it could listen, and so before it had read anything
            return Outcome(totals=_read(told), code=code)
        by_signal = f"it was ended by signal {-code}" + (
            f", {self._drain_s:g} s after it was asked to end" if self.is_killed else ""
        )
        what = MEANINGS.get(code, by_signal if code < 0 else f"exit code {code}")
        text = "\n".join([f"the stream of {self._reads} failed: {what}", *self.last_lines])
        return Outcome(totals=_read(told), failure=text, is_final=code in FINAL, code=code)

    def _totals(self, told: str) -> dict[str, Any]:
        """Its work is in the table, whatever it tells of it."""
        totals = _read(told)
        if told and not totals:
            self._say(f"it has ended, and its counts are not known: it told {told[:_SHOWN]!r}")
        return totals


def _read(told: str) -> dict[str, Any]:
    with suppress(ValueError):
        totals = json.loads(told or "{}")
        if isinstance(totals, dict):
            return totals
    return {}


def _together(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Of a process and of its successor."""
    sums = {
        name: int(before.get(name) or 0) + int(now.get(name) or 0)
        for name in COUNTS
        if name in before or name in now
    }
    versions = [
        version for version in (before.get("version"), now.get("version")) if version is not None
    ]
    return {**before, **now, **sums, **({"version": max(versions)} if versions else {})}


async def _last_line(process: asyncio.subprocess.Process) -> str:
    """In which it tells what it has done."""
    last = ""
    assert process.stdout is not None
    async for line in lines_of(process.stdout, _LONGEST_TOTALS):
        last = line or last
    return last
