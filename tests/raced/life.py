"""The life of a table: machines with wrong clocks run inside each other's calls."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opal_lake.definition.schema import DELETED
from opal_lake.definition.table_spec import plan_spec
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import (
    ClockError,
    CommitUnknownError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from opal_lake.log.commit_log import CommitLog
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.clocks import SkewedClock, TrueClock
from tests.kit.failing_store import Crash
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.kit.strategies import POOLS, Shape, put_of
from tests.raced.judge import Attempt, Judge
from tests.raced.store import Plan, RacingStore

MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
MACHINES = 4
# Within the bound of a clock (a minute), beyond it, and absurd
SKEWS_US = (0, 0, 0, 5_000_000, -5_000_000, -DAY_US, -3650 * DAY_US, 2 * DAY_US)
MAX_DEPTH = 3
KEYS = (None, "2026-11-01", "2026-11-02", "2026-11-03")
BUSINESS_SNAPSHOTS = ("2026-11-01", "2026-11-02", "2026-11-03")
DONE, FAILED, UNKNOWN = "done", "failed", "unknown"

# What a caller may meet that has done nothing wrong: others changed the table meanwhile, or what
# was asked for does not fit the table, which the judge decides. Every other error is a fault.
REFUSALS = (NotFoundError, InvalidInputError)
FAIR = (ConflictError, ClockError, *REFUSALS)
DRIFT = ("more 0", "more 1", "more 2")


@dataclass(kw_only=True)
class Job:
    """An operation with its arguments, which any machine may run, and run again."""

    verb: str
    token: str
    arguments: dict[str, Any] = field(default_factory=dict)
    serials: tuple[int, ...] = ()
    drift: tuple[str, ...] = ()
    outcome: str | None = None


@dataclass(kw_only=True)
class Machine:
    """A process with its own clock, store connection and caches, which die with it."""

    number: int
    store: RacingStore
    table: Table


class Life:
    """A table from its first version to its last check; a seed makes the same life."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.has_business_snapshots = self.random.random() < 0.4
        self.authors: dict[str, Plan] = {}
        self.clock = TrueClock()
        self.storage = MemoryStorage(f"life-{seed}", self.clock)
        self.ids = CountingIds()
        self.shape = self._shape()
        spec = plan_spec(self.shape.arrow_schema(), self.shape.layout())
        create_on(self.storage, spec, SkewedClock(self.clock), self.ids)
        own = self._table(self.storage, SkewedClock(self.clock))
        self.judge = Judge(own, self.shape, self.authors)
        self.machines = [self._machine(number) for number in range(MACHINES)]
        self.busy: set[int] = set()
        self.jobs: list[Job] = []
        self.unfinished: list[Job] = []
        self.happened = Counter[str]()
        self.savepoints = 0

    def run(self, steps: int) -> int:
        """Live through so many steps; return how many comparisons with the model were made."""
        for step in range(steps):
            print(f"step {step}")  # the last one is beside a failure
            self.step(depth=0)
            self.judge.see(self.jobs)
            if step % 6 == 5:
                self.judge.compare(self.random)
            self.clock.pass_us(self.random.choice((1, 1000, MINUTE_US, DAY_US)))
        self._finish()
        return self.judge.comparisons

    def step(self, depth: int) -> None:
        """Run one job, new or left by a machine that failed, on a machine that is free."""
        free = [machine for machine in self.machines if machine.number not in self.busy]
        if not free:
            return
        machine = self.random.choice(free)
        if self.unfinished and self.random.random() < 0.3:
            job = self.unfinished.pop(self.random.randrange(len(self.unfinished)))
        else:
            job = self._new_job()
            self.jobs.append(job)
        self._do(job, machine, self._plan(depth))

    def _plan(self, depth: int) -> Plan:
        """Choose at which calls others get in between, and whether the machine fails."""
        plan = Plan()
        if depth < MAX_DEPTH:
            for _ in range(self.random.choice((0, 0, 1, 1, 2, 3))):
                call = self.random.randrange(1, 30)
                plan.interrupts[call] = lambda: self.step(depth + 1)
            for _ in range(self.random.choice((0, 0, 1, 1, 2))):
                plan.before_commits.append(lambda: self.step(depth + 1))
        if self.random.random() < 0.25:
            plan.fault_at = self.random.randrange(1, 25)
            plan.fault = self.random.choice(("before", "after", "failed", "done_but_failed"))
        return plan

    def _do(self, job: Job, machine: Machine, plan: Plan) -> None:
        self.busy.add(machine.number)
        plan.author = job
        machine.store.plans.append(plan)
        began = self.judge.head()
        plan.began = began.version
        try:
            result = VERBS[job.verb](machine.table, job)
        except Crash:
            self._left(job, "died")
            self.machines[machine.number] = self._machine(machine.number)
        except (CommitUnknownError, StorageError):
            if not plan.has_faulted:
                raise
            self._left(job, "store failed")
        except FAIR as error:
            if isinstance(error, REFUSALS):
                attempt = Attempt(job=job, began=began, ended=self.judge.head(), refusal=error)
                self.judge.attempts.append(attempt)
            self._failed(job, error, plan)
        else:
            attempt = Attempt(job=job, began=began, ended=self.judge.head(), result=result)
            self.judge.attempts.append(attempt)
            self._done(job, result)
        finally:
            machine.store.plans.pop()
            self.busy.discard(machine.number)

    def _left(self, job: Job, how: str) -> None:
        job.outcome = UNKNOWN
        self.unfinished.append(job)
        self.happened[f"{job.verb}: {how}"] += 1

    def _failed(self, job: Job, error: Exception, plan: Plan) -> None:
        """Remember that nothing was committed, unless an earlier try or a fault hides it."""
        self.happened[f"{job.verb}: {type(error).__name__}"] += 1
        if job.outcome is None and not plan.has_faulted:
            job.outcome = FAILED

    def _done(self, job: Job, result: JobResult | None) -> None:
        job.outcome = DONE
        if result is None or not result.version:
            self.happened[f"{job.verb}: nothing to do"] += 1
        else:
            self.happened[f"{job.verb}: done"] += 1
        if result is not None and result.version is not None:
            self.judge.promised(job.token, result)

    def _finish(self) -> None:
        """Run again what was left, publish all, and check and compare whatever can be read."""
        while self.unfinished:
            job = self.unfinished.pop()
            self._do(job, self.machines[0], Plan())
            assert job.outcome is not None, f"{job} was run again, and has no outcome"
        self.machines = [self._machine(number, skew_us=0) for number in range(MACHINES)]
        last = Job(verb="metagen", token="last", arguments={"all": True})
        self.jobs.append(last)
        self._do(last, self.machines[0], Plan())
        self.judge.see(self.jobs)
        self.judge.compare(self.random, is_whole=True)
        self.judge.check_nothing_is_left_over(self.machines[0].table, self.clock)

    def _new_job(self) -> Job:
        verb = self.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        job = Job(verb=verb, token=f"{verb}-{len(self.jobs)}")
        make = getattr(self, f"_arguments_of_{verb}", None)
        if make is not None:
            make(job)
        return job

    def _arguments_of_ingest(self, job: Job) -> None:
        puts = [
            put_of(self.random.randbytes(8), self.shape) for _ in range(self.random.randrange(6))
        ]
        first = len(self.judge.puts) + 1
        job.serials = tuple(range(first, first + len(puts)))
        job.arguments = {
            "metadata": self.random.choice(("batch", "batch", "inline")),
            "partition_key": self.random.choice(KEYS),
        }
        if self.has_business_snapshots:
            how = self.random.choice(("business_snapshot", "business_snapshot_column"))
            names = {
                "business_snapshot": self.random.choice((None, *BUSINESS_SNAPSHOTS)),
                "business_snapshot_column": "place",
            }
            job.arguments[how] = names[how]
        if self.random.random() < 0.3:
            job.arguments["on_new_columns"] = self.random.choice(("add", "ignore", "fail"))
            job.drift = tuple(self.random.sample(DRIFT, self.random.randrange(1, 3)))
        earlier = [other.token for other in self.jobs if other.verb == "ingest"]
        if earlier and self.random.random() < 0.2:
            job.arguments["replaces"] = self.random.sample(earlier, 1)
        self.judge.put(job, puts)

    def _arguments_of_metagen(self, job: Job) -> None:
        match self.random.randrange(4):
            case 0:
                job.arguments = {"all": True}
            case 1:
                job.arguments = {"partition_key": self.random.choice(KEYS[1:])}
            case 2:
                tokens = [other.token for other in self.jobs if other.verb == "ingest"]
                if tokens:
                    job.arguments = {"tokens": self.random.sample(tokens, min(2, len(tokens)))}

    def _arguments_of_discard(self, job: Job) -> None:
        tokens = [other.token for other in self.jobs if other.verb == "ingest"]
        if tokens and self.random.random() < 0.5:
            job.arguments = {"token": self.random.choice(tokens)}
        else:
            job.arguments = {"partition_key": self.random.choice(KEYS[1:])}

    def _arguments_of_compact(self, job: Job) -> None:
        if self.random.random() < 0.3:
            look_back = self.random.choice((1, 3, 1 << 31))
            job.arguments = {"mode": "major", "look_back": look_back}

    def _arguments_of_zorder(self, job: Job) -> None:
        job.arguments = {
            "columns": [self.random.choice([*self.shape.keys, "serial"])],
            "whole": self.random.random() < 0.5,
        }

    def _arguments_of_restore(self, job: Job) -> None:
        job.arguments = {"version": self.random.choice(self.judge.versions)}

    def _arguments_of_add_columns(self, job: Job) -> None:
        job.arguments = {"columns": {self.random.choice(DRIFT): "string"}}

    def _arguments_of_retain(self, job: Job) -> None:
        window = self.random.choice(("1h", "2d", "30d"))
        job.arguments = {"window": window, "grace": self.random.choice(("1h", "1d"))}

    def _arguments_of_finish_business_snapshot(self, job: Job) -> None:
        job.arguments = {"name": self.random.choice(BUSINESS_SNAPSHOTS)}

    def _arguments_of_savepoint(self, job: Job) -> None:
        self.savepoints += 1
        job.arguments = {"name": f"s{self.random.randrange(3)}", "move": True}

    def _arguments_of_release(self, job: Job) -> None:
        job.arguments = {"name": f"s{self.random.randrange(3)}"}

    def _shape(self) -> Shape:
        kinds = ("long", "string", "date", "decimal(18,4)", "timestamp")
        keys = {"id": self.random.choice(kinds)}
        if self.random.random() < 0.3:
            keys["k.v"] = self.random.choice(kinds)
        ties = {"tie 0": "integer"} if self.random.random() < 0.5 else {}
        # A look-back of a major compaction is a number where the delta is one
        columns = {**keys, "at": "integer", **ties}
        pools = {
            name: tuple(self.random.sample(POOLS[kind], min(4, len(POOLS[kind]))))
            for name, kind in columns.items()
        }
        places = BUSINESS_SNAPSHOTS if self.has_business_snapshots else ("a", "b/c", "", None)
        return Shape(
            keys=keys,
            delta="integer",
            ties=ties,
            partition=self.random.choice((None, "place")),
            file_format=self.random.choice(("parquet", "parquet", "orc")),
            properties={
                "segment_rows": self.random.randrange(1, 6),
                "group_rows": self.random.randrange(1, 12),
                "checkpoint_commits": self.random.randrange(1, 6),
                "token_keep": 10_000,
                "key_store_fan_in": self.random.randrange(2, 5),
                "drift": self.random.choice(("0s", "1d")),
            },
            pools={**pools, "place": places},
        )

    def _machine(self, number: int, skew_us: int | None = None) -> Machine:
        skew_us = self.random.choice(SKEWS_US) if skew_us is None else skew_us
        store = RacingStore(self.storage, self.authors)
        return Machine(
            number=number, store=store, table=self._table(store, SkewedClock(self.clock, skew_us))
        )

    def _table(self, storage: Any, clock: SkewedClock) -> Table:
        log = CommitLog(storage=storage, clock=clock, ids=self.ids)
        tasks = InProcess(tasks=self.random.randrange(1, 4))
        return Table(log=log, cache=MemoryRuns(storage=storage), executor=tasks)


def _ingest(table: Table, job: Job) -> JobResult:
    rows = job.arguments["rows"]
    options = {name: value for name, value in job.arguments.items() if name != "rows"}
    return table.ingest(rows.drop_columns([DELETED]), rows[DELETED], token=job.token, **options)


def _run(name: str) -> Callable[[Table, Job], JobResult]:
    """Return a verb that takes its arguments and a token as they are."""
    return lambda table, job: getattr(table, name)(**job.arguments, token=job.token)


def _run_without_token(name: str) -> Callable[[Table, Job], JobResult]:
    return lambda table, job: getattr(table, name)(**job.arguments)


def _read(table: Table, job: Job) -> None:
    """Read as users do while others write; a reader that gets an answer gets a true one."""
    snapshot = table.snapshot_at()
    job.arguments["version"] = snapshot.version
    job.arguments["rows"] = table.read(version=snapshot.version)["serial"].to_pylist()


VERBS: dict[str, Callable[[Table, Job], JobResult | None]] = {
    "ingest": _ingest,
    "read": _read,
    **{
        name: _run_without_token(name)
        for name in ("discard", "savepoint", "release", "finish_business_snapshot")
    },
    **{
        name: _run(name)
        for name in (
            "metagen",
            "compact",
            "zorder",
            "restore",
            "add_columns",
            "retain",
            "rebuild_key_store",
        )
    },
}
WEIGHTS = {
    "ingest": 40,
    "metagen": 18,
    "discard": 4,
    "compact": 8,
    "zorder": 4,
    "restore": 3,
    "add_columns": 2,
    "retain": 4,
    "savepoint": 2,
    "release": 1,
    "finish_business_snapshot": 1,
    "rebuild_key_store": 1,
    "read": 8,
}
