"""Writers in separate processes, which kill or stop themselves at any call to the file system.

Their outcomes are lines of JSON. It is a process of its own, because it forks:
python -m tests.opal_lake.storage.killed_writers <what> <folder> <hard links: true or false>
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from opal_lake.storage.local import publish as local_publish
from opal_lake.storage.local.store import LocalStorage

CALLS = frozenset(
    {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.link"}
)
WRITERS, NAMES = 10, 100


def child(
    job: Callable[[], object], at: int | None = None, how: signal.Signals = signal.SIGKILL
) -> int:
    """Fork a process that does the job, and sends itself a signal before a call."""
    number = os.fork()
    if number:
        return number
    made = 0

    def hook(event: str, _: object) -> None:
        nonlocal made
        if event in CALLS:
            made += 1
            if made == at:
                os.kill(os.getpid(), how)

    status = 1
    try:
        if at is not None:
            sys.addaudithook(hook)
        status = 10 + int(bool(job()))
    finally:
        os._exit(status)
    return 0


def ended(number: int) -> int:
    """10 or 11 for a put that answered False or True; a signal, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def body(writer: str) -> bytes:
    return (writer * 3000).encode()


def killed(store: LocalStorage) -> None:
    """One dies at its n-th call, then another one writes the same name."""
    # Pauses before a turn is taken over, without the time that a disk under load takes.
    waits: list[float] = []
    local_publish.time.sleep = waits.append  # type: ignore[attr-defined]
    for at in range(1, 40):
        path, dead = f"log/{at}", f"d{at}-"
        status = ended(
            child(lambda path=path, dead=dead: store.put_if_absent(path, body(dead)), at)
        )  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
        was_there = (store.root / path).exists()
        waits.clear()
        created = store.put_if_absent(path, body("next"))
        content = store.get(path)
        report(at=at, status=status, was_there=was_there, created=created, waits=len(waits))
        assert content == body("next" if created else dead), (at, len(content))
        if status >= 0:
            return
    raise AssertionError("the writer never came to its end")


def stopped(store: LocalStorage) -> None:
    """One writer sleeps from its n-th call on while another writes the same name.

    Then the first one goes on.
    """
    local_publish._HELD_TOO_LONG_S = 0.05
    for at in range(1, 40):
        path = f"log/{at}"
        sleeper = child(
            lambda path=path: store.put_if_absent(path, body("sleeper")), at, signal.SIGSTOP
        )  # type: ignore[misc]  # as above
        _, status = os.waitpid(sleeper, os.WUNTRACED)
        slept = os.WIFSTOPPED(status)
        awake = store.put_if_absent(path, body("awake"))
        before = store.get(path)
        if slept:
            os.kill(sleeper, signal.SIGCONT)
            status = os.waitpid(sleeper, 0)[1]
        woken = os.waitstatus_to_exitcode(status)
        report(at=at, slept=slept, awake=awake, woken=woken)
        assert store.get(path) == before == body("awake" if awake else "sleeper")
        if not slept:
            return
    raise AssertionError("the writer never came to its end")


def takers(store: LocalStorage) -> None:
    """One writer pauses in its turn, a second one while it takes that turn over.

    A third one arrives, then the first two resume.
    """
    # A writer looks twice, and takes over.
    local_publish._HELD_TOO_LONG_S = 0.05
    local_publish._PAUSE_S = 0.06
    hidden = store.root / local_publish.HIDDEN
    for at in range(1, 40):
        path = f"log/{at}"

        def put(writer: str, path: str = path) -> bool:
            return store.put_if_absent(path, body(writer))

        first = asleep(store, path, hidden)
        second = child(lambda: put("second"), at, signal.SIGSTOP)  # it is done within the round
        _, status = os.waitpid(second, os.WUNTRACED)
        slept = os.WIFSTOPPED(status)
        third = put("third")
        woken = {}
        for name, number in sorted(
            {"first": first, "second": second}.items(), reverse=bool(at % 2)
        ):
            if name == "first" or slept:
                os.kill(number, signal.SIGCONT)
                woken[name] = ended(number)
        outcome = {**woken, "third": 10 + third} | (
            {} if slept else {"second": os.waitstatus_to_exitcode(status)}
        )
        report(at=at, slept=slept, **outcome)
        (winner,) = [name for name, answer in outcome.items() if answer == 11]
        assert store.get(path) == body(winner)
        assert sorted(outcome.values()) == [10, 10, 11]
        if not slept:
            return
    raise AssertionError("the second writer never came to its end")


def asleep(store: LocalStorage, path: str, hidden: Path) -> int:
    """Start a writer that has its turn, and sleeps."""
    for at in range(1, 40):
        writer = child(lambda: store.put_if_absent(path, body("first")), at, signal.SIGSTOP)
        os.waitpid(writer, os.WUNTRACED)
        if any(any(turn.iterdir()) for turn in hidden.glob("turn-*")):
            return writer
        os.kill(writer, signal.SIGKILL)
        ended(writer)
        assert not (store.root / path).exists()
    raise AssertionError("no writer ever had its turn")


def crowd(store: LocalStorage) -> None:
    """Ten writers write the same hundred names; some are killed, others pause."""
    local_publish._HELD_TOO_LONG_S = 0.02
    folder = store.root.parent / "claims"
    folder.mkdir()

    def work(writer: int) -> bool:
        for name in range(NAMES):
            if store.put_if_absent(f"log/{name}", body(f"{writer}-")):
                (folder / f"{name}-{writer}").touch()
        return True

    dice = random.Random(7)
    running = [child(partial(work, writer)) for writer in range(WRITERS)]
    doomed = running[:3]
    for _ in range(60):
        time.sleep(0.01)
        victim = dice.choice(running[3:])
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.04)
        os.kill(victim, signal.SIGCONT)
        if doomed and dice.random() < 0.2:
            os.kill(doomed.pop(), signal.SIGKILL)
    statuses = [ended(number) for number in running]
    claims: dict[str, list[int]] = {}
    for claim in folder.iterdir():
        name, _, writer = claim.name.partition("-")
        claims.setdefault(name, []).append(int(writer))
    for name in range(NAMES):
        content, winners = store.get(f"log/{name}"), claims.get(str(name), [])
        wrote = int(content.partition(b"-")[0])
        assert content == body(f"{wrote}-"), name
        # A killed writer may have written without a claim.
        assert winners == [wrote] or (not winners and statuses[wrote] < 0), (
            name,
            wrote,
            winners,
            statuses,
        )
    report(statuses=statuses, puts=WRITERS * NAMES)


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    what, folder, links = sys.argv[1:]
    store = LocalStorage.open(str(Path(folder) / "table"), {"hard_links": links})
    {"killed": killed, "stopped": stopped, "takers": takers, "crowd": crowd}[what](store)


if __name__ == "__main__":
    main()
