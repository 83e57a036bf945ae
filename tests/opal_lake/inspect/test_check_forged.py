"""Tables whose checksums all hold and whose content is wrong: each invariant is found out by its number, and at its file."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.data.data_file import FileEncoder, decode_file, encode_file
from opal_lake.data.outside_ids import RowBases
from opal_lake.data.segment import DataFile, DiscardedSegment, Segment
from opal_lake.definition.schema import OFFSET, OUTSIDE_ID, SEGMENT, UPDATED_AT
from opal_lake.errors import FormatError
from opal_lake.events.bitmap import decode_base, encode_base
from opal_lake.events.segment_log import NO_ROW, Events, RowIds, decode_events, encode_events
from opal_lake.inspect.check.files import check_row_bases
from opal_lake.inspect.check.finding import Findings
from opal_lake.key_store.entries import Entries, concat_entries, sorted_entries
from opal_lake.key_store.run import decode_run, encode_run
from opal_lake.log import visibility
from opal_lake.log.checkpoint import (
    decode_root,
    encode_root,
    read_checkpoint,
    write_checkpoint,
)
from opal_lake.log.commit import (
    Actions,
    Commit,
    canonical_json,
    decode_commit,
    encode_commit,
    seal,
    unseal,
)
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.sections import InlinePart, Sections, decode_section, encode_section
from opal_lake.log.snapshot import Snapshot
from opal_lake.maintenance import rewrite_job
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows


@dataclass(slots=True)
class Forger:
    """A table as a dictionary of files, to be written over as no table allows."""

    files: dict[str, bytes]

    def table(self) -> Table:
        storage = MemoryStorage()
        for path, data in self.files.items():
            storage.put_if_absent(path, data)
        log = CommitLog(storage=storage, clock=ManualClock(), ids=CountingIds())
        return Table(log=log, cache=MemoryRuns(storage=storage))

    def commit(self, version: int, change: Callable[[Commit], Commit]) -> str:
        path = layout.commit_path(version)
        self.files[path] = encode_commit(change(decode_commit(self.files[path], path)))
        return path

    def actions(self, version: int, change: Callable[[Actions], Actions]) -> str:
        return self.commit(version, lambda commit: replace(commit, actions=change(commit.actions)))

    def json(self, version: int, change: Callable[[Any], Any]) -> str:
        """Change the JSON of a commit, also to what no commit can be."""
        path = layout.commit_path(version)
        body = unseal(self.files[path], path)
        change(body)
        self.files[path] = seal(canonical_json(body))
        return path

    def log(self, version: int, change: Callable[[Events], Events], **claims: Any) -> str:
        def rewrite(actions: Actions) -> Actions:
            log = actions.add_logs[0]
            events = change(
                decode_events(self.files[log.path], log.path, log.events, with_next=True)
            )
            data = self.files[log.path] = encode_events(events)
            least, greatest = int(events.until.min()), int(events.until.max())
            fields = {
                "events": len(events),
                "least_until": least,
                "greatest_until": greatest,
            } | claims
            return replace(
                actions, add_logs=(replace(log, size=len(data), crc32=zlib.crc32(data), **fields),)
            )

        return (
            decode_commit(self.files[self.actions(version, rewrite)], "").actions.add_logs[0].path
        )

    def run(self, version: int, change: Callable[[Entries], Entries], **claims: Any) -> str:
        def rewrite(actions: Actions) -> Actions:
            run = actions.add_runs[0]
            entries = change(decode_run(self.files[run.path], run.path))
            data = self.files[run.path] = encode_run(entries)
            ends = {
                "hash_low": int(entries.high[0]),
                "hash_high": int(entries.high[-1]),
                "greatest_delta": int(entries.delta.max()),
            }
            fields = {"entries": len(entries)} | ends | claims
            return replace(
                actions, add_runs=(replace(run, size=len(data), crc32=zlib.crc32(data), **fields),)
            )

        return (
            decode_commit(self.files[self.actions(version, rewrite)], "").actions.add_runs[0].path
        )

    def data(self, version: int, change: Callable[[pa.Table], pa.Table], **claims: Any) -> str:
        spec = decode_commit(self.files[layout.commit_path(0)], "").actions.spec
        assert spec is not None

        def rewrite(actions: Actions) -> Actions:
            file = actions.ingested[0]
            encoded = encode_file(
                change(decode_file(self.files[file.path], spec, None, file.path, rows=file.rows)),
                spec,
            )
            data = self.files[file.path] = bytes(encoded.data)
            fields = {"rows": encoded.rows, "bounds": encoded.bounds} | claims
            return replace(
                actions,
                ingested=(
                    replace(file, size=len(data), crc32=zlib.crc32(data), **fields),
                    *actions.ingested[1:],
                ),
            )

        return (
            decode_commit(self.files[self.actions(version, rewrite)], "").actions.ingested[0].path
        )

    def stored(self, version: int, change: Callable[[pa.Table], pa.Table]) -> str:
        """Change all columns of the first file that a commit brings."""
        spec = decode_commit(self.files[layout.commit_path(0)], "").actions.spec
        assert spec is not None
        changed: list[DataFile] = []

        def rewrite(actions: Actions) -> Actions:
            files = actions.rewrite.add if actions.rewrite else actions.ingested
            rows = change(pq.read_table(pa.BufferReader(self.files[files[0].path])))
            encoder = FileEncoder(spec=spec, has_outside_ids=OUTSIDE_ID in rows.column_names)
            encoder.add(rows)
            encoded = encoder.finish()
            data = self.files[files[0].path] = bytes(encoded.data)
            facts = {
                name: getattr(encoded, name) for name in ("crc32", "footer_bytes", "footer_crc32")
            }
            changed.append(replace(files[0], size=len(data), **facts))
            if actions.rewrite:
                return replace(
                    actions, rewrite=replace(actions.rewrite, add=(*changed, *files[1:]))
                )
            return replace(actions, ingested=(*changed, *files[1:]))

        self.actions(version, rewrite)
        return changed[0].path

    def root(self, change: Callable[[Any, Sections], Any]) -> str:
        path = next(path for path in self.files if layout.checkpoint_version(path) is not None)
        root, sections = decode_root(self.files[path], path)
        self.files[path] = encode_root(change(root, sections), sections)
        return path

    def section(
        self, sections: Sections, name: str, change: Callable[[list[Any]], list[Any]]
    ) -> None:
        """Small lists are in the root, each in one part."""
        (part,) = sections[name]
        assert isinstance(part, InlinePart)
        assert isinstance(sections, dict)
        data = encode_section(
            change(decode_section(part.data, name, lambda item: item)), lambda item: item
        )
        sections[name] = (replace(part, data=data),)


SEGMENT_1, SEGMENT_3, SEGMENT_5 = 1 << 32, 3 << 32, 5 << 32
FIRST_SEGMENT = Segment(id=SEGMENT_1, rows=4, group=0)
VISIBLE_SEGMENT = replace(FIRST_SEGMENT, row_base=0, visible_since=1)


@pytest.fixture
def forger(monkeypatch: pytest.MonkeyPatch) -> Forger:
    """Versions 1, 3, 5 ingest and 2, 4 process; version 5 is pending, 4 has a checkpoint."""
    monkeypatch.setattr(visibility, "FOLD_AT_LOGS", 1)
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=4, group_rows=20)
    for batch in (
        [("a", 1, 1), ("b", 1, 1), ("a", 2, 2), ("c", 5, 5)],
        [("b", 2, None), ("a", 2, 3), ("c", 4, 4), ("d", 1, 1)],
    ):
        table.ingest(*rows(batch), token=f"batch {len(batch)}{batch[0]}")
        table.metagen()
    table.ingest(*rows([("e", 1, 1)]))
    return Forger({stored.path: storage.get(stored.path) for stored in storage.list("")})


def events(*extra: tuple[int, int, int]) -> Callable[[Events], Events]:
    """The events with more of them, sorted by row."""

    def change(there: Events) -> Events:
        all_rows = sorted(
            {
                *zip(
                    there.segment.tolist(), there.offset.tolist(), there.until.tolist(), strict=True
                ),
                *extra,
            }
        )
        segment, offset, until = zip(*all_rows, strict=True)
        return Events(
            segment=np.array(segment, np.int64),
            offset=np.array(offset, np.int32),
            until=np.array(until, np.int64),
        )

    return change


def leading_to(segment: int, offset: int) -> Callable[[Events], Events]:
    """The events, all followed by this row."""

    def change(there: Events) -> Events:
        assert there.next_rows is not None
        count = len(there)
        return replace(
            there,
            next_rows=RowIds(
                segment=np.full(count, segment), offset=np.full(count, offset, np.int32)
            ),
        )

    return change


@pytest.mark.parametrize("segment, offset", [(NO_ROW, 3), (SEGMENT_1, NO_ROW), (SEGMENT_1, -5)])
def test_what_follows_is_a_row_or_none(segment: int, offset: int, forger: Forger) -> None:
    log = decode_commit(forger.files[layout.commit_path(4)], "").actions.add_logs[0]
    there = decode_events(forger.files[log.path], log.path, log.events, with_next=True)
    data = encode_events(leading_to(segment, offset)(there))
    with pytest.raises(
        FormatError, match="it has a next row with an offset below 0, or an offset without a row"
    ):
        decode_events(data, log.path, len(there), with_next=True)
    assert len(decode_events(data, log.path, len(there))) == len(there)


def column(
    name: str, values: Callable[[np.ndarray[Any, Any]], Any]
) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        position = table.schema.get_field_index(name)
        return table.set_column(
            position,
            table.schema.field(name),
            pa.array(values(table[name].to_numpy()), table.schema.field(name).type),
        )

    return change


def forged_section(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[Forger], str]:
    def forge(forger: Forger) -> str:
        def rewrite(root: Any, sections: Sections) -> Any:
            forger.section(sections, name, change)
            return root

        return forger.root(rewrite)

    return forge


def forged_base(forger: Forger) -> str:
    path = next(path for path in forger.files if path.startswith(layout.BITMAPS))
    marked = decode_base(forger.files[path], path)
    marked[min(marked)].add(77)
    data = forger.files[path] = encode_base(marked, {})
    forged_section(
        "bases", lambda items: [[items[0][0], path, len(data), zlib.crc32(data), *items[0][4:]]]
    )(forger)
    return path


def forged_result(change: dict[str, Any]) -> Callable[[Forger], str]:
    def forge(forger: Forger) -> str:
        path = layout.result_path("t")
        result = JobResult(operation="retain", table="memory://t", token="t").to_dict()
        forger.files[path] = seal(canonical_json(result | change))
        return path

    return forge


def older_write(
    path: str, invariant_of: Callable[[Commit], Commit], version: int
) -> Callable[[Forger], str]:
    def forge(forger: Forger) -> str:
        forger.commit(version, invariant_of)
        return path

    return forge


def at(version: int, **changes: Any) -> Callable[[Forger], str]:
    return lambda forger: forger.commit(version, lambda commit: replace(commit, **changes))


def on_log(
    change: Callable[[Events], Events], place: str | None = None, **claims: Any
) -> Callable[[Forger], str]:
    def forge(forger: Forger) -> str:
        path = forger.log(4, change, **claims)
        return next(
            (
                found
                for found in forger.files
                if place and found.startswith(layout.DATA) and place in found
            ),
            path,
        )

    return forge


def ingested(**changes: Any) -> Callable[[Actions], Actions]:
    """The actions with another file that they ingest."""
    return lambda actions: replace(actions, ingested=(replace(actions.ingested[0], **changes),))


def processed(**changes: Any) -> Callable[[Actions], Actions]:
    """The actions with another first segment that they process."""
    return lambda actions: replace(
        actions, processed=(replace(actions.processed[0], **changes), *actions.processed[1:])
    )


DATA_1, DATA_3 = "/0000000001-", "/0000000003-"
FORGERIES: dict[str, tuple[str, Callable[[Forger], str]]] = {
    "the end of the log lost": ("I1", lambda forger: [forger.files.pop(layout.commit_path(version)) for version in (4, 5)]
                                and layout.commit_path(4)),
    "another predecessor": ("I2", at(3, previous_write_id="nobody")),
    "another table": ("I2", at(3, table_id="another")),
    "an older epoch": ("I2", at(3, epoch=-1)),
    "time stands still": ("I3", at(3, timestamp_us=0)),
    "the result of another token": ("I4", forged_result({"token": "u"})),
    "a result that is none": ("I4", forged_result({"counts": {"rows": "many"}})),
    "a number twice": ("I5", at(5, number=3)),
    "a number that nobody claimed": ("I5", lambda forger: (forger.commit(5, lambda c: replace(c, number=9)), layout.claim_path(9))[1]),
    "a root that counts wrong": ("I6", lambda forger: forger.root(lambda root, _: replace(root, rows=root.rows + 1))),
    "a section that lacks an item": ("I7", forged_section("files", lambda items: items[1:])),
    "a section with a pending segment": ("I7", forged_section("pending", lambda items: [*items, SEGMENT_1])),
    "a token forgotten": ("I7", forged_section("tokens", lambda items: items[:1])),
    "a base that marks a row too many": ("I8", forged_base),
    "rows out of order": ("I11", lambda forger: forger.data(3, lambda table: table.take([1, 0, 2, 3]))),
    "a row gone": ("I11", lambda forger: forger.data(3, lambda table: table.slice(0, 3), rows=4)),
    "rows of another segment": ("I11", lambda forger: forger.data(3, column(SEGMENT, lambda values: values + 1))),
    "offsets twice": ("I11", lambda forger: forger.data(3, column(OFFSET, lambda values: values * 0))),
    "narrow bounds": ("I12", lambda forger: forger.data(3, column("at", lambda values: values - 9), bounds=bounds_of(forger, 3))),
    "wrong count of nulls": ("I12", lambda forger: forger.data(3, lambda table: table, bounds=bounds_of(forger, 3, nulls=1))),
    "a group that is too full": ("I13", lambda forger: forger.actions(3, ingested(rows=90))
                                 and forger.actions(4, processed(rows=90)) and layout.commit_path(5)),
    "a key that is null": ("I14", lambda forger: forger.data(3, column("sku", lambda values: [None, *values[1:]]))),
    "row ids that were given before": ("I32", at(4, first_row_id=3)),
    "row ids that are left out": ("I32", at(4, first_row_id=None)),
    "row ids of a commit that gives none": ("I32", at(5, first_row_id=8)),
    "a delta that is null": ("I14", lambda forger: forger.data(3, column("at", lambda values: [None, *values[1:].tolist()]))),
    "an ingested file that reserves row ids": ("I1", lambda forger: forger.actions(5, ingested(first_row_id=8))),
    "a segment without rows": ("I1", lambda forger: forger.actions(4, processed(rows=0))),
    "fewer rows processed than ingested": ("I15", lambda forger: forger.actions(4, processed(rows=1))),
    "rows processed in another group": ("I15", lambda forger: forger.actions(4, processed(group=1))),
    "processed twice": ("I15", lambda forger: forger.actions(4, lambda a: replace(a, processed=(FIRST_SEGMENT, *a.processed)))),
    "an unsorted log": ("I16", on_log(lambda there: there.take(np.arange(len(there))[::-1]))),
    "a log that lies about its times": ("I16", on_log(events(), least_until=-5)),
    "a log that lies about its groups": ("I16", on_log(events(), groups=(0, 4))),
    "an event of no row": ("I17", on_log(events((SEGMENT_1, 99, 3)))),
    "an event of no segment": ("I17", on_log(events((77, 0, 3)))),
    "an event of a pending row": ("I17", on_log(events((SEGMENT_5, 0, 3)))),
    "an event that leads to no row": ("I17", on_log(leading_to(SEGMENT_3, 99))),
    "an event that leads to no segment": ("I17", on_log(leading_to(77, 0))),
    "an event missing": ("I18", on_log(lambda there: there.take(there.segment != SEGMENT_3), DATA_3)),
    "an event too many": ("I18", on_log(events((SEGMENT_3, 3, 7)), DATA_3)),
    "an event too early": ("I18", on_log(lambda there: replace(there, until=there.until - 1), DATA_3)),
    "an event too late": ("I18", on_log(lambda there: replace(there, until=there.until + 1), DATA_3)),
    "an unsorted run": ("I19", lambda forger: forger.run(4, lambda there: there.take(np.arange(len(there))[::-1]))),
    "an entry twice": ("I19", lambda forger: forger.run(4, lambda there: sorted_entries(concat_entries([there, there])))),
    "a run that lies about its hashes": ("I19", lambda forger: forger.run(4, lambda there: there, hash_low=0)),
    "a run that lies about its deltas": ("I19", lambda forger: forger.run(4, lambda there: there, greatest_delta=-5)),
    "an entry with another delta": ("I20", lambda forger: forger.run(4, lambda there: replace(there, delta=there.delta + 1))),
    "an entry that is no delete": ("I20", lambda forger: forger.run(4, lambda there: replace(there, deleted=there.deleted & False))),
    "an entry of no row": ("I20", lambda forger: forger.run(4, lambda there: replace(there, offset=there.offset + 50))),
    "an entry missing": ("I21", lambda forger: (forger.run(4, lambda there: there.take(slice(1, None))), data_of(forger, DATA_3))[1]),
}  # fmt: skip


def bounds_of(forger: Forger, version: int, nulls: int = 0) -> Any:
    found = decode_commit(forger.files[layout.commit_path(version)], "").actions.ingested[0].bounds
    return {number: replace(bounds, nulls=bounds.nulls + nulls) for number, bounds in found.items()}


def data_of(forger: Forger, part: str) -> str:
    return next(path for path in forger.files if path.startswith(layout.DATA) and part in path)


def test_unforged_table_is_clean(forger: Forger) -> None:
    assert check_table(forger.table()) == []


@pytest.mark.parametrize("what", FORGERIES)
def test_forgery_is_found_by_its_number_and_at_its_file(what: str, forger: Forger) -> None:
    invariant, forge = FORGERIES[what]
    path = forge(forger)
    findings = check_table(forger.table())
    assert (invariant, path) in {(finding.invariant, finding.path) for finding in findings}, (
        "\n".join(map(str, findings))
    )


def test_every_invariant_of_content_has_a_forgery() -> None:
    """I9 and I10 are broken by damage, which tests/opal_lake/inspect/test_check.py does to every file."""
    assert {invariant for invariant, _ in FORGERIES.values()} == {
        f"I{number}" for number in range(1, 22)
    } - {"I9", "I10"} | {"I32"}


def test_segments_are_not_published_otherwise_than_they_were_ingested(forger: Forger) -> None:
    path = forger.actions(4, processed(rows=1))
    forger.files = {
        name: data for name, data in forger.files.items() if not name.startswith(layout.CHECKPOINTS)
    }
    with pytest.raises(FormatError, match=f"{path}: it processes segment 3:0 as 1 rows of group 0"):
        forger.table().metagen()


def test_segments_that_were_ingested_before_the_log_begins_are_compared_too() -> None:
    table = create(MemoryStorage(), checkpoint_commits=2)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]))
    for number in range(5):
        table.ingest(*rows([("c", number, 1)]), metadata="inline")
    for _ in range(2):
        table.retain(window="0s", grace="0s")
    published = table.metagen().version
    assert published is not None
    forger = Forger(
        {stored.path: table.storage.get(stored.path) for stored in table.storage.list("")}
    )
    assert layout.commit_path(1) not in forger.files
    path = forger.actions(published, processed(rows=1))
    found = [finding for finding in check_table(forger.table()) if finding.path == path]
    assert any("which was ingested as 2 of group 0" in finding.message for finding in found), found


def test_nothing_is_rewritten_where_a_segment_has_fewer_rows_than_were_ingested() -> None:
    """Its rows behind the end would get the ids of other rows."""
    table = create(MemoryStorage(), checkpoint_commits=100)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]), metadata="inline")
    forger = Forger(
        {stored.path: table.storage.get(stored.path) for stored in table.storage.list("")}
    )
    path = forger.actions(1, processed(rows=1))
    forged = forger.table()
    forged.ingest(*rows([("d", 1, 1)]), metadata="inline")
    with pytest.raises(FormatError, match=f"{path}: it processes segment 1:0 as 1 rows of group 0"):
        compact(forged)


def test_the_last_row_id_is_given_out_and_none_behind_it(forger: Forger) -> None:
    forger.root(lambda root, _: replace(root, next_row_id=(1 << 63) - 2))
    table = forger.table()
    table.ingest(*rows([("x", 1, 1)]), metadata="inline")
    with pytest.raises(FormatError, match=r"version 7 was not written: it gives out 1 row ids"):
        table.ingest(*rows([("y", 1, 1)]), metadata="inline")
    assert table.snapshot_at().root.next_row_id == (1 << 63) - 1
    write_checkpoint(table.storage, table.log.head())
    assert forger.table().snapshot_at() is not None
    found = read_checkpoint(table.storage, None)
    assert found is not None
    assert found.root.next_row_id == (1 << 63) - 1


@pytest.fixture
def rewritten() -> Forger:
    """Version 1 is pending, 2 and 3 are upserts, 4 compacts their files."""
    return rewritten_table()


@pytest.fixture
def with_side(monkeypatch: pytest.MonkeyPatch) -> Forger:
    """Rewritten so, but that version 4 lists its files in a side file."""
    monkeypatch.setattr(rewrite_job, "MAX_FILES_IN_COMMIT", 1)
    return rewritten_table()


def rewritten_table() -> Forger:
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=100)
    table.ingest(*rows([("c", 1, 1)]))
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]), metadata="inline")
    table.ingest(*rows([("a", 2, 2)]), metadata="inline")
    compact(table)
    assert check_table(table) == []
    return Forger(
        {
            stored.path: storage.get(stored.path)
            for stored in storage.list("")
            if not stored.path.startswith(layout.CHECKPOINTS)
        }
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (column(OUTSIDE_ID, lambda values: values + 1), "of 3 of its rows is not"),
        (
            column(OUTSIDE_ID, lambda values: [*values[:2].tolist(), None]),
            "of 1 of its rows is not",
        ),
        (column(UPDATED_AT, lambda values: values * 0), "of 3 of its rows is not"),
        (
            lambda table: table.drop([OUTSIDE_ID, UPDATED_AT]),
            f"it has no column {UPDATED_AT}, {OUTSIDE_ID}",
        ),
    ],
)
def test_wrong_row_ids_in_a_rewritten_file_are_found(
    rewritten: Forger, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    path = rewritten.stored(4, change)
    found = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any(message in finding.message for finding in found), found


@pytest.mark.parametrize(
    "rows_said, message",
    [
        (4, "its side file adds 3 rows, its `side_rows` are 4"),
        (0, "it gives no row ids, but says where they begin"),
        ((1 << 63) - 1, "it gives out 9,223,372,036,854,775,807 row ids from 3, more than 63 bits"),
    ],
)
def test_side_rows_that_the_side_file_does_not_have_are_found(
    with_side: Forger, rows_said: int, message: str
) -> None:
    assert check_table(with_side.table()) == []
    path = with_side.json(4, lambda body: body["actions"]["rewrite"].update(side_rows=rows_said))
    findings = check_table(with_side.table())
    named = [
        (finding.invariant, finding.path) for finding in findings if message in finding.message
    ]
    assert ("I32", path) in named, findings
    with pytest.raises(FormatError, match=re.escape(message)):
        compact(with_side.table())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"side_rows": None}, "only one of `side` and `side_rows`"),
        ({"side": None}, "only one of `side` and `side_rows`"),
        ({"remove": ["gone"]}, "lists files both in a side file and in itself"),
    ],
)
def test_a_rewrite_has_a_side_file_with_its_rows_or_none(
    with_side: Forger, change: dict[str, Any], message: str
) -> None:
    def forge(body: Any) -> None:
        changed = body["actions"]["rewrite"] | change
        body["actions"]["rewrite"] = {name: value for name, value in changed.items() if value}

    path = with_side.json(4, forge)
    found = [finding for finding in check_table(with_side.table()) if finding.path == path]
    assert any(message in finding.message for finding in found), found


def test_a_rewritten_file_does_not_say_its_row_ids_in_its_commit(rewritten: Forger) -> None:
    path = rewritten.json(
        4, lambda body: body["actions"]["rewrite"]["add"][0].update(first_row_id=3)
    )
    found = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any("has a first_row_id in the commit" in finding.message for finding in found), found


def test_a_file_of_a_side_file_does_not_say_its_row_ids(with_side: Forger) -> None:
    def forge(body: Any) -> None:
        side = body["actions"]["rewrite"]["side"]
        items = [*decode_section(with_side.files[side[0]], side[0], lambda item: item)]
        added = [item | {"first_row_id": 3} if isinstance(item, dict) else item for item in items]
        data = with_side.files[side[0]] = encode_section(added, lambda item: item)
        side[1:] = [len(data), zlib.crc32(data)]

    with_side.json(4, forge)
    messages = [finding.message for finding in check_table(with_side.table())]
    assert any("has a first_row_id in the commit" in message for message in messages), messages


def test_row_ids_in_an_ingested_file_are_found(rewritten: Forger) -> None:
    path = rewritten.stored(
        1, lambda table: RowBases.of({SEGMENT_1: VISIBLE_SEGMENT}).numbered(table)
    )
    found = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any("only rewritten files have a column" in finding.message for finding in found), found


def test_row_ids_that_two_segments_have_are_found(rewritten: Forger) -> None:
    state = rewritten.table().snapshot_at()
    first, second = state.visible_segments.values()
    files = dict(state.files)
    for row_base, message in (
        (0, "in common"),
        (5, "in common"),
        (99, "are taken, the next one is 6"),
    ):
        findings = Findings()
        state = Snapshot(state.storage, state.root, state.sections, state.commits)
        moved = replace(second, row_base=row_base)
        state.known_lists = {"files": files, "segments": {first.id: first, second.id: moved}}
        check_row_bases(state, findings)
        [finding] = findings.unique
        assert finding.invariant == "I33"
        assert message in finding.message


@pytest.fixture
def days() -> Forger:
    """Version 1 opens Friday, 2 holds Saturday back, 3 finishes Friday, 4 processes Saturday, 5 is of Saturday too."""
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=100)
    table.ingest(*rows([("a", 1, 1)]), metadata="inline", business_snapshot="2022-07-15")
    table.ingest(*rows([("a", 2, 2)]), business_snapshot="2022-07-16")
    table.metagen()
    table.ingest(*rows([("b", 2, 2)]), metadata="inline", business_snapshot="2022-07-16")
    return Forger(
        {
            stored.path: storage.get(stored.path)
            for stored in storage.list("")
            if not stored.path.startswith(layout.CHECKPOINTS)
        }
    )


@pytest.mark.parametrize(
    "version, change, says",
    [
        (1, lambda commit: replace(commit, business_snapshot="2022-07-17"), "2022-07-16 is before 2022-07-17, which is open"),
        (5, lambda commit: replace(commit, business_snapshot="2022-07-15"), "2022-07-15 is not after 2022-07-15, which is finished"),
        (5, lambda commit: replace(commit, business_snapshot="2022-7-17"), "2022-7-17 is not written as 2022-07-16 is"),
        (3, lambda commit: replace(commit, actions=replace(commit.actions, savepoints={"2022-07-15": 1})), "savepoint is the version b"),
        (3, lambda commit: replace(commit, actions=replace(commit.actions, finished="2022-07-14")), "2022-07-15 was open"),
        (3, lambda commit: replace(commit, actions=Actions()), "rows of ingests .2. visible, which were held back"),
    ],
)  # fmt: skip
def test_business_snapshots_that_fall_are_found(
    days: Forger, version: int, change: Callable[[Commit], Commit], says: str
) -> None:
    assert check_table(days.table()) == []
    path = days.commit(version, change)
    named = [finding for finding in check_table(days.table()) if finding.invariant == "I27"]
    assert any(re.search(says, finding.message) for finding in named), named
    assert (
        version == 1
        or path in {finding.path for finding in named}
        or layout.commit_path(version + 1) in {f.path for f in named}
    )


@pytest.fixture
def withdrawn() -> Forger:
    """Versions 1 and 2 ingest, 3 discards what 2 brought, 4 processes what 1 brought."""
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=100)
    table.ingest(*rows([("a", 1, 1), ("a", 2, 2), ("b", 1, 1)]))
    table.ingest(*rows([("a", 3, 3), ("c", 1, 1)]), token="bad")
    table.discard(token="bad")
    table.metagen()
    assert check_table(table) == []
    return Forger(
        {
            stored.path: storage.get(stored.path)
            for stored in storage.list("")
            if not stored.path.startswith(layout.CHECKPOINTS)
        }
    )


def discards_of(forger: Forger, version: int) -> tuple[DiscardedSegment, ...]:
    path = layout.commit_path(version)
    return decode_commit(forger.files[path], path).actions.discarded


DISCARDED = 2 << 32
TO_DISCARDED = {"segment": np.array([DISCARDED]), "offset": np.array([0], np.int32)}
HAUNTED: dict[str, tuple[str, str, Callable[[Forger], object]]] = {
    "discarded rows are processed": (
        "I30",
        "it processes segment 2:0, which version 3 discarded",
        lambda forger: forger.actions(
            4,
            lambda actions: replace(
                actions, processed=(*actions.processed, Segment(id=DISCARDED, rows=1, group=0))
            ),
        ),
    ),
    "rows are discarded twice": (
        "I30",
        "it discards segment 2:0, which version 3 discarded",
        lambda forger: forger.actions(
            4, lambda actions: replace(actions, discarded=discards_of(forger, 3))
        ),
    ),
    "an event is of a discarded row": (
        "I30",
        "it has events of segments .'2:0'., which were discarded",
        lambda forger: forger.log(4, lambda events: with_rows(events, **TO_DISCARDED)),
    ),
    "an entry is of a discarded row": (
        "I20",
        "1 of its entries are not what the data files hold",
        lambda forger: forger.run(4, lambda entries: with_first(entries, **TO_DISCARDED)),
    ),
}


def with_rows(events: Events, segment: Any, offset: Any) -> Events:
    return replace(events, segment=segment, offset=offset)


def with_first(entries: Entries, segment: Any, offset: Any) -> Entries:
    """Its first entry is that of another row."""
    return replace(
        entries,
        segment=np.append(segment, entries.segment[1:]),
        offset=np.append(offset, entries.offset[1:]),
    )


@pytest.mark.parametrize("floor", [None, 9])
@pytest.mark.parametrize("what", HAUNTED)
def test_what_is_left_of_discarded_rows_is_found(
    withdrawn: Forger, what: str, floor: int | None
) -> None:
    """Also up to a floor, where rows may have been dropped."""
    invariant, says, forge = HAUNTED[what]
    withdrawn.actions(4, lambda actions: replace(actions, floor=floor))
    forge(withdrawn)
    found = [one for one in check_table(withdrawn.table()) if one.invariant == invariant]
    assert any(re.search(says, finding.message) for finding in found), check_table(
        withdrawn.table()
    )


def test_a_discard_of_visible_rows_is_found(withdrawn: Forger) -> None:
    """The rows of version 1 are processed by version 4; a later version discards them."""
    table = withdrawn.table()
    table.ingest(*rows([("z", 1, 1)]), token="last")
    table.discard(token="last")
    forger = Forger(
        {stored.path: table.storage.get(stored.path) for stored in table.storage.list("")}
    )
    first = replace(discards_of(forger, 6)[0], segment=table.snapshot_at().segments[1 << 32])
    forger.actions(6, lambda actions: replace(actions, discarded=(first,)))
    says = "it discards segment 1:0, which version 4 processed"
    assert any(says in finding.message for finding in check_table(forger.table()))
