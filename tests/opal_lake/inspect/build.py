"""Tables of the check's tests, and forgeries whose checksums all hold."""

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
from opal_lake.data.segment import DataFile, Segment
from opal_lake.definition.schema import OFFSET, OUTSIDE_ID, SEGMENT
from opal_lake.events.bitmap import decode_base, encode_base
from opal_lake.events.segment_log import Events, RowIds, decode_events, encode_events
from opal_lake.inspect.check.finding import Finding
from opal_lake.key_store.entries import Entries, concat_entries, sorted_entries
from opal_lake.key_store.run import decode_run, encode_run
from opal_lake.log.checkpoint import (
    decode_root,
    encode_root,
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
from opal_lake.log.tuning import Tuning
from opal_lake.result import JobResult
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows


@dataclass(slots=True)
class Forger:
    """A table as a dictionary of files, to be written over as no table allows."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, storage: Storage) -> "Forger":
        return cls({stored.path: storage.get(stored.path) for stored in storage.list("")})

    def without_checkpoints(self) -> "Forger":
        """Return the table without checkpoints, which would contradict forged commits."""
        paths = [path for path in self.files if not path.startswith(layout.CHECKPOINTS)]
        return Forger({path: self.files[path] for path in paths})

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
def forger() -> Forger:
    """Return a table: versions 1, 3, 5 ingest, 2, 4 process, and 4 has a checkpoint."""
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=4, group_rows=20, tuning=Tuning(fold_at_logs=1))
    for batch in (
        [("a", 1, 1), ("b", 1, 1), ("a", 2, 2), ("c", 5, 5)],
        [("b", 2, None), ("a", 2, 3), ("c", 4, 4), ("d", 1, 1)],
    ):
        table.ingest(*rows(batch), token=f"batch {len(batch)}{batch[0]}")
        table.metagen()
    table.ingest(*rows([("e", 1, 1)]))
    return Forger.of(storage)


def events(*extra: tuple[int, int, int]) -> Callable[[Events], Events]:
    """Return the events with extra ones, sorted by row."""

    def change(original: Events) -> Events:
        columns = (original.segment.tolist(), original.offset.tolist(), original.until.tolist())
        all_rows = sorted({*zip(*columns, strict=True), *extra})
        segment, offset, until = zip(*all_rows, strict=True)
        return Events(
            segment=np.array(segment, np.int64),
            offset=np.array(offset, np.int32),
            until=np.array(until, np.int64),
        )

    return change


def leading_to(segment: int, offset: int) -> Callable[[Events], Events]:
    """Return the events, all followed by this row."""

    def change(original: Events) -> Events:
        assert original.next_rows is not None
        count = len(original)
        return replace(
            original,
            next_rows=RowIds(
                segment=np.full(count, segment), offset=np.full(count, offset, np.int32)
            ),
        )

    return change


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
    change: Callable[[Events], Events], data_part: str | None = None, **claims: Any
) -> Callable[[Forger], str]:
    """Forge the log of version 4; the finding names the data file with this part."""

    def forge(forger: Forger) -> str:
        path = forger.log(4, change, **claims)
        return path if data_part is None else data_of(forger, data_part)

    return forge


def ingested(**changes: Any) -> Callable[[Actions], Actions]:
    """Return the actions with another ingested file."""
    return lambda actions: replace(actions, ingested=(replace(actions.ingested[0], **changes),))


def processed(**changes: Any) -> Callable[[Actions], Actions]:
    """Return the actions with another first processed segment."""
    return lambda actions: replace(
        actions, processed=(replace(actions.processed[0], **changes), *actions.processed[1:])
    )


DATA_1, DATA_3 = "/0000000001-", "/0000000003-"


def without_the_end(forger: Forger) -> str:
    for version in (4, 5):
        del forger.files[layout.commit_path(version)]
    return layout.commit_path(4)


FORGERIES: dict[str, tuple[str, Callable[[Forger], str]]] = {
    "the end of the log lost": ("I1", without_the_end),
    "another predecessor": ("I2", at(3, previous_write_id="nobody")),
    "another table": ("I2", at(3, table_id="another")),
    "an older epoch": ("I2", at(3, epoch=-1)),
    "time stands still": ("I3", at(3, timestamp_us=0)),
    "the result of another token": ("I4", forged_result({"token": "u"})),
    "a result that is none": ("I4", forged_result({"counts": {"rows": "many"}})),
    "a number twice": ("I5", at(5, number=3)),
    "a number that nobody claimed": (
        "I5",
        lambda forger: (forger.commit(5, lambda c: replace(c, number=9)), layout.claim_path(9))[1],
    ),
    "a root that counts wrong": (
        "I6",
        lambda forger: forger.root(lambda root, _: replace(root, rows=root.rows + 1)),
    ),
    "a section that lacks an item": ("I7", forged_section("files", lambda items: items[1:])),
    "a section with a pending segment": (
        "I7",
        forged_section("pending", lambda items: [*items, SEGMENT_1]),
    ),
    "a token forgotten": ("I7", forged_section("tokens", lambda items: items[:1])),
    "a base that marks a row too many": ("I8", forged_base),
    "rows out of order": (
        "I11",
        lambda forger: forger.data(3, lambda table: table.take([1, 0, 2, 3])),
    ),
    "a row gone": ("I11", lambda forger: forger.data(3, lambda table: table.slice(0, 3), rows=4)),
    "rows of another segment": (
        "I11",
        lambda forger: forger.data(3, column(SEGMENT, lambda values: values + 1)),
    ),
    "offsets twice": (
        "I11",
        lambda forger: forger.data(3, column(OFFSET, lambda values: values * 0)),
    ),
    "narrow bounds": (
        "I12",
        lambda forger: forger.data(
            3, column("at", lambda values: values - 9), bounds=bounds_of(forger, 3)
        ),
    ),
    "wrong count of nulls": (
        "I12",
        lambda forger: forger.data(3, lambda table: table, bounds=bounds_of(forger, 3, nulls=1)),
    ),
    "a group that is too full": (
        "I13",
        lambda forger: (
            forger.actions(3, ingested(rows=90))
            and forger.actions(4, processed(rows=90))
            and layout.commit_path(5)
        ),
    ),
    "a key that is null": (
        "I14",
        lambda forger: forger.data(3, column("sku", lambda values: [None, *values[1:]])),
    ),
    "row ids that were given before": ("I32", at(4, first_row_id=3)),
    "row ids that are left out": ("I32", at(4, first_row_id=None)),
    "row ids of a commit that gives none": ("I32", at(5, first_row_id=8)),
    "a delta that is null": (
        "I14",
        lambda forger: forger.data(3, column("at", lambda values: [None, *values[1:].tolist()])),
    ),
    "an ingested file that reserves row ids": (
        "I1",
        lambda forger: forger.actions(5, ingested(first_row_id=8)),
    ),
    "a segment without rows": ("I1", lambda forger: forger.actions(4, processed(rows=0))),
    "fewer rows processed than ingested": (
        "I15",
        lambda forger: forger.actions(4, processed(rows=1)),
    ),
    "rows processed in another group": (
        "I15",
        lambda forger: forger.actions(4, processed(group=1)),
    ),
    "processed twice": (
        "I15",
        lambda forger: forger.actions(
            4, lambda a: replace(a, processed=(FIRST_SEGMENT, *a.processed))
        ),
    ),
    "an unsorted log": (
        "I16",
        on_log(lambda original: original.take(np.arange(len(original))[::-1])),
    ),
    "a log that lies about its times": ("I16", on_log(events(), least_until=-5)),
    "a log that lies about its groups": ("I16", on_log(events(), groups=(0, 4))),
    "an event of no row": ("I17", on_log(events((SEGMENT_1, 99, 3)))),
    "an event of no segment": ("I17", on_log(events((77, 0, 3)))),
    "an event of a pending row": ("I17", on_log(events((SEGMENT_5, 0, 3)))),
    "an event that leads to no row": ("I17", on_log(leading_to(SEGMENT_3, 99))),
    "an event that leads to no segment": ("I17", on_log(leading_to(77, 0))),
    "an event missing": (
        "I18",
        on_log(lambda original: original.take(original.segment != SEGMENT_3), DATA_3),
    ),
    "an event too many": ("I18", on_log(events((SEGMENT_3, 3, 7)), DATA_3)),
    "an event too early": (
        "I18",
        on_log(lambda original: replace(original, until=original.until - 1), DATA_3),
    ),
    "an event too late": (
        "I18",
        on_log(lambda original: replace(original, until=original.until + 1), DATA_3),
    ),
    "an unsorted run": (
        "I19",
        lambda forger: forger.run(
            4, lambda original: original.take(np.arange(len(original))[::-1])
        ),
    ),
    "an entry twice": (
        "I19",
        lambda forger: forger.run(
            4, lambda original: sorted_entries(concat_entries([original, original]))
        ),
    ),
    "a run that lies about its hashes": (
        "I19",
        lambda forger: forger.run(4, lambda original: original, hash_low=0),
    ),
    "a run that lies about its deltas": (
        "I19",
        lambda forger: forger.run(4, lambda original: original, greatest_delta=-5),
    ),
    "an entry with another delta": (
        "I20",
        lambda forger: forger.run(4, lambda original: replace(original, delta=original.delta + 1)),
    ),
    "an entry that is not a delete": (
        "I20",
        lambda forger: forger.run(
            4, lambda original: replace(original, deleted=original.deleted & False)
        ),
    ),
    "an entry of no row": (
        "I20",
        lambda forger: forger.run(
            4, lambda original: replace(original, offset=original.offset + 50)
        ),
    ),
    "an entry missing": (
        "I21",
        lambda forger: (
            forger.run(4, lambda original: original.take(slice(1, None))),
            data_of(forger, DATA_3),
        )[1],
    ),
}


def bounds_of(forger: Forger, version: int, nulls: int = 0) -> Any:
    commit = decode_commit(forger.files[layout.commit_path(version)], "")
    all_bounds = commit.actions.ingested[0].bounds
    return {
        number: replace(bounds, nulls=bounds.nulls + nulls) for number, bounds in all_bounds.items()
    }


def data_of(forger: Forger, part: str) -> str:
    return next(path for path in forger.files if path.startswith(layout.DATA) and part in path)


def shown_findings(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return sorted((finding.invariant, finding.path, finding.message) for finding in findings)


def moved(position: int) -> Callable[[Entries], Entries]:
    """Move an entry to a key that its row does not have, in another slot."""

    def change(original: Entries) -> Entries:
        high = original.high.copy()
        high[position] ^= np.uint64(1 << 63)
        return sorted_entries(replace(original, high=high))

    return change


def table_with_a_floor() -> MemoryStorage:
    """Return a table with the newest rows of the event times up to 5.

    `a` has later ones. The last commit rewrote the runs into one.
    """
    storage = MemoryStorage()
    table = create(storage)
    for at in (1, 3, 5):
        table.ingest(*rows([(key, at, at) for key in "abcdefgh"]), metadata="inline")
    table.ingest(*rows([("a", 9, 9), ("b", 7, None), ("i", 2, 2)]), metadata="inline")
    compact(table, floor=5)
    return storage
