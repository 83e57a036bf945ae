"""The judge of a life: the model, folded from the commits in their order."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opal_lake import layout
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic, arrow_type
from opal_lake.ids import segment_part
from opal_lake.log.commit import Commit
from opal_lake.log.lists import ingested_files
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable
from opal_lake.result import JobResult
from opal_lake.savepoints.business_snapshot import segments_due
from opal_lake.table import Table
from tests.crash.left_overs import left_overs
from tests.kit.check import check_table
from tests.kit.clocks import TrueClock
from tests.kit.model import ModelRow, RowId, visible
from tests.kit.replay import Replay
from tests.kit.strategies import SERIAL, Put, Shape
from tests.raced.store import Plan

if TYPE_CHECKING:
    from tests.raced.life import Job

WEEK_US = 7 * 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt of an operation: its end, and the states of the table meanwhile."""

    job: "Job"
    began: Snapshot
    ended: Snapshot
    refusal: Exception | None = None
    result: JobResult | None = None

    @property
    def versions(self) -> range:
        return range(self.began.version, self.ended.version + 1)


class Judge:
    """Follows the log by a table of its own, whose store never fails, and compares it."""

    def __init__(self, table: Table, shape: Shape, authors: Mapping[str, Plan]) -> None:
        self.table = table
        self.authors = authors
        self.attempts: list[Attempt] = []
        self.retained: list[int] = []
        self.replaced: set[str] = set()
        self.savepoints: dict[int, frozenset[str]] = {0: frozenset()}
        self.snapshots: dict[int, str | None] = {}
        self.shape = shape
        self.puts: dict[int, Put] = {}
        self.keys: dict[int, str | None] = {}
        self.tokens: dict[int, str] = {}
        self.more: dict[int, Mapping[str, Any]] = {}
        self.deltas: dict[RowId, Any] = {}
        self.added: dict[str, tuple[int, str]] = {}
        self.states: dict[int, Mapping[int, ModelRow]] = {0: {}}
        self.restored: list[int] = []
        self.committed: dict[str, int] = {}
        self.promises: list[tuple[str, JobResult]] = []
        self.comparisons = 0
        self.decoded: dict[str, pa.Table] = {}

    @property
    def versions(self) -> list[int]:
        return [*self.states]

    @property
    def newest(self) -> int:
        return self.versions[-1]

    def put(self, job: "Job", puts: Sequence[Put]) -> None:
        """Make the rows of an ingest, which any try of it brings."""
        numbered = dict(zip(job.serials, puts, strict=True))
        self.puts |= numbered
        self.keys |= dict.fromkeys(numbered, job.arguments["partition_key"])
        self.tokens |= dict.fromkeys(numbered, job.token)
        for serial in numbered:
            self.more[serial] = {name: f"{name} of {serial}" for name in job.drift}
        name = job.arguments.get("business_snapshot")
        if "business_snapshot_column" in job.arguments:
            self.snapshots |= {serial: put.values["place"] for serial, put in numbered.items()}
        else:
            self.snapshots |= dict.fromkeys(numbered, name)
        columns: dict[str, pa.Array] = {}
        for name, kind in self.shape.columns.items():
            values = [s if name == SERIAL else put.values[name] for s, put in numbered.items()]
            columns[name] = pa.array(values, arrow_type(Atomic(name=kind)))
        for name in job.drift:
            texts = [self.more[serial][name] for serial in numbered]
            columns[name] = pa.array(texts, pa.string())
        columns[DELETED] = pa.array([put.deleted for put in puts], pa.bool_())
        job.arguments["rows"] = pa.table(columns)

    def head(self) -> Snapshot:
        """Return the newest state, through a store that never fails."""
        return self.table.log.head()

    def promised(self, token: str, result: JobResult) -> None:
        self.promises.append((token, result))

    def see(self, jobs: Iterable["Job"]) -> None:
        """Fold what was committed since the last look, and hold every job to its answer."""
        by_token = {job.token: job for job in jobs}
        for version in range(self.newest + 1, self.table.log.head().version + 1):
            self._fold(self.table.log.read_commit(version))
        self._hold_to_promises()
        for attempt in self.attempts:
            self._check_attempt(attempt)
        self.attempts.clear()
        for job in by_token.values():
            self._check_outcome(job)

    def _hold_to_promises(self) -> None:
        for token, result in self.promises:
            if result.operation in ("ingest", "metagen", "discard"):
                is_committed = result.version in self.states
                assert is_committed, f"{token} got version {result.version}, which is not there"
            version = self.committed.get(token, result.version)
            assert result.version == version, f"{token} is version {version}, its result: {result}"
        self.promises.clear()

    def _check_outcome(self, job: "Job") -> None:
        if job.outcome == "failed":
            assert job.token not in self.committed, f"{job} failed, and is committed"
        if job.verb == "read" and "rows" in job.arguments:
            expected = self._visible_serials(job.arguments.pop("version"))
            read = sorted(job.arguments.pop("rows"))
            assert read == expected, f"{job.token} read rows {read}, not {expected}"
            self.comparisons += 1

    def _visible_serials(self, version: int) -> list[int]:
        return sorted(row.values[SERIAL] for row in visible(self.states[version].values()))

    def _fold(self, commit: Commit) -> None:
        """Fold a commit by its own actions. The store knows its author."""
        rows = dict(self.states[self.newest])
        actions = commit.actions
        job = self._author(commit.version).author
        if commit.token is not None:
            assert commit.token not in self.committed, f"{commit.token} is committed twice"
            own = (job.token, f"{job.token}/{commit.business_snapshot}")
            author = f"version {commit.version} was put by {job.token}"
            assert commit.token in own, f"{author}, and has token {commit.token}"
            self.committed[commit.token] = commit.version
        if commit.operation == "retain":
            self.retained.append(commit.version)
        self.replaced |= {*actions.replaced_tokens}
        names = self.savepoints[self.newest] - {*actions.released} | {*actions.savepoints}
        self.savepoints[commit.version] = names
        if actions.restored is not None:
            rows = dict(self.states[actions.restored.version])
            self.restored.append(commit.version)
        if actions.spec is not None:
            self._see_columns(commit)
        if commit.operation == "ingest":
            rows |= self._rows_of(commit, job)
        for discarded in actions.discarded:
            own = [s for s, row in rows.items() if row.row_id[0] == discarded.segment.id]
            seen = [serial for serial in own if rows[serial].processed is not None]
            assert not seen, f"version {commit.version} discards the visible rows {seen}"
            rows = {serial: row for serial, row in rows.items() if serial not in own}
        processed = {*actions.processed_ids}
        for serial, row in rows.items():
            if row.row_id[0] in processed:
                assert row.processed is None, f"version {commit.version} publishes a row twice"
                rows[serial] = replace(row, processed=commit.version)
        if commit.operation == "metagen":
            self._check_selection(job, rows, processed)
            self._check_published_keys(commit, rows, processed)
        self.states[commit.version] = rows

    def _check_selection(
        self, job: "Job", rows: Mapping[int, ModelRow], processed: set[int]
    ) -> None:
        """Expect that a MetaGen publishes what it was asked for, and nothing else."""
        own = [row for row in rows.values() if row.row_id[0] in processed]
        keys = {row.partition_key for row in own}
        if job.verb == "ingest":
            # An inline ingest by business snapshots publishes what it leaves under its key
            mine = job.arguments["partition_key"]
            others = [row for row in own if row.partition_key != mine]
            strange = [row for row in others if self.snapshots[row.values[SERIAL]] is None]
            assert not strange, f"{job.token} published rows of no business snapshot: {strange}"
            return
        match job.arguments:
            case {"all": True}:
                pass
            case {"partition_key": key}:
                assert keys <= {key}, f"a MetaGen of {key} published {keys}"
            case {"tokens": tokens}:
                ingests = {self.tokens[row.values[SERIAL]] for row in own}
                assert ingests <= {*tokens}, f"a MetaGen of {tokens} published {ingests}"
            case _:
                assert keys <= {None}, f"a MetaGen without a key published {keys}"

    def _author(self, version: int) -> Plan:
        """Return the plan of the operation that put a commit."""
        return self.authors[layout.commit_path(version)]

    def _check_published_keys(
        self, commit: Commit, rows: Mapping[int, ModelRow], processed: set[int]
    ) -> None:
        """Expect that the table names the keys of the rows that became visible, and no other."""
        numbers = {segment_part(segment) for segment in processed}
        partitions = self.table.log.at(commit.version).partitions
        named = {key for key, ingests in partitions.items() if ingests & numbers}
        own = {row.partition_key for row in rows.values() if row.row_id[0] in processed}
        assert named == own - {None}, f"version {commit.version} publishes {own}, not {named}"
        self.comparisons += 1

    def _check_pending_keys(self, result: JobResult) -> None:
        """Check that a MetaGen names the keys that stay pending and are not held back."""
        assert result.version is not None, f"a MetaGen has no version: {result}"
        if not is_readable(self.head().root, result.version):
            return
        held_numbers = self.table.log.at(result.version).root.business.held_numbers
        pending = [row for row in self.states[result.version].values() if row.processed is None]
        waiting = [row for row in pending if segment_part(row.row_id[0]) not in held_numbers]
        named = {example["partition_key"]: example["rows"] for example in result.examples}
        expected = Counter(row.partition_key for row in waiting)
        assert named == expected, f"{result} names pending rows of {named}, not of {expected}"
        counted = result.counts.get("pending_rows", 0)
        assert counted == len(pending), f"{result} counts {counted} pending rows, not {pending}"
        self.comparisons += 1

    def _check_attempt(self, attempt: Attempt) -> None:
        """Hold a refusal to what the model says of the states that the operation may have seen."""
        may_refuse, must_refuse = self._refusals(attempt)
        if attempt.refusal is not None:
            assert may_refuse, f"{attempt.job} is refused: {attempt.refusal!r}"
        elif not (attempt.result is not None and attempt.result.repeated):
            assert not must_refuse, f"{attempt.job} is not refused: {attempt.result}"
        self.comparisons += 1
        result = attempt.result
        if result is not None and result.operation == "metagen" and not result.repeated:
            self._check_pending_keys(result)

    def _refusals(self, attempt: Attempt) -> tuple[bool, bool]:
        """Return whether an operation may be refused, and whether it has to be."""
        began, ended, versions = attempt.began, attempt.ended, attempt.versions
        if any(version in versions[1:] for version in self.retained):
            return True, False  # what it read may be deleted, by a machine whose clock is wrong
        given = attempt.job.arguments
        match attempt.job.verb:
            case "ingest":
                reasons = [self._misfits(attempt.job, state) for state in (began, ended)]
                if attempt.job.token in self.replaced or self._lost_rows(attempt.job.token):
                    # A try that another ingest replaced, or whose rows were discarded, is refused
                    return True, False
                return any(reasons), all(reasons) and not self._is_begun(attempt.job.token)
            case "metagen":
                tokens = given.get("tokens", ())
                lacks = [self._lacks_tokens(tokens, version) for version in versions]
                # Of an ingest by business snapshots a part may be visible, and another discarded
                is_lost = any(map(self._lost_rows, tokens))
                is_known = all(map(self._is_begun, tokens))
                return any(lacks) or is_lost, all(lacks) and not is_known
            case "discard":
                lacks = [not self._selected(given, version) for version in versions]
                return any(lacks), all(lacks)
            case "restore":
                lacks = [not is_readable(state.root, given["version"]) for state in (began, ended)]
                return any(lacks), all(lacks)
            case "release":
                lacks = [given["name"] not in self.savepoints[v] for v in versions]
                return any(lacks), all(lacks)
            case "finish_business_snapshot":
                lacks = [_is_unfinishable(state, given["name"]) for state in (began, ended)]
                is_still = began.version == ended.version
                return any(lacks) or not is_still, all(lacks) and is_still
            case "read":
                return not is_readable(ended.root, given["version"]), False
        return False, False

    def _is_begun(self, token: str) -> bool:
        """Return whether a commit of an ingest has the token, or replaced one that had it."""
        parts = {known.partition("/")[0] for known in self.committed}
        return token in parts or token in self.replaced

    def _lost_rows(self, token: str) -> bool:
        """Return whether an ingest of the token committed, and its rows are lost."""
        own = [serial for serial, known in self.tokens.items() if known == token]
        newest = self.states[self.newest]
        return self._is_begun(token) and any(serial not in newest for serial in own)

    def _lacks_tokens(self, tokens: Iterable[str], version: int) -> bool:
        return any(not self._has_token(token, version) for token in tokens)

    def _has_token(self, token: str, version: int) -> bool:
        """Return whether an ingest of the token committed, and its rows exist.

        Of one by business snapshots, of which only some have committed, pending rows are enough.
        """
        state = self.states[version]
        own = [serial for serial, known in self.tokens.items() if known == token]
        left = [state[serial] for serial in own if serial in state]
        if any(row.processed is None for row in left):
            return True
        is_committed = self.committed.get(token, version + 1) <= version
        return is_committed and bool(left or not own)

    def _selected(self, given: Mapping[str, Any], version: int) -> bool:
        """Return whether rows are pending that a discard is asked for."""
        pending = [row for row in self.states[version].values() if row.processed is None]
        if "token" in given:
            return any(self.tokens[row.values[SERIAL]] == given["token"] for row in pending)
        return any(row.partition_key == given["partition_key"] for row in pending)

    def _misfits(self, job: "Job", state: Snapshot) -> bool:
        """Return whether an ingest's columns or business snapshots do not fit a state."""
        if job.arguments.get("on_new_columns", "fail") == "fail" and any(
            self.added.get(n, (state.version + 1, ""))[0] > state.version for n in job.drift
        ):
            return True
        names = {self.snapshots[serial] for serial in job.serials}
        if "business_snapshot_column" not in job.arguments:
            names = {job.arguments.get("business_snapshot")}
        problems = (state.root.business.problem_of(name) for name in names if name is not None)
        return any(problem is not None for problem in problems)

    def _see_columns(self, commit: Commit) -> None:
        assert commit.actions.spec is not None, f"version {commit.version} changes no columns"
        for field in commit.actions.spec.schema.fields:
            if field.name not in self.shape.columns and field.name not in self.added:
                self.added[field.name] = (commit.version, "string")

    def _rows_of(self, commit: Commit, job: "Job") -> dict[int, ModelRow]:
        """Return the rows that an ingest brought: all of the job's, each with its own row id."""
        ids: dict[int, RowId] = {}
        snapshot = self.table.log.at(commit.version)
        for file in ingested_files(self.table.storage, commit):
            rows = self._replay(commit.version)._decoded(file.path, snapshot)
            physical = snapshot.spec.schema.field(SERIAL).physical
            pairs = zip(rows[SEGMENT].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
            serials = rows[physical].to_pylist()
            ids |= dict(zip(serials, pairs, strict=True))
            self._see_drift(job, rows, serials, snapshot)
        expected = [*job.serials]
        if "business_snapshot_column" in job.arguments:
            name = commit.business_snapshot
            expected = [serial for serial in expected if self.snapshots[serial] == name]
        assert sorted(ids) == expected, f"{job.token} committed rows {sorted(ids)}"
        assert not {*ids.values()} & {*self.deltas}, f"{job.token} gives out a row id twice"
        assert len({*ids.values()}) == len(ids), f"{job.token} gives rows the same id: {ids}"
        key = job.arguments["partition_key"]
        assert commit.partition_key == key, f"{job.token} has key {commit.partition_key}, not {key}"
        return {serial: self._row(serial, row_id) for serial, row_id in ids.items()}

    def _see_drift(
        self, job: "Job", rows: pa.Table, serials: Sequence[int], snapshot: Snapshot
    ) -> None:
        """Check that columns of the table at the ingest's start are not left out."""
        for name in job.drift:
            since = self.added.get(name, (snapshot.version + 1, ""))[0]
            is_known = since <= self._author(snapshot.version).began
            stored: list[Any] = [None] * len(serials)
            if since <= snapshot.version:
                physical = snapshot.spec.schema.field(name).physical
                # a file that was begun before the column came lacks it
                if physical in rows.column_names:
                    stored = rows[physical].to_pylist()
            expected = [self.more[serial][name] for serial in serials]
            is_left_out = stored == [None] * len(serials)
            if is_left_out and job.arguments["on_new_columns"] == "ignore" and not is_known:
                for serial in serials:
                    self.more[serial] = {**self.more[serial], name: None}
                continue
            assert stored == expected, f"{job.token} stores {stored} as {name!r}, not {expected}"

    def _row(self, serial: int, row_id: RowId) -> ModelRow:
        put = self.puts[serial]
        self.deltas[row_id] = put.values["at"]
        return ModelRow(
            key=tuple(put.values[name] for name in self.shape.keys),
            delta=put.values["at"],
            ties=tuple(put.values[name] for name in self.shape.ties),
            row_id=row_id,
            deleted=put.deleted,
            partition_key=self.keys[serial],
            values={**put.values, SERIAL: serial},
        )

    def _replay(self, newest: int) -> Replay:
        """Return the comparisons of this state; the files that they decode are kept here."""
        replay = Replay(open_table=lambda: self.table, shape=self.shape)
        root = self.table.log.head().root
        replay.versions = [v for v in self.versions if v <= newest and is_readable(root, v)]
        replay.states = dict(self.states)
        replay.rows = dict(self.states[self.newest])
        replay.puts_by_serial, replay.keys = dict(self.puts), dict(self.keys)
        replay.deltas, replay.added = dict(self.deltas), dict(self.added)
        replay.more_by_serial, replay.restored = dict(self.more), list(self.restored)
        replay.decoded = self.decoded
        return replay

    def compare(self, chance: random.Random, *, is_whole: bool = False) -> None:
        """Compare visible rows at every readable version, and each kind of read at some."""
        findings = check_table(self.table)
        assert findings == [], f"version {self.newest} is damaged: {findings}"
        replay = self._replay(self.newest)
        moments = replay.moments()
        replay.compare_everywhere()
        self.comparisons += len(replay.versions)
        for _ in range(6 if is_whole else 1):
            version, moment = chance.choice(replay.versions), chance.choice(moments)
            replay.compare_read(version, moment)
            replay.compare_get(version, moment)
            replay.compare_history_view(version)
            self.comparisons += 3
            start, end = sorted((chance.choice(replay.versions), version))
            # A savepoint keeps a version before the oldest one, but not the changes after it
            if start - 1 >= self.table.log.head().root.oldest_version:
                replay.compare_changes(start, end)
                replay.compare_history_changes(start, end)
                self.comparisons += 2
        if is_whole:
            self._compare_narrowed(replay, chance)

    def _compare_narrowed(self, replay: Replay, chance: random.Random) -> None:
        for key in {key for key in self.keys.values() if key is not None}:
            version = chance.choice(replay.versions)
            earlier = [v for v in replay.versions if v <= version]
            if self.retained:
                # What a restore brought back, only commits tell, and some of them have expired
                last = max((v for v in self.restored if v <= version), default=0)
                earlier = [v for v in earlier if v >= last]
            after = chance.choice(earlier)
            replay.compare_narrowed(version, after, key)
            self.comparisons += 1

    def check_nothing_is_left_over(self, table: Table, clock: TrueClock) -> None:
        """Let all but the newest version expire; the store then holds just what that needs."""
        for name in table.snapshot_at().root.savepoints:
            table.release(name)
        clock.pass_us(WEEK_US)
        table.retain(window="1h", grace="1h")
        clock.pass_us(WEEK_US)
        table.retain(window="1h", grace="1h")
        left = left_overs(table, None)
        assert left == [], f"nothing needs these files of version {self.newest}: {left}"
        serials = sorted(table.read()[SERIAL].to_pylist())
        expected = self._visible_serials(self.newest)
        assert serials == expected, f"the last version shows rows {serials}, not {expected}"
        self.comparisons += 1


def _is_unfinishable(state: Snapshot, name: str) -> bool:
    """Return whether a business snapshot is neither finished nor open without rows."""
    business = state.root.business
    if name in business.finished:
        return False
    return name != business.open or bool(segments_due(state))
