"""The progress of long work, on standard error.

On a terminal it is a line that repaints itself; in a log, a line now and then.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from opal_lake.cli.render import Style, duration_text, output_width
from opal_lake.errors import count_text

_REPAINT_S, _LOG_S = 0.2, 5.0
_SILENT_LOOKS = 6  # in a log, between two equal lines
_BAR_CELLS = 24
_MIN_BAR_CELLS = 5  # a shorter bar shows nothing
_GAPS = 7  # cells between the parts of a painted line, and one to stay off the edge
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state of the work: its present step, and how much of it is done.

    `total` is 0 if that cannot be counted.
    """

    name: str
    done: int = 0
    total: int = 0
    noun: str = "task"


class LatestStep:
    """The progress that a job in this process reported last."""

    def __init__(self, name_of: Callable[[str], str] = lambda noun: "working") -> None:
        self.name_of = name_of
        self._step = Step(name="working")

    def at_step(self, noun: str, done: int, total: int) -> None:
        """Store a report: how many of how many are done."""
        self._step = Step(name=self.name_of(noun), done=done, total=total, noun=noun)

    def where(self) -> Step:
        """Return the latest step, for a progress line."""
        return self._step


class ProgressLine:
    """A line that shows the step until the block ends.

    Nothing is left of it on a terminal.
    """

    def __init__(
        self,
        title: str,
        where: Callable[[], Step],
        stream: TextIO | None = None,
        *,
        interval_s: float | None = None,
    ) -> None:
        self.title = title
        self.where = where
        self.stream = stream or sys.stderr
        self.painted = self.stream.isatty()
        default_interval_s = _REPAINT_S if self.painted else _LOG_S
        self._interval_s = default_interval_s if interval_s is None else interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_reporting, name="opal-progress", daemon=True
        )
        self._started_s = time.monotonic()

    def __enter__(self) -> "ProgressLine":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self.painted:
            self._write(_CLEAR)

    def _keep_reporting(self) -> None:
        shown, silent_looks = "", 0
        while not self._ended.wait(self._interval_s):
            passed = duration_text(time.monotonic() - self._started_s)
            step = self.where()
            if self.painted:
                self._write(_CLEAR + painted(self.title, step, passed, self.stream))
                continue
            text = logged(self.title, step)
            if text != shown or silent_looks >= _SILENT_LOOKS:
                self._write(f"{text}, {passed}\n")
                shown, silent_looks = text, 0
            silent_looks += 1

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def logged(title: str, step: Step) -> str:
    """Return the line of a log, as `ingest: 12 of 40 tasks`."""
    return f"{title}: {_counted(step)}"


def painted(title: str, step: Step, passed: str, stream: TextIO) -> str:
    """Return the line of a terminal, as `ingest  ████░░░░  12 of 40 tasks  0:35`.

    It is not wider than the terminal.
    """
    style = Style.of(stream)
    counted = _counted(step)
    bar = ""
    if step.total:
        width = output_width(stream) or 80
        room = width - len(title) - len(counted) - len(passed) - _GAPS
        if room >= _MIN_BAR_CELLS:
            bar = _bar(step.done / step.total, min(_BAR_CELLS, room), stream) + "  "
    return f"{style.strong(title)}  {bar}{counted}  {style.faint(passed)}"


def _counted(step: Step) -> str:
    if not step.total:
        return step.name
    return f"{step.done} of {count_text(step.total, step.noun)}"


def _bar(part: float, cells: int, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or ""
    full, empty = ("█", "░") if "utf" in encoding.lower() else ("#", ".")
    filled = round(part * cells)
    return full * filled + empty * (cells - filled)
