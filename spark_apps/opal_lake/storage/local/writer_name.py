"""Names of temporary files: host, process, its start and a random part for each attempt.

By such a name, other writers see whether the file's writer is gone.
"""

import os
import re
import time
import uuid
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9.-]{1,80})~(?P<pid>[0-9]{1,12})~(?P<start>[0-9]*)~[0-9a-f]{32}"
)
_ENDED = ("Z", "X")  # states of a process that has ended, and whose parent has not waited for it


def writer_name() -> str:
    """Return a new name `<host>~<process>~<start>~<random>`."""
    return f"{_process_name(os.getpid())}~{uuid.uuid4().hex}"


def is_gone(name: str) -> bool:
    """Return whether a name's process is known to have ended: it ran on this host."""
    return _is_running(name) is False


def is_at_work(name: str) -> bool:
    """Return whether a name's process is known to run."""
    return _is_running(name) is True


def owner_text(name: str) -> str:
    match = _NAME.match(name)
    if match is None:
        return f"a writer that left '{name}'"
    return f"process {match['pid']} on {match['host']}"


def age_text(path: Path) -> str:
    """Return the age of a file for messages, by this machine's clock."""
    try:
        return f"{max(0, time.time() - path.stat().st_mtime):.0f} s"
    except OSError:
        return "a moment"


def _is_running(name: str) -> bool | None:
    """Return whether a name's process runs; None for other hosts and foreign names."""
    match = _NAME.match(name)
    if match is None or match["host"] != _host() or not match["start"]:
        return None
    # Another process may have the same number since: its start is different.
    return _start(int(match["pid"])) == match["start"]


@lru_cache(maxsize=4)
def _process_name(pid: int) -> str:
    return f"{_host()}~{pid}~{_start(pid) or ''}"


@lru_cache(maxsize=1)
def _host() -> str:
    """Return the name of this host, its boot, and its space of process numbers.

    A container has process numbers of its own.
    """
    node = re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)
    parts = [node[:60], _boot(), _process_space()]
    return "-".join(part for part in parts if part)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""


def _process_space() -> str:
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))[-10:]
    except OSError:
        return ""


def _start(pid: int) -> str | None:
    """Return the start of a process, in ticks since that of the machine.

    Return None if the process or /proc is missing.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name, in parentheses, may hold anything.
    _, _, after_name = text.rpartition(")")
    fields = after_name.split()
    state, start = fields[0], fields[19]
    return None if state in _ENDED else start
