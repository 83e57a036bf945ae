"""Plays a history on a table and on the model side by side, and compares every moment of both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from opal_lake import layout
from opal_lake.compaction import CompactOptions, compact
from opal_lake.data_file import decode_file
from opal_lake.errors import NotFoundError
from opal_lake.ingest import IngestTask, ingest_rows
from opal_lake.ingest_job import IngestRun, commit_ingest
from opal_lake.inline import inline_rows
from opal_lake.job import JobResult
from opal_lake.key_hash import hash_keys
from opal_lake.key_store.entries import Entries, concat_entries
from opal_lake.metagen import entries_of_rows, rule_columns
from opal_lake.metagen_job import MetaGenPlan, commit_metagen
from opal_lake.ordering import encode_order
from opal_lake.read import event_time_of, file_reads, hidden_rows, plan_read
from opal_lake.rewrite_task import Rewritten
from opal_lake.ruled import Ruled, slot_writer
from opal_lake.schema import DELETED, OFFSET, SEGMENT, Atomic, Field, arrow_type
from opal_lake.slot import Slot, process_slot
from opal_lake.snapshot import Snapshot, ingested_files
from opal_lake.storage.verified import read_verified
from opal_lake.table import Table
from opal_lake.testing.model import ModelRow, RowId, visible
from opal_lake.testing.strategies import DELTA, SERIAL, Put, Shape, Step, neighbours_of
from opal_lake.zorder import ZOrderWork, arrange_here, zorder
from opal_lake.zorder_plan import ZOrderOptions

_TARGET_BYTES = 12_000  # a handful of tiny files
_KEYS = ("2026-11-01", None, "2026-11-02")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Work that is done and not committed: the rows of an ingest, or the rows that a MetaGen took up."""

    commit: Callable[[], JobResult]
    token: str | None
    serials: tuple[int, ...]
    is_ingest: bool
    is_inline: bool = False


@dataclass(slots=True, kw_only=True)
class Replay:
    """A table, the model beside it, and what is in hand."""

    open_table: Callable[[], Table]
    shape: Shape
    table: Table = field(init=False)
    rows: dict[int, ModelRow] = field(default_factory=dict)
    taken: dict[int, Put] = field(default_factory=dict)
    keys: dict[int, str | None] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=lambda: [0])
    hands: list[Hand] = field(default_factory=list)
    decoded: dict[str, pa.Table] = field(default_factory=dict)
    next_serial: int = 1

    def __post_init__(self) -> None:
        self.table = self.open_table()

    def play(self, step: Step) -> None:
        """Do the step to both."""
        match step.verb:
            case "ingest" | "begin_ingest":
                self._begin(self._begin_ingest(step), step)
            case "inline" | "begin_inline":
                self._begin(self._begin_ingest(step), step)
            case "metagen" | "begin_metagen":
                self._begin(self._begin_metagen(step), step)
            case "finish" if self.hands:
                self._finish(self.hands.pop(step.hand % len(self.hands)))
            case "compact":
                self._compact(step)
            case "zorder":
                self._zorder(step)
            case "reopen":
                self.table = self.open_table()

    def _begin(self, hand: Hand | None, step: Step) -> None:
        if hand is not None and step.verb.startswith("begin"):
            self.hands.append(hand)
        elif hand is not None:
            self._finish(hand)

    def _compact(self, step: Step) -> None:
        """Minor, or major with the floor at some row's delta. Other steps go on while its tasks have run and nothing is committed."""
        deltas = sorted({row.delta for row in self.rows.values()})
        floor = self.order_word(deltas[step.hand % len(deltas)]) if step.part and deltas else None
        left = list(step.during)

        def spread(task: Callable[[Any, str], Any], works: Sequence[Any]) -> list[Any]:
            found = [task(work, f"{len(left)}.{step.hand}") for work in works]
            self._see_versions()
            if left:
                self.play(left.pop(0))
            return found

        options = CompactOptions(mode="minor" if floor is None else "major", floor=floor, target_bytes=_TARGET_BYTES)
        compact(self.table, options, spread)
        self._see_versions()

    def _zorder(self, step: Step) -> None:
        """By one to three columns, all or what is new; other steps go on as in a compaction."""
        fields = [field for field in self.table.snapshot_at().spec.schema.fields if isinstance(field.type, Atomic)]
        chosen = tuple((fields + fields)[step.hand % len(fields) :][: min(len(fields), 1 + step.hand % 3)])
        left = list(step.during)

        def arrange(work: ZOrderWork) -> list[Rewritten]:
            found = arrange_here(work)
            if left:
                self.play(left.pop(0))
            return found

        options = ZOrderOptions(columns=tuple(field.id for field in chosen), target_bytes=_TARGET_BYTES, whole=bool(step.part))
        zorder(self.table, chosen, options, arrange)
        self._see_versions()

    def _see_versions(self) -> None:
        """A compaction commits as often as it likes."""
        self.versions += range(self.versions[-1] + 1, self.table.log.head().version + 1)

    def order_word(self, moment: Any) -> int:
        delta = self.table.snapshot_at().spec.delta
        assert isinstance(delta.type, Atomic)
        return encode_order(moment, delta.type, name=delta.name)

    def is_readable(self, version: int, moment: Any) -> bool:
        """Whether the floor of the version lets the event time be read."""
        floor = self.table.snapshot_at(version).root.floor
        return moment is None or floor is None or self.order_word(moment) >= floor

    def _begin_ingest(self, step: Step) -> Hand | None:
        run = self.table.start_ingest(step.token, "fail")
        if isinstance(run, JobResult):
            self._expect_repeat(run, step.token)
            return None
        assert step.token not in self._remembered(), (
            f"token {step.token} was applied in version {self.tokens[step.token or '']}, yet not found"
        )
        serials = tuple(range(self.next_serial, self.next_serial + len(step.puts)))
        self.next_serial += len(serials)
        self.taken.update(zip(serials, step.puts, strict=True))
        run = replace(run, partition_key=_KEYS[run.number % len(_KEYS)])
        self.keys.update(dict.fromkeys(serials, run.partition_key))
        if step.verb.endswith("inline"):
            return self._inline(run, serials, step)
        log, outputs = self.table.log, [ingest_rows(batches, task) for task, batches in self._tasks(run, serials, step.tasks)]
        return Hand(commit=lambda: commit_ingest(log, run, outputs), token=step.token, serials=serials, is_ingest=True)

    def _inline(self, run: IngestRun, serials: tuple[int, ...], step: Step) -> Hand:
        """Each task gets the rows of its slot, as the shuffle brings them."""
        log, writer, rows = self.table.log, slot_writer(run.base, run.number, self.table.cache), self.arrow_rows(serials)
        keys = [self.table_field(name) for name in self.shape.keys]
        hashes = hash_keys([rows[field.name] for field in keys], [field.type for field in keys if isinstance(field.type, Atomic)])
        share = (hashes[:, 0] >> np.uint64(32)).astype(np.int64) * step.tasks >> 32
        outputs = []
        for place in range(step.tasks):
            task = IngestTask(storage=self.table.storage, spec=run.base.spec, number=run.number, task=place, attempt="0")
            slot = Slot(number=place, count=step.tasks, stem=task.stem(place))
            outputs.append(inline_rows(rows.filter(pa.array(share == place)).to_batches(max_chunksize=2), task, writer, slot))
        ruled = Ruled(writer=writer, outputs=tuple(output.ruled for output in outputs), slots=step.tasks)
        ingested = [output.ingested for output in outputs]
        commit = partial(commit_ingest, log, run, ingested, ruled)
        return Hand(commit=commit, token=step.token, serials=serials, is_ingest=True, is_inline=True)

    def table_field(self, name: str) -> Field:
        return self.table.snapshot_at().spec.schema.field(name)

    def _tasks(self, run: IngestRun, serials: tuple[int, ...], tasks: int) -> Iterator[tuple[IngestTask, list[pa.RecordBatch]]]:
        for task in range(tasks):
            mine = serials[task::tasks]
            yield (
                IngestTask(storage=self.table.storage, spec=run.base.spec, number=run.number, task=task, attempt="0"),
                self.arrow_rows(mine).to_batches(max_chunksize=2) if mine else [],
            )

    def arrow_rows(self, serials: Iterable[int]) -> pa.Table:
        """Rows as an ingest gets them."""
        puts = [(serial, self.taken[serial]) for serial in serials]
        columns = {
            name: pa.array([serial if name == SERIAL else put.values[name] for serial, put in puts], arrow_type(Atomic(name=kind)))
            for name, kind in self.shape.columns.items()
        }
        return pa.table(columns | {DELETED: pa.array([put.deleted for _, put in puts], pa.bool_())})

    def _begin_metagen(self, step: Step) -> Hand | None:
        log, cache, started = self.table.log, self.table.cache, self.table.start_metagen(step.token)
        if isinstance(started, JobResult):
            self._expect_repeat(started, step.token)
            return None
        plan, base = _part_of(started, step.part), started.base
        segments = {*plan.segments}
        pending = tuple(
            serial for serial, row in self.rows.items() if row.processed is None and (not step.part or row.row_id[0] in segments)
        )
        found = [entries_of_rows(self._decoded(file.path, base).select(rule_columns(base.spec)), base.spec) for file in plan.files]
        assert sum(map(len, found)) == len(pending)
        parts = split_by_hash(concat_entries(found), step.tasks) if found else []
        writer = slot_writer(base, plan.number, cache)
        slots = [Slot(number=at, count=step.tasks, stem=layout.job_file_name(plan.number, at, "0")) for at in range(step.tasks)]
        outputs = tuple(process_slot(part, writer, slot) for part, slot in zip(parts, slots, strict=False))
        commit = partial(commit_metagen, log, plan, Ruled(writer=writer, outputs=outputs, slots=step.tasks), step.token)
        return Hand(commit=commit, token=step.token, serials=pending, is_ingest=False)

    def _finish(self, hand: Hand) -> None:
        result = hand.commit()
        if hand.token is not None and hand.token in self._remembered():
            self._expect_repeat(result, hand.token)
            return
        assert not result.repeated
        new = [serial for serial in hand.serials if hand.is_ingest or self.rows[serial].processed is None]
        if not new and hand.token is None and (hand.serials or hand.is_ingest):
            assert result.version is None, f"{result} says that something was done, but nothing was left to do"
            return
        assert result.version == self.versions[-1] + 1
        self.versions.append(result.version)
        if hand.token is not None:
            self.tokens.pop(hand.token, None)
            self.tokens[hand.token] = result.version
        if hand.is_ingest:
            self._take_in(new, result.version)
        for serial in new if hand.is_inline or not hand.is_ingest else ():
            self.rows[serial] = replace(self.rows[serial], processed=result.version)

    def _take_in(self, serials: list[int], version: int) -> None:
        """Row ids are the table's to give; everything else of a row the model knows."""
        snapshot = self.table.log.head()
        given: dict[int, RowId] = {}
        for file in ingested_files(self.table.storage, self.table.log.read_commit(version)):
            rows = self._decoded(file.path, snapshot)
            ids = zip(rows[SEGMENT].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
            given.update(zip(rows[snapshot.spec.schema.field(SERIAL).physical].to_pylist(), ids, strict=True))
        assert sorted(given) == sorted(serials), f"version {version} holds rows {sorted(given)}, put were {sorted(serials)}"
        used = {row.row_id for row in self.rows.values()}
        assert len({*given.values()} | used) == len(given) + len(used), f"version {version} gives out a row id twice"
        for serial in serials:
            put = self.taken[serial]
            self.rows[serial] = ModelRow(
                key=tuple(put.values[name] for name in self.shape.keys),
                delta=put.values[DELTA],
                ties=tuple(put.values[name] for name in self.shape.ties),
                row_id=given[serial],
                deleted=put.deleted,
                partition_key=self.keys[serial],
                values={**put.values, SERIAL: serial},
            )

    def _remembered(self) -> dict[str, int]:
        return dict([*self.tokens.items()][-int(self.shape.properties["token_keep"]) :])

    def _expect_repeat(self, result: JobResult, token: str | None) -> None:
        assert result.repeated
        assert token in self._remembered()
        assert result.version == self._remembered()[token]

    def _decoded(self, path: str, snapshot: Snapshot) -> pa.Table:
        """A data file, read once a replay."""
        if path not in self.decoded:
            self.decoded[path] = decode_file(read_verified(snapshot.storage, snapshot.files[path]), snapshot.spec, None, path)
        return self.decoded[path]

    def moments(self) -> list[Any]:
        """Every event time that could make a difference: each delta, just before and just after it, and the end of time."""
        deltas = {row.delta for row in self.rows.values()}
        return [None, *sorted({moment for delta in deltas for moment in (delta, *neighbours_of(delta, self.shape.delta))})]

    def compare_everywhere(self) -> None:
        """Every version by every event time: the rows that a read plan lets through are the model's."""
        moments = self.moments()
        for version in self.versions:
            snapshot = self.table.snapshot_at(version)
            fresh = any(row.processed == version for row in self.rows.values())
            for moment in moments if fresh or version == self.versions[-1] else moments[:1] + moments[-2:-1]:
                if not self.is_readable(version, moment):
                    self._expect_unreadable(version, moment)
                    continue
                found = self.visible_ids(snapshot, moment)
                wanted = [row.row_id for row in visible(self.rows.values(), version, moment)]
                assert found == wanted, f"version {version}, event time {moment!r}: visible are {found}, should be {wanted}"

    def _expect_unreadable(self, version: int, moment: Any) -> None:
        said = ""
        try:
            self.table.read(version=version, event_time=moment)
        except NotFoundError as error:
            said = str(error)
        assert "oldest readable" in said, f"version {version} at {moment!r}, before its floor: {said!r}"

    def visible_ids(self, snapshot: Snapshot, event_time: Any) -> list[RowId]:
        """The row ids that the read plan and its filter let through."""
        plan = plan_read(snapshot, event_time_of(snapshot, event_time))
        found: list[RowId] = []
        for part in file_reads(plan):
            rows = self._decoded(part.file.path, snapshot)
            hidden = hidden_rows(rows, part)
            assert part.file not in plan.plain or not hidden.any(), f"{part.file.path} is to be scanned plain, but has hidden rows"
            found += zip(rows[SEGMENT].to_numpy()[~hidden].tolist(), rows[OFFSET].to_numpy()[~hidden].tolist(), strict=True)
        return sorted(found)

    def compare_read(self, version: int | None, event_time: Any, timestamp: Any = None) -> None:
        """A whole read through the public face: the same rows with the same values."""
        at = self.table.snapshot_at(version, timestamp).version
        if not self.is_readable(at, event_time):
            return self._expect_unreadable(at, event_time)
        found = self.table.read(version=version, timestamp=timestamp, event_time=event_time).to_pylist()
        wanted = [dict(row.values) for row in visible(self.rows.values(), at, event_time)]
        by_serial = {row[SERIAL]: row for row in found}
        assert len(by_serial) == len(found)
        assert by_serial == {row[SERIAL]: row for row in wanted}

    def compare_narrowed(self, version: int, after: int, partition_key: str) -> None:
        """Only what came under a partition key, and only what came after a version."""
        rows = visible(self.rows.values(), version)
        later = [row for row in rows if row.processed is not None and row.processed > after]
        self._compare_serials(self.table.read(version=version, after=after), later)
        if partition_key in self.table.snapshot_at(version).partitions:
            ours = [row for row in rows if row.partition_key == partition_key]
            self._compare_serials(self.table.read(version=version, partition_key=partition_key), ours)

    def _compare_serials(self, found: pa.Table, wanted: Iterable[ModelRow]) -> None:
        assert sorted(found[SERIAL].to_pylist()) == sorted(row.values[SERIAL] for row in wanted)


def _part_of(plan: MetaGenPlan, part: int) -> MetaGenPlan:
    chosen = plan.segments[part - 1 :: 2] if part else plan.segments
    return replace(plan, segments=chosen, files=tuple(file for file in plan.files if not {*chosen}.isdisjoint(file.segments)))


def split_by_hash(entries: Entries, parts: int) -> list[Entries]:
    """The shares of so many tasks: every key in one of them."""
    share = (entries.high >> np.uint64(32)).astype(np.int64) * parts >> 32
    return [entries.take(share == place) for place in range(parts)]
