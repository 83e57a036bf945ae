"""Plays a history on a table and on the model side by side."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from opal_lake.data.data_file import decode_file
from opal_lake.definition.ordering import encode_order
from opal_lake.definition.schema import DELETED, OFFSET, SEGMENT, Atomic, arrow_type
from opal_lake.engine.arrow_rows import ArrowRows
from opal_lake.engine.in_process import InProcess
from opal_lake.errors import ConflictError, InvalidInputError, NotFoundError
from opal_lake.log.lists import ingested_files
from opal_lake.log.pending import Selection
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable
from opal_lake.maintenance.compaction import Compaction
from opal_lake.operations.compact import Compact
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage.verified import read_verified
from opal_lake.table import Table
from opal_lake.write.discard import discard_pending
from opal_lake.write.ingest_job import (
    IngestRun,
    commit_ingest,
    start_ingest,
    write_inline,
    write_segments,
)
from opal_lake.write.metagen_job import (
    DiscardedError,
    MetaGenPlan,
    apply_to_pending,
    commit_metagen,
    start_metagen,
)
from tests.kit.executors import Interrupted
from tests.kit.model import ModelRow, RowId, visible
from tests.kit.strategies import ADDED_KINDS, DELTA, POOLS, SERIAL, Put, Shape, Step
from tests.opal_lake.clustering import zorder

_TARGET_BYTES = 12_000  # a handful of tiny files
_KEYS = ("2026-11-01", None, "2026-11-02")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Work that is done and not committed.

    It is the rows of an ingest, or those that a MetaGen took up, or a discard.

    An ingest `replaces` what is pending of these tokens.
    """

    commit: Callable[[], JobResult]
    token: str | None
    serials: tuple[int, ...]
    is_ingest: bool
    epoch: int
    is_inline: bool = False
    is_discard: bool = False
    replaces: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Play:
    """A table, the model next to it, and work in hand."""

    open_table: Callable[[], Table]
    shape: Shape
    table: Table = field(init=False)
    rows: dict[int, ModelRow] = field(default_factory=dict)
    puts_by_serial: dict[int, Put] = field(default_factory=dict)
    keys: dict[int, str | None] = field(default_factory=dict)
    tokens_by_serial: dict[int, str | None] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)  # of ingests whose rows were given up
    idle: dict[str, int] = field(default_factory=dict)
    versions: list[int] = field(default_factory=lambda: [0])
    states: dict[int, Mapping[int, ModelRow]] = field(default_factory=lambda: {0: {}})
    deltas: dict[RowId, Any] = field(default_factory=dict)
    restored: list[int] = field(default_factory=list)
    added: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # of a column that came later: since which version, and its type
    more_by_serial: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    hands: list[Hand] = field(default_factory=list)
    decoded: dict[str, pa.Table] = field(default_factory=dict)
    next_serial: int = 1

    def __post_init__(self) -> None:
        self.table = self.open_table()

    def play(self, step: Step) -> None:
        """Do the step to both."""
        match step.verb:
            case "ingest" | "begin_ingest" | "inline" | "begin_inline":
                self._begin(self._begin_ingest(step), step)
            case "metagen" | "begin_metagen":
                self._begin(self._begin_metagen(step), step)
            case "discard" | "begin_discard":
                self._begin(self._begin_discard(step), step)
            case "finish" if self.hands:
                self._finish(self.hands.pop(step.hand % len(self.hands)))
            case "compact":
                self._compact(step)
            case "zorder":
                self._zorder(step)
            case "restore":
                self._restore(step)
            case "add":
                self._add_column(step)
            case "reopen":
                self.table = self.open_table()

    def _begin(self, hand: Hand | None, step: Step) -> None:
        if hand is not None and step.verb.startswith("begin"):
            self.hands.append(hand)
        elif hand is not None:
            self._finish(hand)

    def _compact(self, step: Step) -> None:
        """Compact, minor or major with a floor, while other steps go on."""
        deltas = sorted({row.delta for row in self.rows.values()})
        floor = self.order_word(deltas[step.hand % len(deltas)]) if step.part and deltas else None
        table = self._interrupted(step)
        job = Compaction(table=table, asked=Compact(), floor=floor, target_bytes=_TARGET_BYTES)
        self._rewrite(job.run)

    def _rewrite(self, run: Callable[[], object]) -> None:
        """Commit the work; a restore in the meantime ends it."""
        epoch = len(self.restored)
        try:
            run()
        except ConflictError:
            if epoch == len(self.restored):
                raise  # of another reason
        self.see_versions()

    def _restore(self, step: Step) -> None:
        """Restore any version, also one that the newest does not continue."""
        root = self.table.snapshot_at().root
        readable = [version for version in self.versions if is_readable(root, version)]
        version, before = readable[step.hand % len(readable)], self.rows
        rehearsed = self.table.restore(version=version, dry_run=True)
        result = self.table.restore(version=version)
        assert rehearsed.counts == result.counts
        assert rehearsed.version is None
        shown = {row.row_id for row in visible(before.values())}
        again = {row.row_id for row in visible(self.states[version].values())}
        if result.version is None:
            assert shown == again
            return
        assert result.counts == {
            "rows_restored": len(again - shown),
            "rows_removed": len(shown - again),
        }
        self.rows = dict(self.states[version])
        self.see_versions()
        self.restored.append(result.version)

    def _add_column(self, step: Step) -> None:
        """One more, or one that is there already."""
        name, kind = (
            f"more {step.part or len(self.added)}",
            ADDED_KINDS[step.hand % len(ADDED_KINDS)],
        )
        is_there = name in self.added
        result = self.table.add_columns({name: self.added[name][1] if is_there else kind})
        assert (result.version is None) == is_there
        if result.version is not None:
            assert result.version == self.versions[-1] + 1
            self.added[name] = (result.version, kind)
            self.see_versions()

    def values_at(self, row: ModelRow, version: int) -> dict[str, Any]:
        """Return all values that a version shows of a row; younger columns are null."""
        later = [name for name, (since, _) in self.added.items() if since <= version]
        return {
            **row.values,
            **{name: self.more_by_serial[row.values[SERIAL]].get(name) for name in later},
        }

    def _interrupted(self, step: Step) -> Table:
        left = list(step.during)

        def others() -> None:
            self.see_versions()
            if left:
                self.play(left.pop(0))

        return replace(self.table, executor=Interrupted(after=others, attempt=f"0.{step.hand}"))

    def _zorder(self, step: Step) -> None:
        """Order by one to three columns, all or what is new, while other steps go on."""
        fields = [
            field
            for field in self.table.snapshot_at().spec.schema.fields
            if isinstance(field.type, Atomic)
        ]
        chosen = tuple(
            (fields + fields)[step.hand % len(fields) :][: min(len(fields), 1 + step.hand % 3)]
        )
        table = self._interrupted(step)
        self._rewrite(
            lambda: zorder(table, chosen, target_bytes=_TARGET_BYTES, whole=bool(step.part))
        )

    def see_versions(self) -> None:
        """Record the versions of a compaction, which commits as often as it likes."""
        new = range(self.versions[-1] + 1, self.table.log.head().version + 1)
        self.versions += new
        self.states.update((version, dict(self.rows)) for version in new)

    def order_word(self, moment: Any) -> int:
        delta = self.table.snapshot_at().spec.delta
        assert isinstance(delta.type, Atomic)
        return encode_order(moment, delta.type, name=delta.name)

    def is_readable(self, version: int, moment: Any) -> bool:
        """Return whether the floor of the version lets the event time be read."""
        floor = self.table.snapshot_at(version).root.floor
        return moment is None or floor is None or self.order_word(moment) >= floor

    def _begin_ingest(self, step: Step) -> Hand | None:
        try:
            run = start_ingest(self.table, Ingest([], token=step.token))
        except InvalidInputError:
            self._expect_withdrawn(step.token)
            return None
        if isinstance(run, JobResult):
            self._expect_repeat(run, step.token)
            self._expect_kept(run)
            return None
        assert step.token not in self._remembered(), (
            f"token {step.token} was applied in version {self.tokens[step.token or '']}, "
            "yet not found"
        )
        serials = tuple(range(self.next_serial, self.next_serial + len(step.puts)))
        self.next_serial += len(serials)
        self.puts_by_serial.update(zip(serials, step.puts, strict=True))
        key = _KEYS[run.number % len(_KEYS)]
        replaces = ("never", *self._pending_tokens()[: step.replaces]) if step.replaces else ()
        run = replace(run, asked=replace(run.asked, partition_key=key, replaces=replaces))
        self.keys.update(dict.fromkeys(serials, key))
        self.tokens_by_serial.update(dict.fromkeys(serials, step.token))
        rows, table = self._with_more(serials, run), self._cut(step)
        rows = pa.Table.from_batches(rows.to_batches(max_chunksize=2), rows.schema)
        is_inline, rule_outputs = step.verb.endswith("inline"), None
        if is_inline:
            outputs, rule_outputs = write_inline(table, rows, run)
        else:
            outputs = write_segments(table, rows, run)
        commit = partial(commit_ingest, self.table.log, run, outputs, rule_outputs)
        return Hand(
            commit=commit,
            token=step.token,
            serials=serials,
            is_ingest=True,
            epoch=len(self.restored),
            is_inline=is_inline,
            replaces=replaces,
        )

    def _cut(self, step: Step) -> Table:
        return replace(self.table, executor=InProcess(tasks=step.tasks))

    def arrow_rows(self, serials: Iterable[int]) -> pa.Table:
        """Rows as an ingest gets them."""
        puts = [(serial, self.puts_by_serial[serial]) for serial in serials]
        columns: dict[str, pa.Array] = {}
        for name, kind in self.shape.columns.items():
            values = [serial if name == SERIAL else put.values[name] for serial, put in puts]
            columns[name] = pa.array(values, arrow_type(Atomic(name=kind)))
        columns[DELETED] = pa.array([put.deleted for _, put in puts], pa.bool_())
        return pa.table(columns)

    def _with_more(self, serials: Iterable[int], run: IngestRun) -> pa.Table:
        """Return the rows with added columns; every third ingest has none of them."""
        names = (
            []
            if run.number % 3 == 0
            else [name for name in run.base.spec.schema.names if name in self.added]
        )
        pools = {name: (None, *POOLS[self.added[name][1]]) for name in names}
        more: dict[int, dict[str, Any]] = {}
        for serial in serials:
            more[serial] = {name: pool[serial % len(pool)] for name, pool in pools.items()}
        self.more_by_serial.update(more)
        rows = self.arrow_rows(serials)
        for name in names:
            kind = arrow_type(Atomic(name=self.added[name][1]))
            rows = rows.append_column(
                name, pa.array([values[name] for values in more.values()], kind)
            )
        return ArrowRows(given=rows).rows(run.base.spec)

    def _begin_metagen(self, step: Step) -> Hand | None:
        selection = self._selection(step)
        started = start_metagen(self.table, step.token, selection)
        if isinstance(started, JobResult):
            self._expect_done_or_idle(started, step.token, selection)
            return None
        plan = _part_of(started, step.part)
        segments = {*plan.segments}
        pending = tuple(
            serial
            for serial in self._pending(selection)
            if not step.part or self.rows[serial].row_id[0] in segments
        )
        outputs = apply_to_pending(self._cut(step), plan)
        assert outputs.counts["rows"] == len(pending)
        commit = partial(commit_metagen, self.table.log, plan, outputs, step.token)
        return Hand(
            commit=commit,
            token=step.token,
            serials=pending,
            is_ingest=False,
            epoch=len(self.restored),
        )

    def _selection(self, step: Step) -> Selection:
        """Return what to pick; a token has pending rows where one exists."""
        tokens = self._pending_tokens()
        if step.pick == 4 and tokens:
            return Selection(tokens=(tokens[step.hand % len(tokens)],))
        if step.pick in (2, 3):
            return Selection(partition_key=("2026-11-01", "2026-11-02")[step.pick - 2])
        return Selection(all=step.pick != 1)

    def _pending_tokens(self) -> list[str]:
        pending = (
            self.tokens_by_serial[serial]
            for serial, row in self.rows.items()
            if row.processed is None
        )
        return [*dict.fromkeys(token for token in pending if token is not None)]

    def _pending(self, selection: Selection) -> list[int]:
        """Return the serial numbers of the model's rows that a selection is about."""
        return [
            serial
            for serial, row in self.rows.items()
            if row.processed is None
            and (
                selection.all
                or (
                    row.partition_key == selection.partition_key
                    if selection.tokens is None
                    else self.tokens_by_serial[serial] in selection.tokens
                )
            )
        ]

    def _begin_discard(self, step: Step) -> Hand | None:
        """Begin a discard by a key or a token; without pending rows it is an error."""
        selection = self._selection(step)
        if selection.all:
            selection = Selection(tokens=("never",))
        serials = tuple(self._pending(selection))
        if not serials:
            token = None if selection.tokens is None else selection.tokens[0]
            try:
                self.table.discard(partition_key=selection.partition_key, token=token)
            except (InvalidInputError, NotFoundError):
                return None
            raise AssertionError(f"{selection} discards rows, but none of it is pending")
        commit = partial(discard_pending, self.table.log, self.table.log.head(), selection)
        return Hand(
            commit=commit,
            token=None,
            serials=serials,
            is_ingest=False,
            epoch=len(self.restored),
            is_discard=True,
        )

    def _finish_discard(self, hand: Hand) -> None:
        """Finish a discard, which does nothing if a MetaGen was faster."""
        left = [serial for serial in hand.serials if serial in self.rows]
        is_visible = any(self.rows[serial].processed is not None for serial in left)
        try:
            result = hand.commit()
        except ConflictError:
            assert is_visible or hand.epoch != len(self.restored)
            return
        assert not is_visible
        assert result.counts["rows"] == len(left)
        assert result.version == (self.versions[-1] + 1 if left else None)
        self._drop(left)
        self.see_versions()

    def _drop(self, serials: Iterable[int]) -> None:
        for serial in serials:
            del self.rows[serial]
            if (token := self.tokens_by_serial[serial]) is not None:
                self.withdrawn.add(token)

    def _finish(self, hand: Hand) -> None:
        if hand.is_discard:
            self._finish_discard(hand)
            return
        result = self._committed(hand)
        if result is None:
            return
        if hand.token is not None and hand.token in self._remembered():
            self._expect_repeat(result, hand.token)
            return
        replaced = self._pending(Selection(tokens=hand.replaces))
        if hand.replaces:
            assert result.version is None or result.counts["replaced"] == len(replaced)
        new = [
            serial
            for serial in hand.serials
            if hand.is_ingest or self.rows[serial].processed is None
        ]
        if not new and not hand.is_ingest:
            self._expect_idle(result, hand.token)
            return
        assert not result.repeated
        if not new and not replaced and hand.token is None:
            assert result.version is None, (
                f"{result} says that something was done, but nothing was left to do"
            )
            return
        assert result.version == self.versions[-1] + 1
        self._use_tokens(hand, result.version)
        self._drop(replaced)
        if hand.is_ingest:
            self._take_in(new, result.version)
        for serial in new if hand.is_inline or not hand.is_ingest else ():
            self.rows[serial] = replace(self.rows[serial], processed=result.version)
        self.see_versions()

    def _use_tokens(self, hand: Hand, version: int) -> None:
        """Take the job's token for used, and those of tries that it replaces and that are not."""
        remembered = self._remembered()
        unused = [token for token in hand.replaces if token not in remembered]
        for token in (*unused, hand.token):
            if token is not None:
                self.tokens.pop(token, None)
                self.tokens[token] = version
        self.withdrawn.discard(hand.token or "")
        self.withdrawn.update(unused)

    def _committed(self, hand: Hand) -> JobResult | None:
        """None where a restore, or a discard of rows that a MetaGen took up, ends the job."""
        try:
            result = hand.commit()
        except DiscardedError:
            assert any(serial not in self.rows for serial in hand.serials)
            return None
        except InvalidInputError:
            self._expect_withdrawn(hand.token)
            return None
        except ConflictError:
            if hand.epoch == len(self.restored):
                raise  # of another reason
            return None
        assert (
            hand.epoch == len(self.restored) or self.table.log.head().version == self.versions[-1]
        ), "it saw no restore, and committed"
        return result

    def _take_in(self, serials: list[int], version: int) -> None:
        """Row ids are the table's to give; everything else of a row the model knows."""
        snapshot = self.table.log.head()
        given: dict[int, RowId] = {}
        for file in ingested_files(self.table.storage, self.table.log.read_commit(version)):
            rows = self._decoded(file.path, snapshot)
            ids = zip(rows[SEGMENT].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
            given.update(
                zip(rows[snapshot.spec.schema.field(SERIAL).physical].to_pylist(), ids, strict=True)
            )
        assert sorted(given) == sorted(serials), (
            f"version {version} holds rows {sorted(given)}, put were {sorted(serials)}"
        )
        assert len({*given.values()} | {*self.deltas}) == len(given) + len(self.deltas), (
            f"version {version} gives out a row id twice"
        )
        for serial in serials:
            put = self.puts_by_serial[serial]
            self.rows[serial] = ModelRow(
                key=tuple(put.values[name] for name in self.shape.keys),
                delta=put.values[DELTA],
                ties=tuple(put.values[name] for name in self.shape.ties),
                row_id=given[serial],
                deleted=put.deleted,
                partition_key=self.keys[serial],
                values={**put.values, SERIAL: serial},
            )
            self.deltas[given[serial]] = put.values[DELTA]

    def _remembered(self) -> dict[str, int]:
        return dict([*self.tokens.items()][-int(self.shape.properties["token_keep"]) :])

    def _expect_repeat(self, result: JobResult, token: str | None) -> None:
        assert result.repeated
        assert token in self._remembered()
        assert result.version == self._remembered()[token]

    def _expect_withdrawn(self, token: str | None) -> None:
        """Expect that a repeat of an ingest is refused: the table does not have its rows."""
        assert token in self._remembered()
        assert token in self.withdrawn

    def _expect_kept(self, repeat: JobResult) -> None:
        """Expect that a repeat reports the ingest as done."""
        if self.restored or repeat.token not in self.withdrawn or repeat.version is None:
            return
        assert repeat.version is not None
        is_expired = repeat.version < self.table.log.head().root.oldest_version
        has_rows = any(self.tokens_by_serial[serial] == repeat.token for serial in self.rows)
        assert is_expired or has_rows, f"{repeat} repeats an ingest whose rows were discarded"

    def _expect_done_or_idle(
        self, result: JobResult, token: str | None, selection: Selection
    ) -> None:
        if token in self._remembered():
            self._expect_repeat(result, token)
            return
        if token not in self.idle:
            pending = self._pending(selection)
            assert not pending, f"{result} says that nothing is pending, and rows {pending} are"
        self._expect_idle(result, token)

    def _expect_idle(self, result: JobResult, token: str | None) -> None:
        """Expect the newest version as the result where nothing is left to process."""
        assert result.repeated == (token in self.idle)
        assert result.version == self.idle.get(token or "", self.versions[-1])
        if token is not None:
            self.idle[token] = result.version

    def _decoded(self, path: str, snapshot: Snapshot) -> pa.Table:
        """Return a data file, read once a replay."""
        if path not in self.decoded:
            file = snapshot.files[path]
            self.decoded[path] = decode_file(
                read_verified(snapshot.storage, file), snapshot.spec, None, path, rows=file.rows
            )
        return self.decoded[path]


def _part_of(plan: MetaGenPlan, part: int) -> MetaGenPlan:
    chosen = plan.segments[part - 1 :: 2] if part else plan.segments
    return replace(
        plan,
        segments=chosen,
        files=tuple(file for file in plan.files if not {*chosen}.isdisjoint(file.segments)),
    )
