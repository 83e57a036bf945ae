"""The rule on bare arrays against brute force.

Hashes collide in their first word, and rows are in many runs at once.
"""

import random
from typing import Any

import numpy as np
import pytest

from opal_lake.events.segment_log import NO_ROW, Events, RowIds
from opal_lake.key_store.entries import Entries, greatest_of_equal, no_entries, sorted_entries
from opal_lake.key_store.probe import neighbours
from opal_lake.key_store.run import BLOCK, decode_run, encode_run
from opal_lake.rule.metagen import PIECE_ROWS, apply_rule, rule_between
from tests.kit.model import ModelRow, RowId, untils

ROUNDS, FEW_ROUNDS = 600, 200


def random_rows(rng: random.Random, start: int, most: int) -> list[ModelRow]:
    """Return rows whose keys are (high, low) hash words from a tiny space.

    Some share the first word only, some nothing.
    """
    rows = []
    for serial in range(start, start + rng.randint(0, most)):
        tie = rng.choice([None, -1, 0, 5])
        rows.append(
            ModelRow(
                key=(rng.choice([0, 7, (1 << 64) - 1]), rng.choice([0, 1 << 63])),
                delta=rng.choice([-(1 << 63), -1, 0, 3, (1 << 63) - 1]),
                ties=(tie,),
                row_id=(serial >> 2, serial & 3),
                deleted=rng.random() < 0.25,
                processed=0,
            )
        )
    return rows


def entries_of(rows: list[ModelRow]) -> Entries:
    if not rows:
        return no_entries(1)
    return Entries(
        high=np.array([row.key[0] for row in rows], np.uint64),
        low=np.array([row.key[1] for row in rows], np.uint64),
        delta=np.array([row.delta for row in rows], np.int64),
        ties=(
            np.array([row.ties[0] is not None for row in rows], np.int64),
            np.array([row.ties[0] or 0 for row in rows], np.int64),
        ),
        segment=np.array([row.row_id[0] for row in rows], np.int64),
        offset=np.array([row.row_id[1] for row in rows], np.int32),
        deleted=np.array([row.deleted for row in rows], np.bool_),
    )


def run_of(entries: Entries, block_entries: int = BLOCK) -> Entries:
    """Return entries as a reader of the stored run has them."""
    return decode_run(encode_run(entries, block_entries=block_entries), "a run")


def merge(known: dict[RowId, int], events: Events, wanted: dict[RowId, int]) -> None:
    """Add events; none may be earlier than the right one for the rows so far."""
    for segment, offset, until in zip(
        events.segment.tolist(), events.offset.tolist(), events.until.tolist(), strict=True
    ):
        assert (segment, offset) in wanted, (
            f"{segment, offset} is valid for ever, yet ends at {until}"
        )
        assert until >= wanted[segment, offset], (
            f"{segment, offset} ends at {until}, before its {wanted[segment, offset]}"
        )
        known[segment, offset] = min(until, known.get((segment, offset), until))


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "block, piece, rounds",
    [
        (1, PIECE_ROWS, FEW_ROUNDS),
        (1, PIECE_ROWS, ROUNDS),
        (2, 1, ROUNDS),
        (3, 2, ROUNDS),
        (16_384, 5, ROUNDS),
    ],
)
def test_batches_in_sequence_give_every_until(block: int, piece: int, rounds: int) -> None:
    """Few rounds at first, and all in the slow tests."""
    for seed in range(rounds):
        rng = random.Random(seed)
        rows: list[ModelRow] = []
        runs: list[Entries] = []
        actual: dict[RowId, int] = {}
        for _ in range(rng.randint(1, 5)):
            batch = random_rows(rng, len(rows), 12)
            rows += batch
            new = entries_of(rng.sample(batch, len(batch)))
            near = [neighbours(run, new).entries for run in runs]
            ruling = apply_rule(new, near, piece_rows=piece)
            merge(actual, ruling.events, untils(rows))
            assert actual == untils(rows), f"seed {seed}"
            if len(ruling.entries):
                runs.append(run_of(ruling.entries, block))
            if runs and rng.random() < 0.3:
                runs.append(rng.choice(runs))  # the same rows in two runs


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "piece, rounds", [(1, FEW_ROUNDS), (1, ROUNDS), (4, ROUNDS), (PIECE_ROWS, ROUNDS)]
)
def test_two_jobs_from_one_base_find_the_missing_events_between_them(
    piece: int, rounds: int
) -> None:
    """Compare the rows of the second to commit with those of the first: their sets overlap.

    Few rounds at first, and all in the slow tests.
    """
    for seed in range(rounds):
        rng = random.Random(seed)
        base = random_rows(rng, 0, 10)
        pending = random_rows(rng, len(base), 14)
        mine = [row for row in pending if rng.random() < 0.6]
        theirs = [row for row in pending if row not in mine or rng.random() < 0.4]
        stored = greatest_of_equal(sorted_entries(entries_of(base)))
        store = [run_of(stored)] if len(stored) else []
        actual: dict[RowId, int] = {}
        expected = untils(base + pending)
        merge(actual, apply_rule(entries_of(base), [], piece_rows=piece).events, expected)
        runs = []
        for rows in (mine, theirs):
            new = entries_of(rows)
            near = [neighbours(run, new).entries for run in store]
            ruling = apply_rule(new, near, piece_rows=piece)
            merge(actual, ruling.events, expected)
            runs.append(run_of(ruling.entries) if len(ruling.entries) else None)
        if runs[0] and runs[1]:
            merge(actual, rule_between(runs[1], [neighbours(runs[0], runs[1]).entries]), expected)
        assert actual == expected, f"seed {seed}"


def test_an_event_names_the_row_that_follows() -> None:
    """The key store knows only the last of stored rows of equal delta."""
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        base, fresh = random_rows(rng, 0, 8), random_rows(rng, 8, 12)
        stored = greatest_of_equal(sorted_entries(entries_of(base))) if base else no_entries(1)
        events = apply_rule(entries_of(fresh), [stored]).events
        assert events.next_rows is not None
        base_by_id = {row.row_id: row for row in base}
        known = {row.row_id: row for row in fresh}
        known |= {row_id: base_by_id[row_id] for row_id in ids_of(stored)}
        for row_id, until, following in zip(
            ids_of(events), events.until.tolist(), ids_of(events.next_rows), strict=True
        ):
            row = known[row_id]
            later = [
                other
                for other in known.values()
                if other.key == row.key and order_of(other) > order_of(row)
            ]
            expected = min(later, key=order_of).row_id if later else (NO_ROW, NO_ROW)
            assert following == expected, f"seed {seed}"
            assert until == row.delta if row.deleted else until == known[following].delta


def ids_of(rows: Entries | Events | RowIds) -> list[RowId]:
    return [*zip(rows.segment.tolist(), rows.offset.tolist(), strict=True)]


def order_of(row: ModelRow) -> tuple[Any, ...]:
    return row.delta, row.ties[0] is not None, row.ties[0] or 0, row.row_id


def test_the_size_of_pieces_changes_neither_events_nor_entries_nor_counts() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        stored, fresh = random_rows(rng, 0, 20), random_rows(rng, 20, 30)
        shuffled = [entries_of(rng.sample(stored, len(stored)))]
        rulings = []
        for piece in (1 << 15, 1, 7):
            ruling = apply_rule(entries_of(fresh), shuffled, piece_rows=piece)
            events, following = ruling.events, ruling.events.next_rows
            assert following is not None
            arrays: list[Any] = [
                events.segment,
                events.offset,
                events.until,
                following.segment,
                following.offset,
                *ruling.entries.order_columns,
            ]
            counts = (ruling.rows, ruling.updates, ruling.deletes, ruling.late, ruling.ambiguous)
            rulings.append((counts, [array.tolist() for array in arrays]))
        assert rulings[0] == rulings[1] == rulings[2], f"seed {seed}"
