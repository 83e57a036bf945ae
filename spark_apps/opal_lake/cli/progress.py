"""The progress of long work, on standard error.

A terminal shows one line, which is repainted. A log gets a new line after each change.
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
_MAX_SILENT_LOOKS = 6  # after so many looks without a change a log repeats its line
_BAR_CELLS = 24
_MIN_BAR_CELLS = 5  # a shorter bar shows nothing
_GAPS = 7  # cells between the parts of a painted line, and one to stay off the edge
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The present step of the work, and how much of the step is done.

    `done` and `total` are numbers of `noun`. `total` is 0 if it is not known.
    """

    name: str
    done: int = 0
    total: int = 0
    noun: str = "task"


class LatestStep:
    """The latest step that a job in this process reported."""

    def __init__(self, name_of: Callable[[str], str] = lambda noun: "working") -> None:
        self.name_of = name_of
        self._step = Step(name="working")

    def at_step(self, noun: str, done: int, total: int) -> None:
        """Store a report of the job: `done` of `total` things are done."""
        self._step = Step(name=self.name_of(noun), done=done, total=total, noun=noun)

    def where(self) -> Step:
        """Return the latest step, for a progress line."""
        return self._step


class ProgressLine:
    """A line that shows the present step until the `with` block ends.

    A terminal then no longer shows the line. `where` returns the present step.
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
            if text != shown or silent_looks >= _MAX_SILENT_LOOKS:
                self._write(f"{text}, {passed}\n")
                shown, silent_looks = text, 0
            silent_looks += 1

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def logged(title: str, step: Step) -> str:
    """Return a line for a log, such as `ingest: 12 of 40 tasks`."""
    return f"{title}: {_counted(step)}"


def painted(title: str, step: Step, passed: str, stream: TextIO) -> str:
    """Return a line for a terminal, such as `ingest  ████░░░░  12 of 40 tasks  0:35`.

    The bar is left out if the terminal is too narrow.
    """
    style = Style.of(stream)
    counted = _counted(step)
    bar = ""
    if step.total:
        width = output_width(stream) or 80
        free_cells = width - len(title) - len(counted) - len(passed) - _GAPS
        if free_cells >= _MIN_BAR_CELLS:
            share = step.done / step.total
            bar = _bar(share, min(_BAR_CELLS, free_cells), stream) + "  "
    return f"{style.strong(title)}  {bar}{counted}  {style.faint(passed)}"


def _counted(step: Step) -> str:
    if not step.total:
        return step.name
    return f"{step.done} of {count_text(step.total, step.noun)}"


def _bar(share: float, cells: int, stream: TextIO) -> str:
    """Return a bar of some cells, of which a share is filled."""
    encoding = getattr(stream, "encoding", None) or ""
    full, empty = "#", "."
    if "utf" in encoding.lower():
        full, empty = "█", "░"
    filled = round(share * cells)
    return full * filled + empty * (cells - filled)
