"""Wrong clocks: the store's time decides what expires, and times in the future are repaired."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake.clock import ManualClock, moment_text
from opal_lake.errors import ClockError, ConflictError, ExpiredError, NotFoundError
from opal_lake.exit_codes import RETRY, exit_code
from opal_lake.log.commit_log import CommitLog
from opal_lake.maintenance.clock_repair import Evidence, correct
from opal_lake.maintenance.due import policy_of, run_maintenance
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage import Storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest
from opal_lake.write.ingest_task import IngestTask, ingest_rows
from tests.kit.check import check_table
from tests.kit.clocks import SilentStore, SkewedClock, TrueClock
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import content, create, rows

SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
BOUND = 10 * MINUTE


@pytest.fixture
def true() -> TrueClock:
    return TrueClock()


@pytest.fixture
def storage(true: TrueClock) -> MemoryStorage:
    return MemoryStorage(clock=true)


def machine(storage: Storage, true: TrueClock, ahead_us: int = 0, *, asks: bool = True) -> Table:
    """Return a table of a machine; unless it asks, it never gets the store's time."""
    store = storage if asks else SilentStore(inner=storage)
    clock = SkewedClock(true=true, ahead_us=ahead_us)
    return Table(
        log=CommitLog(storage=store, clock=clock, ids=CountingIds(f"w{ahead_us}-{true.at_us}")),
        cache=MemoryRuns(storage=store),
    )


def new_table(
    storage: Storage,
    true: TrueClock,
    ahead_us: int = 0,
    *,
    asks: bool = True,
    **properties: int | str,
) -> Table:
    spec = create(MemoryStorage(), **{"checkpoint_commits": 4, **properties}).snapshot_at().spec
    writer = machine(storage, true, ahead_us, asks=asks)
    create_on(writer.storage, spec, writer.log.clock, CountingIds("made"))
    return machine(storage, true)


def put(table: Table, number: int) -> JobResult:
    return table.ingest(*rows([(f"k{number}", number, number)]), metadata="inline")


def at(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def times(table: Table) -> list[int]:
    return [commit.timestamp_us for commit in table.commits()][::-1]


def test_writer_ahead_of_the_store_commits_nothing(storage: MemoryStorage, true: TrueClock) -> None:
    table = new_table(storage, true)
    ahead = machine(storage, true, YEAR)
    before = {stored.path for stored in storage.list("")}
    jobs: list[Callable[[], object]] = [
        lambda: put(ahead, 1),
        lambda: ahead.set_properties({"window": "1d"}),
        lambda: ahead.savepoint("s"),
        lambda: create_on(MemoryStorage(clock=true), table.snapshot_at().spec, ahead.log.clock),
    ]
    for job in jobs:
        with pytest.raises(
            ClockError,
            match=r"clock says 2024-11-13T.*the store of memory.* 2023-11-14T.*clock_bound \(10m\)",
        ) as refused:
            job()
        assert exit_code(refused.value) == RETRY
    assert {stored.path for stored in storage.list("_opal/log/")} == {
        path for path in before if path.startswith("_opal/log/")
    }
    put(machine(storage, true, 9 * MINUTE), 1)
    table.set_properties({"clock_bound": "1m"})
    with pytest.raises(ClockError, match=r"clock_bound \(1m\)"):
        put(machine(storage, true, 9 * MINUTE), 2)


def test_job_whose_clock_jumps_ahead_commits_nothing(
    storage: MemoryStorage, true: TrueClock
) -> None:
    table = new_table(storage, true)
    run = start_ingest(table, Ingest([]))
    assert isinstance(run, IngestRun)
    table.log.clock.ahead_us = 40 * DAY  # type: ignore[attr-defined]  # a SkewedClock
    with pytest.raises(ClockError, match="ahead by more than"):
        commit(table, run)
    assert table.snapshot_at().version == 0


def commit(table: Table, run: IngestRun) -> JobResult:
    task = IngestTask(
        storage=table.storage, spec=run.base.spec, number=run.number, task=0, attempt="0"
    )
    return commit_ingest(
        table.log, run, [ingest_rows(rows([(f"k{run.number}", 1, 1)])[0].to_batches(), task)]
    )


def test_writer_behind_the_store_commits_with_the_stores_time_and_records_its_own(
    storage: MemoryStorage, true: TrueClock
) -> None:
    table = new_table(storage, true)
    true.pass_us(DAY)
    put(machine(storage, true, -YEAR), 1)
    last = table.log.read_commit(1)
    assert abs(last.timestamp_us - true.at_us) < SECOND
    assert abs((last.writer_us or 0) - (true.at_us - YEAR)) < SECOND
    true.pass_us(HOUR)
    put(machine(storage, true, -5 * MINUTE), 2)
    assert abs(table.log.read_commit(2).timestamp_us - (true.at_us - 5 * MINUTE)) < SECOND, (
        "within the bound its own is finer"
    )


def test_writers_own_time_is_used_if_the_store_has_no_time(true: TrueClock) -> None:
    storage = MemoryStorage()
    table = new_table(storage, true, asks=False)
    put(machine(storage, true, YEAR), 1)
    assert table.log.read_commit(1).timestamp_us > true.at_us + YEAR - SECOND


def jumped(
    storage: MemoryStorage, true: TrueClock, ahead_us: int = YEAR
) -> tuple[Table, list[int]]:
    """Return a table with one version of a clock that is ahead, and all true times."""
    table, made = new_table(storage, true), [true.at_us]
    for number, ahead in enumerate([0, 0, ahead_us, 0, 0, 0], 1):
        true.pass_us(HOUR)
        put(machine(storage, true, ahead, asks=not ahead), number)
        made.append(true.at_us)
    return table, made


def test_commit_time_in_the_future_is_reported_by_writers_retention_and_check(
    storage: MemoryStorage, true: TrueClock
) -> None:
    table, made = jumped(storage, true)
    assert table.snapshot_at(timestamp=at(made[5])).version == 2, "this is what has to be repaired"
    result = put(table, 7)
    assert any(
        "version 6 has the commit time 2024-11-14" in note and "repair-clock" in note
        for note in result.notes
    )
    assert any("repair-clock" in note for note in table.retain().notes)
    assert any("repair-clock" in note for note in table.retain(dry_run=True).notes)
    (finding,) = check_table(table)
    assert (
        finding.invariant,
        "times of 5 versions from it on are wrong, rows are not" in finding.message,
    ) == ("I24", True)


@pytest.mark.parametrize("repairer_ahead_us", [0, -YEAR, 9 * MINUTE])
def test_all_commit_times_are_right_after_a_repair(
    storage: MemoryStorage, true: TrueClock, repairer_ahead_us: int
) -> None:
    table, made = jumped(storage, true)
    true.pass_us(HOUR)
    before = [stored.path for stored in storage.list("")]
    planned = table.repair_clock(dry_run=True)
    assert [stored.path for stored in storage.list("")] == before
    assert planned.notes[0] == "nothing was changed: this was a dry run"
    result = machine(storage, true, repairer_ahead_us).repair_clock()
    made.append(true.at_us)
    assert (result.version, dict(result.counts)) == (7, {"versions": 4})
    assert result.notes == planned.notes[1:]
    assert_right(table, made)
    assert table.repair_clock().version is None
    assert table.repair_clock().notes == ("no version has a wrong time; nothing to repair",)
    put(table, 8)
    assert abs(table.snapshot_at().root.timestamp_us - true.at_us) < BOUND
    for number in range(9, 14):  # a checkpoint holds it, too
        put(table, number)
    assert_right(table, made)
    true.pass_us(6 * HOUR)
    table.retain(window="9h", grace="1h")
    assert table.snapshot_at().root.oldest_version == 4
    assert abs(times(table)[0] - made[4]) < SECOND
    true.pass_us(DAY)
    table.retain(window="1h", grace="1h")
    assert table.snapshot_at().root.clock_repairs == (), "what it corrected has expired"
    assert check_table(table) == []


def assert_right(table: Table, made: list[int], within_us: int = BOUND) -> None:
    """Check that each version is found by the time at which it was made."""
    recorded = times(table)
    oldest = table.snapshot_at().root.oldest_version
    for version, moment in enumerate(made[oldest:], oldest):
        assert abs(recorded[version - oldest] - moment) <= within_us, (
            version,
            moment_text(recorded[version - oldest]),
            moment_text(moment),
        )
    assert recorded == sorted({*recorded})
    assert table.snapshot_at(timestamp=at(made[-1] + within_us)).version >= len(made) - 1
    assert check_table(table) == []


def test_log_without_writer_times_is_repaired_by_the_stores_times(
    storage: MemoryStorage, true: TrueClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of older tables do not have their writers' clocks."""
    link = CommitLog._link
    monkeypatch.setattr(
        CommitLog, "_link", lambda *arguments: replace(link(*arguments), writer_us=None)
    )
    table, made = jumped(storage, true)
    monkeypatch.undo()
    table.repair_clock()
    assert_right(table, [*made, true.at_us])


def test_copied_table_is_repaired_by_its_writers_clocks(
    storage: MemoryStorage, true: TrueClock
) -> None:
    """The store had all commits on the day of the copy."""
    _, made = jumped(storage, true)
    true.pass_us(30 * DAY)
    copied = MemoryStorage(clock=true)
    for stored in storage.list(""):
        copied.put_if_absent(stored.path, storage.get(stored.path))
    table = machine(copied, true)
    table.repair_clock()
    recorded = times(table)
    for version in (4, 5, 6):
        assert abs(recorded[version] - made[version]) <= BOUND
    assert made[2] - SECOND < recorded[3] <= made[4], (
        "its own clock was a year ahead: after its predecessor is all that is known"
    )


def test_a_creator_that_was_ahead_and_two_jumps(storage: MemoryStorage, true: TrueClock) -> None:
    table, made = new_table(storage, true, 40 * DAY, asks=False), [true.at_us]
    for ahead in (0, 2 * YEAR, 0):
        true.pass_us(HOUR)
        put(machine(storage, true, ahead, asks=not ahead), len(made))
        made.append(true.at_us)
    table.repair_clock()
    made.append(true.at_us)
    assert_right(table, made)
    true.pass_us(HOUR)
    put(machine(storage, true, YEAR, asks=False), 9)
    made.append(true.at_us)
    assert table.repair_clock().counts["versions"] == 1
    made.append(true.at_us)
    assert_right(table, made)
    assert table.snapshot_at().root.clock_repairs == (4, 6)


def test_two_repairs_and_an_upsert_at_once(storage: MemoryStorage, true: TrueClock) -> None:
    table, made = jumped(storage, true)
    rival, busy = machine(storage, true), machine(storage, true)
    link, left = CommitLog._link, [lambda: put(busy, 20), rival.repair_clock, lambda: put(busy, 21)]

    class Raced(CommitLog):
        def _link(self, *arguments):  # type: ignore[no-untyped-def]  # as CommitLog's
            made_link = link(self, *arguments)
            if left:
                left.pop(0)()
            return made_link

    racer = Raced(storage=storage, clock=SkewedClock(true=true), ids=CountingIds("raced"))
    result = Table(log=racer, cache=table.cache).repair_clock()
    assert result.version is None, "the other one was faster"
    now = true.at_us
    put(table, 22)
    assert table.snapshot_at().root.clock_repairs == (8,)
    assert_right(table, [*made, now, now, now])


@pytest.mark.parametrize("ahead_us", [40 * DAY, YEAR, HOUR, -YEAR])
def test_retention_on_a_machine_with_a_wrong_clock_expires_nothing(
    storage: MemoryStorage, true: TrueClock, ahead_us: int
) -> None:
    table = new_table(storage, true, window="5h")
    for number in range(1, 5):
        true.pass_us(HOUR)
        put(table, number)
    running = start_ingest(table, Ingest([]))
    assert isinstance(running, IngestRun)
    cleaner = machine(storage, true, ahead_us)
    assert cleaner.retain(window="5h", grace="5h").version is None
    assert cleaner.retain(window="5h", grace="5h", dry_run=True).counts.get("versions", 0) == 0
    run_maintenance(cleaner, policy_of(table.snapshot_at().spec, {"window": "1d"}), {})
    assert table.snapshot_at().root.oldest_version == 0
    assert commit(table, running).version == 5


def test_a_floor_is_not_raised_by_the_clock_of_a_machine() -> None:
    """A major compaction drops rows before the floor permanently."""
    import pyarrow as pa

    from opal_lake.definition.table_spec import TableLayout, plan_spec

    true = TrueClock()
    storage = MemoryStorage(clock=true)
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    table = create_on(
        storage, plan_spec(schema, TableLayout(keys=["id"], delta="at")), SkewedClock(true=true)
    )
    for day in range(3):
        table.ingest(
            pa.table({"id": ["a"], "at": [true.at_us + day]}, schema=schema), metadata="inline"
        )
        true.pass_us(DAY)
    ahead = Table(
        log=replace(table.log, clock=SkewedClock(true=true, ahead_us=40 * DAY)), cache=table.cache
    )
    with pytest.raises(ClockError):
        compact(ahead, look_back="30d")
    assert table.snapshot_at().root.floor is None
    behind = Table(
        log=replace(table.log, clock=SkewedClock(true=true, ahead_us=-YEAR)), cache=table.cache
    )
    compact(behind, look_back="30d")
    assert abs((table.snapshot_at().root.floor or 0) - (true.at_us - 30 * DAY)) < SECOND


@pytest.mark.parametrize("ahead_us", [-YEAR, -2 * HOUR, 0, 2 * HOUR, YEAR])
def test_age_of_a_claim_is_measured_by_the_stores_time(
    storage: MemoryStorage, true: TrueClock, ahead_us: int
) -> None:
    """A time a year ago does not expire at once, and one in a year does expire."""
    table = new_table(storage, true)
    run = start_ingest(machine(storage, true, ahead_us, asks=False), Ingest([]))
    assert isinstance(run, IngestRun)
    true.pass_us(HOUR)
    table.retain(grace="2h")
    assert table.snapshot_at().root.abandoned == frozenset()
    true.pass_us(2 * HOUR)
    if (
        ahead_us == 2 * HOUR
    ):  # it has been of a time that is not to come since: then it is kept for longer
        true.pass_us(2 * HOUR)
    table.retain(grace="2h")
    assert table.snapshot_at().root.abandoned == {run.number}
    with pytest.raises(ConflictError, match="retention gave up job"):
        commit(table, run)


def test_versions_of_writers_with_a_late_clock_do_not_expire_sooner(
    storage: MemoryStorage, true: TrueClock
) -> None:
    table = new_table(storage, true, -YEAR, asks=False)
    for number in range(1, 5):
        true.pass_us(HOUR)
        put(machine(storage, true, -YEAR, asks=False), number)
    table.retain(window="150m", grace="1h")
    assert table.snapshot_at().root.oldest_version == 1
    assert content(table, version=2) == [("k1", 1, 1), ("k2", 2, 2)]


def copy(storage: MemoryStorage, true: TrueClock, file_us: Callable[[int], int]) -> MemoryStorage:
    """Change the times of files, as archives and images do."""
    clock = ManualClock()
    copied = MemoryStorage(clock=clock)
    for stored in storage.list(""):
        clock.at_us = file_us(stored.modified_us)
        copied.put_if_absent(stored.path, storage.get(stored.path))
    copied._clock = true
    return copied


@pytest.mark.parametrize(
    "file_us",
    [
        lambda _: 315_532_800 * SECOND,
        lambda us: us - 9 * HOUR,
        lambda _: 1_700_000_000 * SECOND + 2 * HOUR,
    ],
)
def test_a_copy_with_older_times_of_files_lets_nothing_go_and_is_not_called_wrong(
    storage: MemoryStorage, true: TrueClock, file_us: Callable[[int], int]
) -> None:
    table = new_table(storage, true)
    for number in range(1, 6):
        true.pass_us(HOUR)
        put(machine(storage, true, -YEAR if number == 3 else 0), number)
    run = start_ingest(table, Ingest([]))
    assert isinstance(run, IngestRun)
    true.pass_us(MINUTE)
    copied = copy(storage, true, file_us)
    table = machine(copied, true)
    true.pass_us(MINUTE)
    recorded = times(table)
    assert (table.retain(window="6h", grace="1h").version, table.snapshot_at().root.abandoned) == (
        None,
        frozenset(),
    )
    for _ in range(2):  # untouched, and after a commit there
        assert check_table(table) == []
        repaired = table.repair_clock()
        assert (
            repaired.version,
            "nothing was corrected there. No clock is known to have been ahead"
            in repaired.notes[0],
        ) == (None, True)
        assert times(table)[:6] == recorded
        put(table, 6)
    put(machine(copied, true, YEAR, asks=False), 7)
    true.pass_us(2 * YEAR)
    put(table, 8)
    assert [finding.invariant for finding in check_table(table)] == ["I24"], (
        "here a clock was ahead"
    )
    assert table.repair_clock().counts == {"versions": 2}
    assert (times(table)[:6], check_table(table)) == (recorded, [])


def test_a_jump_stays_wrong_when_its_date_has_passed(
    storage: MemoryStorage, true: TrueClock
) -> None:
    table, made = jumped(storage, true)
    true.pass_us(2 * YEAR)
    (finding,) = check_table(table)
    assert "times of 4 versions" in finding.message
    assert table.repair_clock().counts == {"versions": 4}
    assert_right(table, [*made, true.at_us])


@pytest.mark.parametrize("is_old", [True, False])
def test_later_versions_distinguish_a_creator_that_was_ahead_from_a_copy(
    true: TrueClock, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    link = CommitLog._link
    if is_old:  # commits that say nothing of their writers' clocks
        monkeypatch.setattr(
            CommitLog, "_link", lambda *arguments: replace(link(*arguments), writer_us=None)
        )
    storage = MemoryStorage(clock=true)
    table, made = new_table(storage, true, YEAR, asks=False), [true.at_us]
    for number in (1, 2):
        true.pass_us(HOUR)
        put(table, number)
        made.append(true.at_us)
    monkeypatch.undo()
    true.pass_us(2 * YEAR)
    assert [finding.invariant for finding in check_table(table)] == ["I24"]
    assert table.repair_clock().counts == {"versions": 3}
    assert_right(table, [*made, true.at_us])


def test_a_jump_in_a_copy_with_older_times_is_repaired_by_its_writers_clocks(
    storage: MemoryStorage, true: TrueClock
) -> None:
    _, made = jumped(storage, true)
    table = machine(copy(storage, true, lambda _: 315_532_800 * SECOND), true)
    assert table.repair_clock().counts == {"versions": 4}
    recorded = times(table)
    assert all(abs(recorded[version] - made[version]) <= BOUND for version in (0, 1, 2, 4, 5, 6))
    assert recorded[2] < recorded[3] < recorded[4]
    assert check_table(table) == []


SKEWS = st.sampled_from(
    [0, 0, SECOND, -SECOND, 5 * MINUTE, -5 * MINUTE, HOUR, -HOUR, 40 * DAY, -40 * DAY, YEAR, -YEAR]
)
PASSES = st.sampled_from([0, SECOND, 20 * MINUTE, HOUR, 6 * HOUR, 2 * DAY])
VERBS = st.sampled_from(["put", "put", "put", "begin", "finish", "retain", "repair"])
STEPS = st.lists(
    st.tuples(VERBS, SKEWS, st.sampled_from([True, True, True, False]), PASSES),
    min_size=4,
    max_size=14,
)


@dataclass(slots=True, kw_only=True)
class World:
    """A table, and the true time of each of its versions."""

    storage: MemoryStorage
    true: TrueClock
    table: Table
    made: list[int]
    begun: list[tuple[IngestRun, int]] = field(default_factory=list)
    was_silent: bool = False

    def play(self, verb: str, ahead_us: int, asks: bool) -> None:
        asks = asks or verb in ("retain", "repair")  # who lets go, or mends, is of today
        self.was_silent |= not asks
        actor = machine(self.storage, self.true, ahead_us, asks=asks)
        head = self.table.snapshot_at().version
        try:
            self._do(verb, actor)
        except ClockError:
            assert asks
            assert ahead_us > BOUND - SECOND, "only who is ahead is refused"
        self.made += [self.true.at_us] * (self.table.snapshot_at().version - head)

    def _do(self, verb: str, actor: Table) -> None:
        match verb:
            case "put":
                put(actor, len(self.made))
            case "begin":
                run = start_ingest(actor, Ingest([]))
                assert isinstance(run, IngestRun)
                self.begun.append((run, self.true.at_us))
            case "finish" if self.begun:
                run, since_us = self.begun.pop(0)
                try:
                    commit(actor, run)
                except (ConflictError, ExpiredError):
                    assert self.true.at_us - since_us >= 5 * HOUR - 2 * SECOND, (
                        "a job within its grace was given up"
                    )
            case "retain":
                newest_then = (
                    sum(moment <= self.true.at_us - 5 * HOUR + 2 * SECOND for moment in self.made)
                    - 1
                )
                actor.retain(window="5h", grace="5h")
                oldest = self.table.snapshot_at().root.oldest_version
                assert oldest <= max(newest_then, 0), (
                    f"version {oldest} is the oldest, {newest_then} was the newest 5 hours ago"
                )
            case "repair":
                actor.repair_clock()


@dataclass(slots=True, kw_only=True)
class Coarse:
    """Gives whole seconds, as some file systems on a network do."""

    true: TrueClock

    def now_us(self) -> int:
        return self.true.now_us() // SECOND * SECOND


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, creator=SKEWS, creator_asks=st.booleans(), is_coarse=st.booleans())
def test_random_clocks_delete_no_protected_file_and_a_repair_corrects_all_times(
    steps: list[tuple[str, int, bool, int]], creator: int, creator_asks: bool, is_coarse: bool
) -> None:
    true = TrueClock()
    storage = MemoryStorage(clock=Coarse(true=true) if is_coarse else true)
    if creator_asks and creator > BOUND - SECOND:
        creator = 0
    table = new_table(storage, true, creator, asks=creator_asks)
    world = World(
        storage=storage, true=true, table=table, made=[true.at_us], was_silent=not creator_asks
    )
    for verb, ahead_us, asks, pass_us in steps:
        true.pass_us(pass_us)
        world.play(verb, ahead_us, asks)
    if world.was_silent:
        true.pass_us(SECOND)
        world.play("repair", 0, True)
    assert_times(world)


def assert_times(world: World) -> None:
    """Check that no version is ahead by more than the bound.

    Times are right within it if the writer asked the store, or a repair corrected them.
    """
    table, oldest = world.table, world.table.snapshot_at().root.oldest_version
    recorded, least_us = times(table), world.true.at_us
    assert recorded == sorted({*recorded})
    for version, (recorded_us, moment) in enumerate(
        zip(recorded, world.made[oldest:], strict=True), oldest
    ):
        if abs(recorded_us - moment) <= BOUND - SECOND:
            least_us = min(least_us, moment)
        may_be_a_copy = (
            world.was_silent
            and moment < least_us + 2 * SECOND
            and recorded_us <= world.true.at_us + BOUND
        )
        assert may_be_a_copy or recorded_us <= moment + BOUND + SECOND, (
            version,
            moment_text(recorded_us),
            moment_text(moment),
        )
        if not world.was_silent:
            assert recorded_us >= moment - BOUND - SECOND, (
                version,
                moment_text(recorded_us),
                moment_text(moment),
            )
            if recorded_us > moment:
                continue
            try:
                assert table.snapshot_at(timestamp=at(moment + BOUND)).version >= version
            except NotFoundError:
                raise AssertionError(f"version {version} cannot be found by its time") from None
    assert check_table(table) == []


def test_correction_takes_a_writers_time_that_the_store_confirms() -> None:
    def evidence(version: int, said: int, writer: int, latest: int) -> Evidence:
        return Evidence(
            version=version,
            recorded_us=said * MINUTE,
            writer_us=writer * MINUTE,
            latest_us=latest * MINUTE,
            now_us=500 * MINUTE,
        )

    sound, ahead, behind, late = (
        evidence(0, 100, 100, 101),
        evidence(1, 900, 900, 201),
        evidence(2, 901, 50, 301),
        evidence(3, 902, 400, 401),
    )
    assert correct([sound], BOUND) is None
    corrected = correct([sound, ahead, behind, late], BOUND)
    assert corrected is not None
    assert (corrected.first, [us // MINUTE for us in corrected.times_us]) == (1, [201, 301, 400])
