"""A job in its own process, which is killed by itself or from outside."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

from opal_lake.data.z_value import z_fields
from opal_lake.engine.in_process import InProcess
from opal_lake.engine.results import run_once
from opal_lake.errors import NotFoundError
from opal_lake.result import JobResult
from opal_lake.storage.left_overs import KeepsLeftOvers, LeftOver
from opal_lake.storage.protocol import Storage, StoredObject
from opal_lake.table import Table
from tests.crash import statements
from tests.crash.site import Site
from tests.opal_lake.clustering import zorder
from tests.opal_lake.compacting import compact
from tests.soak.rows import TICK, arrow_of, batch_of, columns_of

TARGET_BYTES = 24 << 10
LOOK_BACK = 400 * TICK
_FILE_CALLS = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.scandir"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that a scheduler would start again with the same token."""

    operation: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill before or after the `at`-th call (from 1) to the store or its folder."""

    kind: str
    at: int
    after: bool = False


def _ingest(table: Table, token: str, metadata: str) -> JobResult:
    return table.ingest(*arrow_of(columns_of(batch_of(token))), token=token, metadata=metadata)


def _pending_tokens(table: Table) -> list[str]:
    pending = table.snapshot_at().pending_segments.values()
    return [*dict.fromkeys(segment.token for segment in pending if segment.token is not None)]


def _retry(table: Table, token: str) -> JobResult:
    """Ingest rows that replace the oldest pending ingest."""
    rows = arrow_of(columns_of(batch_of(token)))
    earlier = [pending for pending in _pending_tokens(table) if pending != token][:1]
    return table.ingest(*rows, token=token, replaces=earlier)


def _discard(table: Table, token: str) -> JobResult:
    """Withdraw what the oldest ingest that is pending brought, if there is one."""
    oldest = (*_pending_tokens(table), "none")[0]
    try:
        return table.discard(token=oldest, job_token=token)
    except NotFoundError:
        return JobResult(operation="discard", table=table.uri)


def _rewrite(table: Table, token: str, options: dict[str, Any]) -> JobResult:
    return run_once(table.log, "compact", token, lambda: compact(table, **options))


def _zorder(table: Table, token: str) -> JobResult:
    fields = z_fields(table.snapshot_at().spec, ["x", "y"])
    return run_once(
        table.log, "zorder", token, lambda: zorder(table, fields, target_bytes=TARGET_BYTES)
    )


JOBS: dict[str, Callable[[Table, str], JobResult]] = {
    "ingest": lambda table, token: _ingest(table, token, "batch"),
    "inline": lambda table, token: _ingest(table, token, "inline"),
    "retry": _retry,
    "discard": _discard,
    "metagen": lambda table, token: table.metagen(token=token),
    "compact": lambda table, token: _rewrite(table, token, {"target_bytes": TARGET_BYTES}),
    "major": lambda table, token: _rewrite(
        table, token, {"look_back": LOOK_BACK, "target_bytes": TARGET_BYTES}
    ),
    "zorder": _zorder,
    "retain": lambda table, token: table.retain(window="0s", grace="0s", token=token),
    "rebuild": lambda table, token: replace(table, executor=InProcess(tasks=4)).rebuild_key_store(
        token=token
    ),
    **dict.fromkeys(statements.STATEMENTS, statements.run),
}


@dataclass(slots=True, kw_only=True)
class Reaper:
    """Counts calls, and ends this process without a word at the one that is meant."""

    kill: Kill | None
    calls: dict[str, int] = field(default_factory=lambda: {"store": 0, "file": 0})
    lock: Lock = field(default_factory=Lock)

    def count(self, kind: str) -> bool:
        """Return whether to die after this call."""
        with self.lock:
            self.calls[kind] += 1
            number = self.calls[kind]
        kill = self.kill
        is_meant = kill is not None and kill.kind == kind and kill.at == number
        if is_meant and kill is not None and not kill.after:
            die()
        return is_meant

    def watch_files(self, root: Path) -> None:
        """Count the calls to the file system as Python is about to make them."""

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if (
                event in _FILE_CALLS
                and str(arguments[0]).startswith(str(root))
                and self.count("file")
            ):
                die()

        sys.addaudithook(hook)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapedStore:
    """A store whose calls are counted; a deletion of n paths is n calls."""

    inner: Storage
    reaper: Reaper

    @property
    def uri(self) -> str:
        return self.inner.uri

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._counted(self.inner.get, path, start, length)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        return self._counted(self.inner.put_if_absent, path, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        return self._counted(self.inner.list, prefix, start_after)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._counted(self.inner.delete, [path])

    def now_us(self) -> int | None:
        return self._counted(self.inner.now_us)

    def _counted(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call; it may be the last one, also if it raises an error."""
        dies = self.reaper.count("store")
        try:
            return call(*arguments)
        finally:
            if dies:
                die()


class ReapedFolder(ReapedStore):
    """One that can have left-overs, which retention takes."""

    def left_overs(self) -> Iterator[LeftOver]:
        assert isinstance(self.inner, KeepsLeftOvers)
        return self._counted(self.inner.left_overs)

    def remove_left_overs(self, paths: Iterable[str]) -> None:
        assert isinstance(self.inner, KeepsLeftOvers)
        self._counted(self.inner.remove_left_overs, paths)


def work(site: Site, job: Job, kill: Kill | None, answers: Connection) -> None:
    """Run a job as the main function of a process, and report its start and result."""
    reaper, inner = Reaper(kill=kill), site.store()
    store = (ReapedFolder if isinstance(inner, KeepsLeftOvers) else ReapedStore)(
        inner=inner, reaper=reaper
    )
    if site.root is not None:
        reaper.watch_files(site.root)
    answers.send("begun")
    began = time.monotonic()
    try:
        result = JOBS[job.operation](site.table(store), job.token)
        answers.send(
            {
                "version": result.version,
                "repeated": result.repeated,
                "seconds": time.monotonic() - began,
                **reaper.calls,
            }
        )
    except Exception as error:  # noqa: BLE001  # the story says what it thinks of it
        answers.send({"error": f"{type(error).__name__}: {error}"})
