"""Names of files in the making: they tell of host, process, its start and one try, so that others can tell whether their writer is gone."""

import os
import re
import time
import uuid
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9.-]{1,80})~(?P<pid>[0-9]{1,12})~(?P<start>[0-9]*)~[0-9a-f]{32}"
)
_ENDED = ("Z", "X")  # killed, and its parent has not asked for it yet


def writer_name() -> str:
    """`<host>~<process>~<start>~<random>`, each time another."""
    return f"{_process_name(os.getpid())}~{uuid.uuid4().hex}"


def is_gone(name: str) -> bool:
    """Whether the process is known to have ended: it was one of this host, and is none any more."""
    return _is_running(name) is False


def is_at_work(name: str) -> bool:
    """Whether the process is known to run."""
    return _is_running(name) is True


def owner_text(name: str) -> str:
    match = _NAME.match(name)
    return f"process {match['pid']} on {match['host']}" if match else f"a writer that left '{name}'"


def age_text(path: Path) -> str:
    """By this machine's clock, for people."""
    try:
        return f"{max(0, time.time() - path.stat().st_mtime):.0f} s"
    except OSError:
        return "a moment"


def _is_running(name: str) -> bool | None:
    """None if it is unknown: on another host, or with a name that no writer gives."""
    match = _NAME.match(name)
    if match is None or match["host"] != _host():
        return None
    return _start(int(match["pid"])) == match["start"] if match["start"] else None


@lru_cache(maxsize=4)
def _process_name(pid: int) -> str:
    return f"{_host()}~{pid}~{_start(pid) or ''}"


@lru_cache(maxsize=1)
def _host() -> str:
    """As it was started, and as its processes are numbered: a container counts its own."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)[:60] + "".join(
        f"-{part}" for part in (_boot(), _numbering()) if part
    )


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""


def _numbering() -> str:
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))[-10:]
    except OSError:
        return ""


def _start(pid: int) -> str | None:
    """When a process of this machine started, in ticks since that did; None when there is none, and where no /proc tells."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the program's name may hold anything
    return None if fields[0] in _ENDED else fields[19]
