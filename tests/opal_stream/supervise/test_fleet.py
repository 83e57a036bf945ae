"""Real processes in place of streams: which may run at once, and what their ends mean."""

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opal_lake.errors import FormatError
from opal_lake.exit_codes import BUG, DAMAGE, INPUT, RETRY, exit_code
from opal_stream.errors import StreamError
from opal_stream.kafka.topics import Partition
from opal_stream.supervise.child import failure_of
from opal_stream.supervise.fleet import Fleet
from opal_stream.supervise.process import Outcome, Tuning

PARTS = [Partition(topic="orders", number=number) for number in range(5)]
HOLDS = """
import os, signal, sys, time
folder, parts = sys.argv[1], sys.argv[2].split(",")
def end(*_):
    for part in parts:
        os.unlink(f"{folder}/{part}")
    print('{"records": 2, "version": 7}')
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(f"{folder}/starts", "a").write(" ".join(parts) + "\\n")
for part in parts:
    open(f"{folder}/{part}", "x").close()
while True:
    time.sleep(60)
"""


def share(*numbers: int) -> frozenset[Partition]:
    return frozenset(PARTS[number] for number in numbers)


def holders(folder: Path) -> Fleet:
    """Each holds a file for each partition, and fails if it is there already."""

    def words(_: int, parts: Collection[Partition]) -> list[str]:
        return [
            sys.executable,
            "-S",
            "-c",
            HOLDS,
            str(folder),
            ",".join(str(part.number) for part in sorted(parts)),
        ]

    return Fleet(words, restarts=0)


async def until_held(folder: Path, shares: Collection[Collection[Partition]]) -> None:
    expected = {str(part.number) for entry in shares for part in entry}
    for _ in range(1000):
        if {path.name for path in folder.iterdir()} - {"starts"} == expected:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(
        f"{sorted(path.name for path in folder.iterdir())} instead of {sorted(expected)}"
    )


QUICK = Tuning(first_pause_s=0.01)


def _shares_of(owners: list[int]) -> list[frozenset[Partition]]:
    shares = []
    for process in range(3):
        owned = [number for number, owner in enumerate(owners) if owner == process]
        shares.append(share(*owned))
    return shares


SHARES = st.lists(st.integers(0, 2), min_size=len(PARTS), max_size=len(PARTS)).map(_shares_of)


@pytest.mark.slow(60)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SHARES, min_size=2, max_size=3))
def test_no_partition_is_ever_read_twice_and_each_always_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, plans: list[list[frozenset[Partition]]]
) -> None:
    folder = tmp_path_factory.mktemp("held")

    async def scene() -> Fleet:
        fleet = holders(folder)
        for plan in plans:
            await fleet.take(plan)
            await until_held(folder, plan)
            assert fleet.collect() == []  # nobody found a partition taken
            assert {number: child.share for number, child in fleet.children.items()} == {
                n: entry for n, entry in enumerate(plan) if entry
            }
        await fleet.end(fleet.children.values())
        return fleet

    fleet = asyncio.run(scene())
    started = len((folder / "starts").read_text().splitlines())
    assert (fleet.done.counts["records"], fleet.done.version, fleet.children) == (
        2 * started,
        7,
        {},
    )
    assert [*folder.iterdir()] == [folder / "starts"]


def test_a_process_with_an_unchanged_share_keeps_running(tmp_path: Path) -> None:
    async def scene() -> None:
        fleet = holders(tmp_path)
        await fleet.take([share(0, 1), share(2), share(3)])
        await until_held(tmp_path, fleet.shares)
        before = {number: child.watching for number, child in fleet.children.items()}
        await fleet.take([share(0), share(2), share(1, 3)])
        await until_held(tmp_path, fleet.shares)
        assert [fleet.children[number].watching is before[number] for number in range(3)] == [
            False,
            True,
            False,
        ]
        await fleet.take([share(0, 1, 3), share(2)])  # one process fewer
        await until_held(tmp_path, fleet.shares)
        assert fleet.children[1].watching is before[1]
        assert sorted(fleet.children) == [0, 1]
        await fleet.end(fleet.children.values())

    asyncio.run(scene())


def test_a_process_that_does_not_end_is_killed() -> None:
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, "
        "file=sys.stderr, flush=True); time.sleep(60)"
    )

    async def scene() -> list[Outcome]:
        fleet = Fleet(lambda *_: [sys.executable, "-S", "-c", deaf], drain_s=0.2)
        await fleet.take([share(0)])
        while not fleet.children[0].process.last_lines:
            await asyncio.sleep(0.01)
        return await fleet.end(fleet.children.values())

    [outcome] = asyncio.run(scene())
    assert "ended by signal 9" in str(outcome.failure)


def test_a_process_that_cannot_be_started_is_tried_again_while_others_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuning = Tuning(first_pause_s=0.05, longest_pause_s=0.05)
    caplog.set_level("INFO", "opal_stream.supervise")
    reading, late = tmp_path / "held", tmp_path / "python"
    reading.mkdir()

    def words(number: int, parts: Collection[Partition]) -> list[str]:
        names = ",".join(str(part.number) for part in sorted(parts))
        return [
            str(late) if number == 0 else sys.executable,
            "-S",
            "-c",
            HOLDS,
            str(reading),
            names,
        ]

    async def scene() -> None:
        fleet = Fleet(words, restarts=1000, tuning=tuning)
        await fleet.take([share(0), share(1)])
        while fleet.restarts[0] < 2:
            await asyncio.sleep(0.01)
        await until_held(reading, [share(1)])
        late.symlink_to(sys.executable)
        await until_held(reading, [share(0), share(1)])
        assert (fleet.collect(), fleet.restarts[1]) == ([], 0)
        outcomes = await fleet.end(fleet.children.values())
        assert [outcome.failure for outcome in outcomes] == [None, None]

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert (
        "process 0: the stream of orders/0 could not be started: [Errno 2] No such file "
        f"or directory: '{late}'; started again"
    ) in caplog.text


def test_a_process_that_cannot_be_started_fails_with_the_reason() -> None:
    async def scene() -> Exception:
        words = [sys.executable, "-c", "x" * 10_000_000]
        fleet = Fleet(lambda *_: words, restarts=1, tuning=QUICK)
        await fleet.take([share(0)])
        await asyncio.wait([fleet.children[0].watching])
        [(child, outcome)] = fleet.collect()
        return failure_of(child, outcome)

    error = asyncio.run(scene())
    assert "could not be started: [Errno 7] Argument list too long" in str(error)
    assert str(error).endswith(
        "[process 0 (orders/0)]: started again 1 times, and it failed each time"
    )
    assert exit_code(error) == RETRY


@pytest.mark.parametrize("code", [INPUT, DAMAGE, BUG, RETRY])
def test_the_supervisor_reports_the_error_of_its_process(
    code: int,
) -> None:
    fails = (
        "import sys; print('opal stream: a hint', 'opal: orders/0@5: no JSON', sep=chr(10), "
        f"file=sys.stderr); sys.exit({code})"
    )

    async def scene() -> Exception:
        words = [sys.executable, "-S", "-c", fails]
        fleet = Fleet(lambda *_: words, restarts=2, tuning=QUICK)
        await fleet.take([share(0, 1)])
        await asyncio.wait([fleet.children[0].watching])
        [(child, outcome)] = fleet.collect()
        assert fleet.restarts == {0: 0 if outcome.is_final else 2}
        return failure_of(child, outcome)

    error = asyncio.run(scene())
    assert str(error).startswith("orders/0@5: no JSON [process 0 (orders/0, orders/1)]")
    assert exit_code(error) == code
    assert ("started again 2 times" in str(error)) == (code == RETRY)
    assert isinstance(error, {INPUT: StreamError, DAMAGE: FormatError}.get(code, Exception))
