"""Forged tables whose checksums all hold: the check names the invariant and the file."""

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.data.outside_ids import RowBases
from opal_lake.data.segment import DiscardedSegment, Segment
from opal_lake.definition.schema import OUTSIDE_ID, UPDATED_AT
from opal_lake.errors import FormatError
from opal_lake.events.segment_log import NO_ROW, Events, decode_events, encode_events
from opal_lake.inspect.check.files import check_row_bases
from opal_lake.inspect.check.finding import Findings
from opal_lake.key_store.entries import Entries
from opal_lake.log.checkpoint import (
    read_checkpoint,
    write_checkpoint,
)
from opal_lake.log.commit import (
    Actions,
    Commit,
    decode_commit,
)
from opal_lake.log.sections import decode_section, encode_section
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.storage.memory import MemoryStorage
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.inspect.build import (
    FORGERIES,
    SEGMENT_1,
    VISIBLE_SEGMENT,
    Forger,
    column,
    forger,
    leading_to,
    processed,
)
from tests.opal_lake.shop import create, rows

__all__ = ["forger"]


@pytest.mark.parametrize("segment, offset", [(NO_ROW, 3), (SEGMENT_1, NO_ROW), (SEGMENT_1, -5)])
def test_an_event_must_name_a_whole_next_row_or_none(
    segment: int, offset: int, forger: Forger
) -> None:
    log = decode_commit(forger.files[layout.commit_path(4)], "").actions.add_logs[0]
    original = decode_events(forger.files[log.path], log.path, log.events, with_next=True)
    data = encode_events(leading_to(segment, offset)(original))
    with pytest.raises(
        FormatError, match="it has a next row with an offset below 0, or an offset without a row"
    ):
        decode_events(data, log.path, len(original), with_next=True)
    assert len(decode_events(data, log.path, len(original))) == len(original)


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
    """Damage breaks I9 and I10: test_check.py does it to every file."""
    assert {invariant for invariant, _ in FORGERIES.values()} == {
        f"I{number}" for number in range(1, 22)
    } - {"I9", "I10"} | {"I32"}


def test_segments_are_not_published_otherwise_than_they_were_ingested(forger: Forger) -> None:
    path = forger.actions(4, processed(rows=1))
    forger = forger.without_checkpoints()
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
    forger = Forger.of(table.storage)
    assert layout.commit_path(1) not in forger.files
    path = forger.actions(published, processed(rows=1))
    named = [finding for finding in check_table(forger.table()) if finding.path == path]
    assert any(
        "but the segment was ingested as 2 rows of group 0" in finding.message for finding in named
    ), named


def test_a_rewrite_fails_if_a_segment_has_fewer_rows_than_were_ingested() -> None:
    """Rows beyond the end of the segment would get the ids of other rows."""
    table = create(MemoryStorage(), checkpoint_commits=100)
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]), metadata="inline")
    forger = Forger.of(table.storage)
    path = forger.actions(1, processed(rows=1))
    forged = forger.table()
    forged.ingest(*rows([("d", 1, 1)]), metadata="inline")
    with pytest.raises(FormatError, match=f"{path}: it processes segment 1:0 as 1 rows of group 0"):
        compact(forged)


def test_no_row_id_beyond_the_last_one_is_assigned(forger: Forger) -> None:
    forger.root(lambda root, _: replace(root, next_row_id=(1 << 63) - 2))
    table = forger.table()
    table.ingest(*rows([("x", 1, 1)]), metadata="inline")
    with pytest.raises(FormatError, match=r"version 7 was not written: it assigns 1 row ids"):
        table.ingest(*rows([("y", 1, 1)]), metadata="inline")
    assert table.snapshot_at().root.next_row_id == (1 << 63) - 1
    write_checkpoint(table.storage, table.log.head())
    assert forger.table().snapshot_at() is not None
    checkpoint = read_checkpoint(table.storage, None)
    assert checkpoint is not None
    assert checkpoint.root.next_row_id == (1 << 63) - 1


@pytest.fixture
def rewritten() -> Forger:
    """Version 1 is pending, 2 and 3 are upserts, 4 compacts their files."""
    return rewritten_table()


@pytest.fixture
def with_side() -> Forger:
    """Like `rewritten`, except that version 4 lists its files in a side file."""
    return rewritten_table(Tuning(rewrite_max_files=1))


def rewritten_table(tuning: Tuning = DEFAULT_TUNING) -> Forger:
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=100, tuning=tuning)
    table.ingest(*rows([("c", 1, 1)]))
    table.ingest(*rows([("a", 1, 1), ("b", 1, 1)]), metadata="inline")
    table.ingest(*rows([("a", 2, 2)]), metadata="inline")
    compact(table)
    assert check_table(table) == []
    return Forger.of(storage).without_checkpoints()


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
    named = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any(message in finding.message for finding in named), named


@pytest.mark.parametrize(
    "rows_said, message",
    [
        (4, "its side file adds 3 rows, but its `side_rows` are 4"),
        (0, "it assigns no row ids, but has the `first_row_id`"),
        (
            (1 << 63) - 1,
            "it assigns 9,223,372,036,854,775,807 row ids from 3 on",
        ),
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
        ({"remove": ["gone"]}, "lists files in a side file and also in itself"),
    ],
)
def test_a_rewrite_has_a_side_file_with_its_rows_or_none(
    with_side: Forger, change: dict[str, Any], message: str
) -> None:
    def forge(body: Any) -> None:
        changed = body["actions"]["rewrite"] | change
        body["actions"]["rewrite"] = {name: value for name, value in changed.items() if value}

    path = with_side.json(4, forge)
    named = [finding for finding in check_table(with_side.table()) if finding.path == path]
    assert any(message in finding.message for finding in named), named


def test_a_first_row_id_of_a_rewritten_file_in_its_commit_is_found(rewritten: Forger) -> None:
    path = rewritten.json(
        4, lambda body: body["actions"]["rewrite"]["add"][0].update(first_row_id=3)
    )
    named = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any(
        "must not have a first_row_id in the commit" in finding.message for finding in named
    ), named


def test_a_first_row_id_of_a_rewritten_file_in_a_side_file_is_found(with_side: Forger) -> None:
    def forge(body: Any) -> None:
        side = body["actions"]["rewrite"]["side"]
        items = [*decode_section(with_side.files[side[0]], side[0], lambda item: item)]
        added = [item | {"first_row_id": 3} if isinstance(item, dict) else item for item in items]
        data = with_side.files[side[0]] = encode_section(added, lambda item: item)
        side[1:] = [len(data), zlib.crc32(data)]

    with_side.json(4, forge)
    messages = [finding.message for finding in check_table(with_side.table())]
    assert any("must not have a first_row_id in the commit" in message for message in messages), (
        messages
    )


def test_row_ids_in_an_ingested_file_are_found(rewritten: Forger) -> None:
    path = rewritten.stored(
        1, lambda table: RowBases.of({SEGMENT_1: VISIBLE_SEGMENT}).numbered(table)
    )
    named = [finding for finding in check_table(rewritten.table()) if finding.path == path]
    assert any("only rewritten files have a column" in finding.message for finding in named), named


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
    """Return a table of two business snapshots.

    Version 1 opens Friday, 2 holds Saturday back, 3 finishes Friday, 4 processes Saturday, and 5 is
    of Saturday, too.
    """
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=100)
    table.ingest(*rows([("a", 1, 1)]), metadata="inline", business_snapshot="2022-07-15")
    table.ingest(*rows([("a", 2, 2)]), business_snapshot="2022-07-16")
    table.metagen()
    table.ingest(*rows([("b", 2, 2)]), metadata="inline", business_snapshot="2022-07-16")
    return Forger.of(storage).without_checkpoints()


@pytest.mark.parametrize(
    "version, change, says",
    [
        (
            1,
            lambda commit: replace(commit, business_snapshot="2022-07-17"),
            "2022-07-16 is before 2022-07-17, which is open",
        ),
        (
            5,
            lambda commit: replace(commit, business_snapshot="2022-07-15"),
            "2022-07-15 is not after 2022-07-15, which is finished",
        ),
        (
            5,
            lambda commit: replace(commit, business_snapshot="2022-7-17"),
            "2022-7-17 does not have the form of 2022-07-16",
        ),
        (
            3,
            lambda commit: replace(
                commit, actions=replace(commit.actions, savepoints={"2022-07-15": 1})
            ),
            "savepoint is the version b",
        ),
        (
            3,
            lambda commit: replace(commit, actions=replace(commit.actions, finished="2022-07-14")),
            "2022-07-15 was open",
        ),
        (
            3,
            lambda commit: replace(commit, actions=Actions()),
            "rows of ingests .2. visible, which were held back",
        ),
    ],
)
def test_business_snapshots_in_falling_order_are_found(
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
    return Forger.of(storage).without_checkpoints()


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
    """Return the entries with the first one for another row."""
    return replace(
        entries,
        segment=np.append(segment, entries.segment[1:]),
        offset=np.append(offset, entries.offset[1:]),
    )


@pytest.mark.parametrize("floor", [None, 9])
@pytest.mark.parametrize("what", HAUNTED)
def test_events_and_entries_of_discarded_rows_are_found(
    withdrawn: Forger, what: str, floor: int | None
) -> None:
    """Rows up to a floor may have been dropped, but not these."""
    invariant, says, forge = HAUNTED[what]
    withdrawn.actions(4, lambda actions: replace(actions, floor=floor))
    forge(withdrawn)
    named = [
        finding for finding in check_table(withdrawn.table()) if finding.invariant == invariant
    ]
    assert any(re.search(says, finding.message) for finding in named), check_table(
        withdrawn.table()
    )


def test_a_discard_of_visible_rows_is_found(withdrawn: Forger) -> None:
    """The rows of version 1 are processed by version 4; a later version discards them."""
    table = withdrawn.table()
    table.ingest(*rows([("z", 1, 1)]), token="last")
    table.discard(token="last")
    forger = Forger.of(table.storage)
    first = replace(discards_of(forger, 6)[0], segment=table.snapshot_at().segments[1 << 32])
    forger.actions(6, lambda actions: replace(actions, discarded=(first,)))
    says = "it discards segment 1:0, which version 4 processed"
    assert any(says in finding.message for finding in check_table(forger.table()))
