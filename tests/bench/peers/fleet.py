"""All systems' processes.

Each is asked in turn while the others wait, so that all of them meet the same machine.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.bench.peers.catalog import STAGER, SYSTEMS
from tests.bench.peers.child import Child, ChildError
from tests.bench.peers.environments import python_of

STAGER_MEMORY = "1g"
_SPARE_BYTES = 1 << 30  # next to the heap of the one that works: its workers, and pages of files
_LOW_DISK_BYTES = 10 << 30
_UNITS = {"m": 1 << 20, "g": 1 << 30}

Answers = dict[str, dict[str, Any]]


def bytes_of(memory: str) -> int:
    """2g -> 2147483648."""
    unit = _UNITS.get(memory[-1:].lower())
    if unit is None or not memory[:-1].isdigit():
        raise ValueError(f"{memory!r} is not an amount of memory; write 3g or 2500m")
    return int(memory[:-1]) * unit


@dataclass(kw_only=True)
class Fleet:
    """The systems that run.

    One that fails is removed: `failed` keeps its error, `unavailable` why it could not start.
    """

    folder: Path
    memory: str
    cores: int
    timeout_s: float
    children: dict[str, Child] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)
    stager: Child | None = None
    _turn: int = 0

    def start(self, names: list[str]) -> None:
        """One after the other, as they share the cache of downloaded jars."""
        self.stager = self._started(STAGER, STAGER_MEMORY)
        for name in names:
            print(f"starting {name}", flush=True)
            try:
                self.children[name] = self._started(name, self.memory)
            except (ChildError, OSError) as error:
                self.unavailable[name] = str(error).splitlines()[0]
                print(
                    f"{name}: not available here, the rest runs without it: "
                    f"{self.unavailable[name]}",
                    flush=True,
                )

    def _started(self, name: str, memory: str) -> Child:
        child = Child(
            name, python_of(SYSTEMS.get(name)), self.folder / name, (memory, str(self.cores))
        )
        try:
            self.spark[name] = child.wait_until_ready()
        except ChildError:
            child.kill()
            raise ChildError(child.reason()) from None
        except BaseException:
            child.kill()
            raise
        return child

    def stop(self) -> None:
        everyone = [*self.children.values(), *([self.stager] if self.stager else [])]
        self.children, self.stager = {}, None
        for child in everyone:
            child.stop()

    def kill(self) -> None:
        for child in (*self.children.values(), *([self.stager] if self.stager else [])):
            child.kill()

    def stage(self, batch: Mapping[str, Any], path: Path) -> int:
        """Write a batch, and return its bytes."""
        if self.stager is None:
            raise ChildError("the process that writes the batches is not running")
        self.stager.ask({"do": "stage", "batch": batch, "path": str(path)}, self.timeout_s)
        return sum(part.stat().st_size for part in path.glob("part-*"))

    def stage_keys(self, rows: int, first: int, count: int, path: Path) -> None:
        """Write a file of keys."""
        if self.stager is None:
            raise ChildError("the process that writes the batches is not running")
        command = {"rows": rows, "first": first, "count": count, "path": str(path)}
        self.stager.ask({"do": "stage-keys", **command}, self.timeout_s)

    def in_turns(self) -> Iterator[str]:
        """Ask every system once; the order changes from time to time."""
        names = list(self.children)
        self._turn += 1
        for number in range(len(names)):
            name = names[(number + self._turn) % len(names)]
            if name in self.children:
                yield name

    def ask(self, name: str, **command: Any) -> dict[str, Any] | None:
        """Return the answer of one system; None when it failed and is out of the run."""
        self._make_room(name)
        try:
            return self.children[name].ask(command, self.timeout_s)
        except ChildError as error:
            self.failed[name] = str(error)
            print(f"{name}: out of the run: {error}", flush=True)
            self.children.pop(name).kill()
            return None

    def ask_all(self, **command: Any) -> Answers:
        return self._asked(self.in_turns(), command)

    def ask_rewriters(self, **command: Any) -> Answers:
        """Ask the systems that can compact and cluster their tables here."""
        return self._asked((name for name in self.in_turns() if SYSTEMS[name].rewrites), command)

    def _asked(self, names: Iterable[str], command: Mapping[str, Any]) -> Answers:
        answers = {name: self.ask(name, **command) for name in names}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def rest(self) -> None:
        self.ask_all(do="rest")

    def forget_memory(self) -> None:
        for child in self.children.values():
            child.forget_memory()

    def _make_room(self, name: str) -> None:
        """Have waiting systems release unused memory and disk, the largest first.

        This comes before the machine runs short of either.
        """
        child = self.children[name]
        idle = (
            [
                (other.resident_bytes(), other)
                for other in self.children.values()
                if other is not child
            ]
            if self._is_short(child)
            else []
        )
        for _, other in sorted(idle, key=lambda pair: -pair[0]):
            if not self._is_short(child):
                return
            with contextlib.suppress(ChildError):  # a dead one is reported at its own turn
                other.ask({"do": "rest"}, self.timeout_s)

    def _is_short(self, child: Child) -> bool:
        missing = max(0, bytes_of(self.memory) - child.resident_bytes()) + _SPARE_BYTES
        return (
            psutil.virtual_memory().available < missing
            or shutil.disk_usage(self.folder).free < _LOW_DISK_BYTES
        )
