"""A real process under its watcher: its output, failures to start, and its end."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from opal_stream.supervise.process import Outcome, Tuning, WatchedProcess

TOTALS = "print('{\"records\": 3}', flush=True)"


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', file=sys.stderr, flush=True)"


def watched(program: str, say: Callable[[str], None], **more: Any) -> WatchedProcess:
    words = [sys.executable, "-S", "-c", f"import os, signal, sys, time\n{program}"]
    return WatchedProcess(lambda: (words, {}), say, reads="orders", **{"restarts": 0, **more})


def watch(program: str, **more: Any) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    process = watched(program, said.append, **more)
    return asyncio.run(asyncio.wait_for(process.watch(), 20)), said[1:]


def test_a_line_of_any_length_is_read_and_cut() -> None:
    outcome, said = watch(f"sys.stderr.write('first\\n' + 'x' * 1_000_000 + '\\nlast'); {TOTALS}")
    assert (outcome.failure, outcome.totals) == (None, {"records": 3})
    assert [said[0], said[2]] == ["first", "last"]
    assert said[1] == f"{'x' * 8192} ... (991,808 bytes more)"


def test_a_long_report_after_other_lines_is_read() -> None:
    outcome, _ = watch(
        "print('a library says hello'); print('{\"records\": 3, \"open\": [\"' + 'x' * "
        "200_000 + '\"]}')"
    )
    assert (outcome.totals["records"], len(outcome.totals["open"][0])) == (3, 200_000)


def test_reports_before_a_failure_are_added_to_those_of_the_successor(
    tmp_path: Path,
) -> None:
    tells = (
        'print(\'{"table": "t", "records": %d, "version": %d}\' % (records, version), flush=True)'
    )
    first = (
        f"records, version = 2, 7\n{tells}\nrecords, version = 3, "
        f"8\n{tells}\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    second = f"records, version = 5, 4\n{tells}"
    marker = str(tmp_path / "began")
    program = (
        f"if not os.path.exists({marker!r}):\n open({marker!r}, 'w').close()\n "
        f"exec({first!r})\nexec({second!r})"
    )
    outcome, _ = watch(program, restarts=1)
    assert (outcome.failure, outcome.totals) == (None, {"table": "t", "records": 8, "version": 8})
    (tmp_path / "began").unlink()
    outcome, _ = watch(program)
    assert (outcome.code, outcome.totals) == (-9, {"table": "t", "records": 3, "version": 8})


def test_a_process_with_an_unreadable_report_succeeds() -> None:
    outcome, said = watch("print('bye')")
    assert (outcome.failure, outcome.totals, said) == (
        None,
        {},
        ["it has ended, and its counts are unknown: it wrote 'bye'"],
    )


def test_a_process_is_read_while_it_drains() -> None:
    """A process without a reader would wait for one, and be killed."""
    said: list[str] = []
    # Written without sys.stderr: the signal may come while that still prints "ready"
    talks = (
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(2, b'y\\n' * 500_000), os._exit(0)))"
    )

    async def scene() -> None:
        process = watched(
            f"{talks}\nprint('ready', file=sys.stderr, flush=True)\ntime.sleep(60)", said.append
        )
        running = asyncio.ensure_future(process.watch())
        while "ready" not in process.last_lines:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running], timeout=20)
        assert running.cancelled()

    asyncio.run(scene())
    assert said.count("y") == 500_000


def test_a_process_that_hangs_at_its_end_is_killed_with_its_children(
    tmp_path: Path,
) -> None:
    starts = (
        f"import subprocess\nopen({str(tmp_path / 'pid')!r}, "
        "'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    )
    outcome, said = watch(f"{starts}\n{DEAF}\ntime.sleep(60)", run_for_s=0.5, drain_s=0.5)
    assert "it was ended by signal 9, 0.5 s after it was asked to end" in str(outcome.failure)
    assert not outcome.is_final
    assert said[-2:] == [
        "its time is over: it flushes, and ends",
        "it has not ended in 0.5 s, and is killed",
    ]
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_watcher_that_ends_kills_a_process_that_hangs() -> None:
    async def scene() -> int:
        process = watched(f"{DEAF}\ntime.sleep(60)", lambda _: None, drain_s=0.2)
        running = asyncio.ensure_future(process.watch())
        while "ready" not in process.last_lines:
            await asyncio.sleep(0.01)
        assert process._process is not None
        running.cancel()
        await asyncio.wait([running], timeout=20)
        assert running.cancelled()
        return process._process.pid

    assert not is_running(asyncio.run(scene()))


def test_children_that_outlive_their_process_are_not_awaited_forever() -> None:
    outcome, said = watch(
        "import subprocess\nsubprocess.Popen(['sleep', '60']); sys.exit('opal: no')",
        drain_s=0.3,
        tuning=Tuning(beat_s=0.1),
    )
    assert (outcome.code, str(outcome.failure).splitlines()[-1]) == (1, "opal: no")
    assert said == ["opal: no", "what it started has not ended in 0.3 s, and is killed"]


def test_a_process_stopped_before_it_is_watched_ends_immediately() -> None:
    process = watched(f"{DEAF}\ntime.sleep(60)", lambda _: None, drain_s=0.2)
    process.stop()
    began_s = time.monotonic()
    asyncio.run(asyncio.wait_for(process.watch(), 20))
    assert time.monotonic() - began_s < 10


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
