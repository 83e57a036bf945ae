"""What is right in a life: the model, folded from the commits in their order."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opal_lake.inspect.check import check_table
from opal_lake.job.job import JobResult
from opal_lake.log.commit import Commit
from opal_lake.log.lists import ingested_files
from opal_lake.log.version_window import is_readable
from opal_lake.spec.schema import DELETED, OFFSET, SEGMENT, Atomic, arrow_type
from opal_lake.table import Table
from opal_lake.testing.clocks import TrueClock
from opal_lake.testing.model import ModelRow, RowId, visible
from opal_lake.testing.replay import Replay
from opal_lake.testing.strategies import SERIAL, Put, Shape
from tests.crash.left_overs import left_overs

if TYPE_CHECKING:
    from tests.raced.life import Job

WEEK_US = 7 * 86_400_000_000


class Judge:
    """Follows the log by a table of its own, whose store never fails, and compares it."""

    def __init__(self, table: Table, shape: Shape) -> None:
        self.table = table
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
        self.more |= {serial: {} for serial in numbered}
        columns = {
            name: pa.array(
                [s if name == SERIAL else put.values[name] for s, put in numbered.items()],
                arrow_type(Atomic(name=kind)),
            )
            for name, kind in self.shape.columns.items()
        }
        deleted = pa.array([put.deleted for put in puts], pa.bool_())
        job.arguments["rows"] = pa.table({**columns, DELETED: deleted})

    def promised(self, token: str, result: JobResult) -> None:
        self.promises.append((token, result))

    def see(self, jobs: Iterable["Job"]) -> None:
        """Fold what was committed since the last look, and hold every job to its answer."""
        by_token = {job.token: job for job in jobs}
        for version in range(self.newest + 1, self.table.log.head().version + 1):
            self._fold(self.table.log.read_commit(version), by_token)
        self._hold_to_promises()
        for job in by_token.values():
            self._check_outcome(job)

    def _hold_to_promises(self) -> None:
        for token, result in self.promises:
            if result.operation in ("ingest", "metagen", "discard"):
                assert result.version in self.states, (token, result)
            if token in self.committed:
                assert result.version == self.committed[token], (token, result)
        self.promises.clear()

    def _check_outcome(self, job: "Job") -> None:
        if job.outcome == "failed":
            assert job.token not in self.committed, f"{job} failed, and is committed"
        if job.verb == "read" and "rows" in job.arguments:
            expected = self._visible_serials(job.arguments.pop("version"))
            assert sorted(job.arguments.pop("rows")) == expected
            self.comparisons += 1

    def _visible_serials(self, version: int) -> list[int]:
        return sorted(row.values[SERIAL] for row in visible(self.states[version].values()))

    def _fold(self, commit: Commit, by_token: Mapping[str, "Job"]) -> None:
        """Take a commit for what it says: which job it is of, and which segments it is about."""
        rows = dict(self.states[self.newest])
        actions = commit.actions
        job = by_token.get(commit.token or "")
        if commit.token is not None:
            assert commit.token not in self.committed, f"{commit.token} is committed twice"
            assert job is not None
            self.committed[commit.token] = commit.version
        if actions.restored is not None:
            rows = dict(self.states[actions.restored.version])
            self.restored.append(commit.version)
        if actions.spec is not None:
            self._see_columns(commit)
        if commit.operation == "ingest":
            assert job is not None
            rows |= self._rows_of(commit, job)
        for discarded in actions.discarded:
            own = [s for s, row in rows.items() if row.row_id[0] == discarded.segment.id]
            assert all(rows[serial].processed is None for serial in own), "visible rows discarded"
            rows = {serial: row for serial, row in rows.items() if serial not in own}
        processed = {*actions.processed}
        for serial, row in rows.items():
            if row.row_id[0] in processed:
                assert row.processed is None, f"version {commit.version} publishes a row twice"
                rows[serial] = replace(row, processed=commit.version)
        if commit.operation == "metagen" and job is not None:
            self._check_selection(job, rows, processed)
        self.states[commit.version] = rows

    def _check_selection(
        self, job: "Job", rows: Mapping[int, ModelRow], processed: set[int]
    ) -> None:
        """A MetaGen publishes what it was asked for, and nothing else."""
        own = [row for row in rows.values() if row.row_id[0] in processed]
        keys = {row.partition_key for row in own}
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

    def _see_columns(self, commit: Commit) -> None:
        assert commit.actions.spec is not None
        for field in commit.actions.spec.schema.fields:
            if field.name not in self.shape.columns and field.name not in self.added:
                self.added[field.name] = (commit.version, "string")

    def _rows_of(self, commit: Commit, job: "Job") -> dict[int, ModelRow]:
        """Return the rows that an ingest brought: all of the job's, each with a row id of its own."""
        ids: dict[int, RowId] = {}
        snapshot = self.table.log.at(commit.version)
        for file in ingested_files(self.table.storage, commit):
            rows = self._replay(commit.version)._decoded(file.path, snapshot)
            physical = snapshot.spec.schema.field(SERIAL).physical
            pairs = zip(rows[SEGMENT].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
            ids |= dict(zip(rows[physical].to_pylist(), pairs, strict=True))
        assert sorted(ids) == [*job.serials], f"{job.token} committed rows {sorted(ids)}"
        assert not {*ids.values()} & {*self.deltas}, f"{job.token} gives out a row id twice"
        assert len({*ids.values()}) == len(ids)
        assert commit.partition_key == job.arguments["partition_key"]
        return {serial: self._row(serial, row_id) for serial, row_id in ids.items()}

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
        assert check_table(self.table) == []
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
            if is_readable(self.table.log.head().root, start - 1):
                replay.compare_changes(start, end)
                replay.compare_history_changes(start, end)
                self.comparisons += 2
        if is_whole:
            self._compare_narrowed(replay, chance)

    def _compare_narrowed(self, replay: Replay, chance: random.Random) -> None:
        for key in {key for key in self.keys.values() if key is not None}:
            version = chance.choice(replay.versions)
            after = chance.choice([v for v in replay.versions if v <= version])
            replay.compare_narrowed(version, after, key)
            self.comparisons += 1

    def check_nothing_is_left_over(self, table: Table, clock: TrueClock) -> None:
        """Let all but the newest version expire; the store then holds what that needs, and no more."""
        for name in table.snapshot_at().root.savepoints:
            table.release(name)
        clock.pass_us(WEEK_US)
        table.retain(window="1h", grace="1h")
        clock.pass_us(WEEK_US)
        table.retain(window="1h", grace="1h")
        assert left_overs(table, None) == []
        serials = sorted(table.read()[SERIAL].to_pylist())
        assert serials == self._visible_serials(self.newest)
        self.comparisons += 1
