"""How far long work is, on standard error: a line that repaints itself on a terminal, a line now and then in a log."""

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
_SILENT_LOOKS = 6  # of a log, between two lines that say the same
_BAR_CELLS = 24
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where the work stands: what it does, and how much of it is done if that can be counted."""

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
        """Take a report: of how many there are, how many are done."""
        self._step = Step(name=self.name_of(noun), done=done, total=total, noun=noun)

    def where(self) -> Step:
        """Return the step, as a progress line asks for it."""
        return self._step


class ProgressLine:
    """Asks `where` for the step until the block ends; leaves nothing behind on a terminal."""

    def __init__(self, title: str, where: Callable[[], Step], stream: TextIO | None = None) -> None:
        self.title = title
        self.where = where
        self.stream = stream or sys.stderr
        self.painted = self.stream.isatty()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_saying, name="opal-progress", daemon=True)
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

    def _keep_saying(self) -> None:
        shown, silent = "", 0
        while not self._ended.wait(_REPAINT_S if self.painted else _LOG_S):
            passed = duration_text(time.monotonic() - self._started_s)
            step = self.where()
            if self.painted:
                self._write(_CLEAR + painted(self.title, step, passed, self.stream))
            elif (text := logged(self.title, step)) != shown or silent >= _SILENT_LOOKS:
                self._write(f"{text}, {passed}\n")
                shown, silent = text, 0
            silent += 1

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def logged(title: str, step: Step) -> str:
    """`ingest: 12 of 40 tasks`."""
    return f"{title}: {_counted(step)}"


def painted(title: str, step: Step, passed: str, stream: TextIO) -> str:
    """`ingest  ████████░░░░░░░░  12 of 40 tasks  0:35`, no wider than the terminal."""
    style = Style.of(stream)
    counted = _counted(step)
    if not step.total:
        return f"{style.strong(title)}  {counted}  {style.faint(passed)}"
    room = (output_width(stream) or 80) - len(title) - len(counted) - len(passed) - 7
    bar = _bar(step.done / step.total, min(_BAR_CELLS, room), stream) + "  " if room >= 5 else ""
    return f"{style.strong(title)}  {bar}{counted}  {style.faint(passed)}"


def _counted(step: Step) -> str:
    return f"{step.done} of {count_text(step.total, step.noun)}" if step.total else step.name


def _bar(part: float, cells: int, stream: TextIO) -> str:
    full, empty = (
        ("█", "░") if "utf" in (getattr(stream, "encoding", None) or "").lower() else ("#", ".")
    )
    filled = round(part * cells)
    return full * filled + empty * (cells - filled)
