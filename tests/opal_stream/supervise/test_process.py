"""One real process under its watcher: what it may write, how it may fail to start, and how it is made to end."""

import asyncio
import sys
from collections.abc import Callable

from opal_stream.supervise.process import Outcome, WatchedProcess

TOTALS = "print('{\"records\": 3}', flush=True)"


def watched(program: str, say: Callable[[str], None], **more: float) -> WatchedProcess:
    words = [sys.executable, "-S", "-c", f"import os, signal, sys, time\n{program}"]
    return WatchedProcess(lambda: (words, {}), say, reads="orders", **{"restarts": 0, **more})  # type: ignore[arg-type]


def watch(program: str, **more: float) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    process = watched(program, said.append, **more)
    return asyncio.run(asyncio.wait_for(process.watch(), 20)), said[1:]


def test_a_line_of_any_length_is_read_and_cut() -> None:
    outcome, said = watch(f"sys.stderr.write('first\\n' + 'x' * 1_000_000 + '\\nlast'); {TOTALS}")
    assert (outcome.failure, outcome.totals) == (None, {"records": 3})
    assert [said[0], said[2]] == ["first", "last"]
    assert said[1] == f"{'x' * 8192} ... (991,808 bytes more)"


def test_what_a_process_tells_may_be_long_and_have_lines_before_it() -> None:
    outcome, _ = watch("print('a library says hello'); print('{\"records\": 3, \"open\": [\"' + 'x' * 200_000 + '\"]}')")
    assert (outcome.totals["records"], len(outcome.totals["open"][0])) == (3, 200_000)


def test_one_that_tells_nothing_readable_is_done_all_the_same() -> None:
    outcome, said = watch("print('bye')")
    assert (outcome.failure, outcome.totals, said) == (None, {}, ["it has ended, and its counts are not known: it told 'bye'"])


def test_a_process_is_read_while_it_drains() -> None:
    """Else it would wait for a reader, and be killed."""
    said: list[str] = []
    talks = "signal.signal(signal.SIGTERM, lambda *_: (sys.stderr.write('y\\n' * 500_000), os._exit(0)))"

    async def scene() -> None:
        process = watched(f"{talks}\nprint('ready', file=sys.stderr, flush=True)\ntime.sleep(60)", said.append)
        running = asyncio.ensure_future(process.watch())
        while "ready" not in process.last_lines:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running], timeout=20)
        assert running.cancelled()

    asyncio.run(scene())
    assert said.count("y") == 500_000
