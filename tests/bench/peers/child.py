"""A system's process as the orchestrator sees it.

It gets one question at a time, watched for memory, ended with all of its own children.
"""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from tests.bench.peers.environments import environment_for
from tests.bench.peers.memory import Memory, watched

START_S = 900  # the first start downloads jars
GRACE_S = 15
_TAIL_LINES = 12


class ChildError(Exception):
    """The process died, did not answer in time, or says that the work failed."""


class Child:
    """One system's process.

    Memory is the high-water of its whole tree since `forget_memory`.
    """

    def __init__(self, name: str, python: Path, folder: Path, settings: tuple[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.memory = Memory()
        self._log = folder / "stderr.log"
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        command = [str(python), "-m", "tests.bench.peers.worker", name, str(folder), *settings]
        with self._log.open("w", encoding="utf-8") as log:
            # In a session of its own, so that Ctrl-C comes here alone, and `stop` ends what there
            # is in order
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=environment_for(python, folder),
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def wait_until_ready(self) -> str:
        """Wait for the process to be ready; return the version of Spark that it runs."""
        return str(self._next(START_S)["spark"])

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._process.poll() is not None or self._process.stdin is None:
            raise ChildError(self._obituary())
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ChildError(self._obituary()) from None
        with watched(self._process.pid, self.memory):
            return self._next(timeout_s)

    def forget_memory(self) -> None:
        self.memory.forget()

    def resident_bytes(self) -> int:
        return Memory().sample(self._tree())

    def stop(self) -> None:
        """Ask it to end, then end what is left of it and of its children."""
        tree = self._tree()
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self._end(tree)

    def kill(self) -> None:
        self._end(self._tree())

    def _end(self, tree: list[psutil.Process]) -> None:
        for process in tree:
            with contextlib.suppress(psutil.Error):
                # psutil looks at the start time first: a number that was assigned again is not hit
                process.kill()
        psutil.wait_procs(tree, timeout=GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self._process.pid)
            return [*leader.children(recursive=True), leader]
        return []

    def _listen(self, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError):  # closed while reading
            for line in stream:
                self._answers.put(line)
        self._answers.put(None)

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildError(
                f"{self.name} did not answer within {timeout_s:g} s; its last words:\n{self.tail()}"
            ) from None
        if line is None:
            raise ChildError(self._obituary())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildError(
                f"{self.name} failed: {answer['error']}\nits last words:\n{self.tail()}"
            )
        return answer

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        status = self._process.returncode
        return f"{self.name} ended with exit status {status}; its last words:\n{self.tail()}"

    def tail(self) -> str:
        lines = (
            self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            if self._log.exists()
            else []
        )
        return "\n".join(f"    {line[:300]}" for line in lines[-_TAIL_LINES:])

    def reason(self) -> str:
        """Return in one line why it could not start.

        It is the line about a jar that was not found, or else the last line with an error.
        """
        lines = [
            line.strip()
            for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.strip()
        ]
        for sign in ("unresolved dependency", "Error", "Exception", ""):
            matching = [line for line in lines if sign in line]
            if matching:
                return matching[0 if sign.startswith("unresolved") else -1][:300]
        return "it said nothing"
