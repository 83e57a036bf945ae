"""The life of a table under kills: each job is killed once, run again and checked.

All follows from a seed: the jobs, their rows, and where they are killed; but for kills from
outside, whose moment is a time.
"""

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from typing import Any

from opal_lake.errors import NotFoundError
from opal_lake.log.commit import Commit
from opal_lake.table import Table
from tests.crash.left_overs import left_overs
from tests.crash.site import Site
from tests.crash.statements import PLAIN, RUNS, rows_of, token_of
from tests.crash.worker import JOBS, Job, Kill, work
from tests.kit.check import check_table
from tests.soak.model import Ledger, difference
from tests.soak.rows import Batch, Columns, columns_from

KINDS = ("outside", "store", "file")
_TICKS_A_BATCH = 90
_TRIES = 4
_JOB_S = 120
_INGESTS = ("ingest", "inline", "retry")
# Jobs whose token applies once
_ONCE = (*_INGESTS, *RUNS)
_FIRST_JOBS = ("inline", "ingest", "metagen", "inline")
_WEIGHTS = {
    "ingest": 3,
    "inline": 3,
    "metagen": 2,
    "retry": 2,
    "discard": 1,
    "compact": 2,
    "major": 1,
    "zorder": 2,
    "retain": 2,
    "rebuild": 1,
    "update": 2,
    "delete": 1,
    "insert": 1,
    "merge": 3,
    PLAIN: 1,
}


def processes() -> ForkServerContext:
    """Return a context whose processes are forked from one that loaded all and opened nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.worker", "opal_lake.storage.s3"])
    return context


@dataclass(slots=True, kw_only=True)
class Tally:
    """The results of all stories of a run.

    `lengths` says how long each kind of job last took: seconds, calls to the store and to files.
    """

    kills: dict[tuple[str, str], int] = field(default_factory=dict)
    survived: int = 0
    reruns: int = 0
    lengths: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Story:
    """One table, from its first row to its last retention."""

    site: Site
    store: str
    name: str
    dice: random.Random
    tally: Tally
    context: ForkServerContext
    operations: Sequence[str] = tuple(JOBS)
    turn: int = 0
    table: Table = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.site.create()
        self.ledger = Ledger(log=self.table.log, statement_rows=self._rows_of_statement)

    def tell(self, jobs: int) -> None:
        """Run this many jobs that are killed, after some that are not."""
        self.begin()
        for _ in range(jobs):
            self.live_through(
                self.dice.choices(self.operations, [_WEIGHTS[name] for name in self.operations])[0]
            )
        self.end()

    def begin(self) -> None:
        """Run the first jobs, which nobody kills."""
        for operation in _FIRST_JOBS:
            self._through(self._job(operation))
        self._follow()

    def end(self) -> None:
        """Let old versions expire, and look for left-overs."""
        self._through(self._job("retain"))
        self._judge("after the last retention")
        if findings := left_overs(self.table, self.site.root):
            self._fail("left-overs", f"{len(findings)}: {findings[:4]}")

    def _through(self, job: Job) -> None:
        answer = self._run(job, None)
        if answer is None or "error" in answer:
            self._fail(job.operation, f"does not come through, though nobody killed it: {answer}")
            raise StoryEndedError

    def live_through(self, operation: str, kill: "Kill | Outside | None" = None) -> None:
        """Kill a job, run it again until it is done, and once more without a change.

        A statement without a token runs only once.
        """
        job, killed = self._job(operation), False
        kill = kill or self._kill(operation)
        where = f"{operation} killed by {kill}"
        answer = self._run(job, kill)
        if answer is None:
            killed = True
            self.tally.kills[self.store, operation] = (
                self.tally.kills.get((self.store, operation), 0) + 1
            )
        else:
            self.tally.survived += 1
        if killed and operation == PLAIN:
            self._judge(where)
            return
        for _ in range(_TRIES if killed else 0):
            self.tally.reruns += 1
            answer = self._run(job, None)
            if answer is not None and "error" not in answer:
                break
        if answer is None or "error" in answer:
            self._fail(where, f"does not come through: {answer}")
            raise StoryEndedError
        self._measure(operation, answer)
        if operation == PLAIN:
            self._judge(where)
            return
        version = self.table.snapshot_at().version
        again = self._run(job, None)
        if operation in _ONCE and (
            again is None or "error" in again or self.table.snapshot_at().version != version
        ):
            self._fail(where, f"a third run with the same token is not what it should be: {again}")
        self._judge(where)

    def _job(self, operation: str) -> Job:
        self.turn += 1
        batch = Batch(writer=1, turn=self.turn, tick=self.turn * _TICKS_A_BATCH)
        return Job(
            operation=operation,
            token=batch.token if operation in _INGESTS else token_of(operation, self.turn),
        )

    def _rows_of_statement(self, commit: Commit, shown: Columns) -> Columns | None:
        """Return the rows of a statement; one without a token is of the turn that it ended."""
        if commit.operation == "update" and commit.token is None:
            return rows_of(token_of(PLAIN, self.turn), shown)
        if commit.operation in RUNS and commit.token is not None:
            return rows_of(commit.token, shown)
        return None

    def _kill(self, operation: str) -> "Kill | Outside":
        """Draw a moment anywhere in the job, by the length of the last of its kind."""
        length = self.tally.lengths.get(
            (self.store, operation), {"seconds": 0.1, "store": 12, "file": 20}
        )
        kind = self.dice.choice(KINDS if self.site.root is not None else KINDS[:2])
        share, after = self.dice.random(), self.dice.random() < 0.5
        if kind == "outside":
            return Outside(seconds=share * length["seconds"])
        return Kill(kind=kind, at=1 + int(share * length[kind]), after=after)

    def _measure(self, operation: str, answer: dict[str, Any]) -> None:
        if not answer["repeated"]:
            self.tally.lengths[self.store, operation] = {
                name: answer[name] for name in ("seconds", "store", "file")
            }

    def _run(self, job: Job, kill: "Kill | Outside | None") -> dict[str, Any] | None:
        """Return the answer of the process; None if it was killed."""
        receiver, sender = self.context.Pipe(duplex=False)
        own_kill = kill if isinstance(kill, Kill) else None
        process = self.context.Process(
            target=work, args=(self.site, job, own_kill, sender), daemon=True
        )
        process.start()
        sender.close()
        try:
            if not receiver.poll(_JOB_S):
                return {"error": f"did not begin within {_JOB_S} s"}
            receiver.recv()
            if isinstance(kill, Outside):
                time.sleep(kill.seconds)
                process.kill()
            answer: dict[str, Any] | None = {"error": f"took more than {_JOB_S} s"}
            if receiver.poll(_JOB_S):
                answer = receiver.recv()
        except EOFError:
            answer = None
        finally:
            if told_is_late(process):
                process.kill()
            process.join()
            receiver.close()
        if answer is None and process.exitcode != -signal.SIGKILL:
            return {"error": f"ended with {process.exitcode} and without a word"}
        return answer

    def _judge(self, where: str) -> None:
        """Compare with the model at versions and event times, and check every invariant."""
        self._follow()
        root = self.table.snapshot_at().root
        versions = [
            root.version,
            *(self.dice.randint(root.oldest_version, root.version) for _ in range(2)),
        ]
        for version in dict.fromkeys(versions):
            floor = self.table.snapshot_at(version).root.floor
            times = [
                None,
                *(
                    self.ledger.model.parts[0]["at"][
                        [0, len(self.ledger.model.parts[0]["at"]) // 2]
                    ].tolist()
                ),
            ]
            for event_time in (
                moment for moment in times if moment is None or floor is None or moment >= floor
            ):
                actual = columns_from(self.table.read(version=version, event_time=event_time))
                if problem := difference(actual, self.ledger.model.visible(version, event_time)):
                    self._fail(where, f"version {version}, event time {event_time}: {problem}")
        if findings := check_table(self.table):
            self._fail(where, f"check finds {len(findings)}: {findings[:2]}")

    def _follow(self) -> None:
        """Follow the log; what retention took from it unseen brought no rows."""
        head = self.table.snapshot_at().version
        while self.ledger.version < head:
            try:
                self.ledger.follow(self.ledger.version + 1)
            except NotFoundError:
                self.ledger.version += 1

    def _fail(self, where: str, what: str) -> None:
        self.tally.failures.append(f"{self.name}, job {self.turn}, {where}: {what}")


class StoryEndedError(Exception):
    """A job does not come through, so that the story cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Killed by another process, so long after it began."""

    seconds: float


def told_is_late(process: Any) -> bool:
    """Return whether a process does not end on its own."""
    process.join(5)
    return bool(process.is_alive())
