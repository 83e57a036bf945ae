"""Whatever a table went through, a check of all its versions finds nothing."""

import random

import pytest

from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows

STEPS = 25


def step(table: Table, chance: random.Random, at: int) -> None:
    kind = chance.choice(
        ["inline"] * 4 + ["batch"] * 3 + ["minor", "major", "restore", "rebuild", "savepoint"]
    )
    batch = [
        (chance.choice("abcdefgh"), chance.randint(max(0, at - 6), at), chance.choice([1, 2, None]))
        for _ in range(chance.randint(1, 6))
    ]
    if kind == "inline":
        table.ingest(*rows(batch), metadata="inline")
    elif kind == "batch":
        table.ingest(*rows(batch), partition_key=f"day {at}")
        if chance.random() < 0.7:
            table.metagen(all=True)
        elif chance.random() < 0.5:
            table.discard(partition_key=f"day {at}")
    elif kind == "minor":
        compact(table)
    elif kind == "major":
        floor = max(table.snapshot_at().root.floor or 0, at - 8)
        compact(table, floor=floor)
    elif kind == "restore" and table.snapshot_at().version > 3:
        head = table.snapshot_at().version
        table.restore(version=chance.randint(max(1, head - 6), head - 1))
    elif kind == "rebuild":
        table.rebuild_key_store()
    elif kind == "savepoint":
        table.savepoint(f"at_{at}")


@pytest.mark.parametrize("seed", range(6))
def test_a_check_of_all_versions_finds_nothing_in_a_sound_table(seed: int) -> None:
    chance = random.Random(seed)
    table = create(MemoryStorage(), checkpoint_commits=3, key_store_fan_in=2)
    for at in range(STEPS):
        step(table, chance, at)
        if at % 8 == 7:
            assert check_table(table, all=True) == []
    table.retain(window="0s", grace="0s")
    assert check_table(table, all=True) == []
