"""Delta tables written by deltalake: versions that change data are events."""

import json
import random
import shutil
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakechime import InvalidEventError, LakeChime, NotFoundError, OperationType, TableFormat, chain
from lakechime.chains import ProblemKind
from lakechime.producers.delta import DeltaSource
from lakechime.producers.delta_log import commit_from_bytes
from lakechime.producers.outbox import Synced, Target, sync
from tests.lakechime.producers.build import check_chain, events_of, gaps_of

NAME = "web.clicks"
SCHEMA = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("hour", pa.int32())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/clicks"


def look(client: LakeChime, path: str) -> Synced:
    return sync(client, DeltaSource(path=path, target=Target(table=NAME)))


def write(
    path: str,
    *rows: tuple[int, str | None, int],
    mode: Literal["append", "overwrite"] = "append",
    partition_by: list[str] | None = None,
) -> None:
    dicts = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(dicts, SCHEMA)
    write_deltalake(path, table, mode=mode, partition_by=partition_by)


def test_versions_that_change_data_are_events(client: LakeChime, path: str) -> None:
    write(path, (1, "2026-11-01", 3), (2, "2026-11-02", 4), partition_by=["dt", "hour"])
    write(path, (3, None, 5))
    look(client, path)
    write(path, (4, "2026-11-01", 3))
    DeltaTable(path).delete("id = 1")
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    DeltaTable(path).update({"id": "id + 10"}, predicate="id = 4")
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    look(client, path)
    reported = [
        (event.snapshot_id, event.prev_snapshot_id, event.partition, event.operation_type.value)
        for event in events_of(client, NAME)
    ]
    compacted = DeltaTable(path).history()[-5]
    last = str(
        next(
            entry["version"]
            for entry in DeltaTable(path).history()
            if entry["operation"] == "UPDATE"
        )
    )
    assert compacted["version"] == 4
    assert reported == [
        ("0", None, ("2026-11-01", 3), "APPEND"),
        ("0", None, ("2026-11-02", 4), "APPEND"),
        ("1", "0", (None, 5), "APPEND"),
        ("2", "1", ("2026-11-01", 3), "APPEND"),
        ("3", "2", ("2026-11-01", 3), "DELETE"),
        (last, "3", ("2026-11-01", 3), "UPDATE"),
    ]
    assert {event.table_format for event in events_of(client, NAME)} == {TableFormat.DELTA}
    assert events_of(client, NAME)[0].snapshot_ts == DeltaTable(path).history()[-1]["timestamp"]
    assert look(client, path).events == 0
    check_chain(client, NAME, ["0", "1", "2", "3", last])


def test_a_restore_is_named(client: LakeChime, path: str) -> None:
    write(path, (1, "a", 1))
    write(path, (2, "a", 1))
    DeltaTable(path).restore(0)
    look(client, path)
    event = events_of(client, NAME)[-1]
    assert (event.tags["restored_snapshot_id"], event.operation_type, event.partition) == (
        "0",
        OperationType.UPDATE,
        None,
    )
    assert [
        problem.kind for problem in chain(events_of(client, NAME), on_problems="report").problems
    ] == [ProblemKind.RESTORE]


def cleaned(path: str, *versions: int) -> None:
    DeltaTable(path).create_checkpoint()
    for version in versions:
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()


def test_cleaned_up_versions_are_a_gap_with_a_note(client: LakeChime, path: str) -> None:
    write(path, (1, "a", 1))
    look(client, path)
    for number in range(5):
        write(path, (number, "a", 1))
    cleaned(path, 0, 1, 2, 3)
    write(path, (9, "a", 1))
    synced = look(client, path)
    reported = [
        (event.snapshot_id, event.prev_snapshot_id, event.tags.get("lost_snapshots"))
        for event in events_of(client, NAME)
    ]
    assert reported == [
        ("0", None, None),
        ("3", "2", "1-3"),
        ("4", "3", None),
        ("5", "4", None),
        ("6", "5", None),
    ]
    assert gaps_of(client, NAME) == [False, True, False, False, False]
    assert len(synced.notes) == 1
    assert [
        problem.kind
        for problem in chain(events_of(client, NAME)[1:], on_problems="report").problems
    ] == [ProblemKind.GAP]


def test_cleaned_up_log_is_registered_by_its_newest_version(client: LakeChime, path: str) -> None:
    write(path, (1, "a", 1), partition_by=["dt"])
    write(path, (2, "a", 1))
    cleaned(path, 0, 1)
    assert look(client, path).events == 1
    assert (
        events_of(client, NAME)[0].snapshot_id,
        events_of(client, NAME)[0].prev_snapshot_id,
    ) == ("1", None)
    assert look(client, path).events == 0


def test_a_log_that_was_cleaned_up_to_what_is_registered_is_no_gap(
    client: LakeChime, path: str
) -> None:
    write(path, (1, "a", 1))
    write(path, (2, "a", 1))
    look(client, path)
    write(path, (3, "a", 1))
    cleaned(path, 0, 1)
    assert look(client, path).notes == ()
    check_chain(client, NAME, ["0", "1", "2"])


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_table_created_again_registers_its_versions_again(
    client: LakeChime, path: str, commits: int
) -> None:
    """However many versions the new one has when it is looked at."""
    for number in range(3):
        write(path, (number, "a", 1))
    look(client, path)
    shutil.rmtree(path)
    for number in range(commits):
        write(path, (number, "b", 1))
    look(client, path)
    look(client, path)
    write(path, (9, "b", 1))
    look(client, path)
    assert [event.snapshot_id for event in events_of(client, NAME)] == [
        "0",
        "1",
        "2",
        *map(str, range(commits + 1)),
    ]
    kinds = {
        problem.kind for problem in chain(events_of(client, NAME), on_problems="report").problems
    }
    assert ProblemKind.RECREATED in kinds


def test_partitions_of_other_levels_than_before_stop_no_registration(
    client: LakeChime, path: str
) -> None:
    write(path, (1, "a", 1), partition_by=["dt"])
    look(client, path)
    columns = {"id": [2], "dt": ["a"], "hour": [7]}
    write_deltalake(
        path,
        pa.table(columns, SCHEMA),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["dt", "hour"],
    )
    write(path, (3, "a", 7))
    assert look(client, path).events >= 1
    event = events_of(client, NAME)[-1]
    assert (event.partition, json.loads(event.tags["lakechime.partition"])) == (None, ["a", 7])


def test_no_table_and_another_table_of_the_name(
    client: LakeChime, path: str, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="correct the path"):
        look(client, path)
    write(path, (1, "a", 1))
    look(client, path)
    write(f"{tmp_path}/other", (1, "a", 1))
    with pytest.raises(InvalidEventError, match="another name"):
        look(client, f"{tmp_path}/other")


def test_a_damaged_commit_is_named() -> None:
    with pytest.raises(InvalidEventError, match=r"place/7\.json"):
        commit_from_bytes(7, b'{"add": {', "place/7.json")


@pytest.mark.parametrize("seed", range(4))
def test_random_looks_register_each_version_once_in_order(
    client: LakeChime, path: str, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(25):
        match chance.choice(
            ["append", "append", "delete", "update", "compact", "overwrite", "look"]
        ):
            case "append" | "overwrite" as mode:
                write(path, (number, chance.choice("ab"), 1), mode=mode)
            case "delete" if number > 5 and DeltaTable.is_deltatable(path):
                DeltaTable(path).delete(f"id = {chance.randint(0, number)}")
            case "update" if DeltaTable.is_deltatable(path):
                DeltaTable(path).update(
                    {"hour": "hour + 1"}, predicate=f"id > {chance.randint(0, number)}"
                )
            case "compact" if DeltaTable.is_deltatable(path):
                DeltaTable(path).optimize.compact()
            case "look" if DeltaTable.is_deltatable(path):
                look(client, path)
    look(client, path)
    check_chain(client, NAME, changing(path))


def changing(path: str) -> list[str]:
    """Return the versions whose files changed data, by the log's own words."""
    versions = []
    for file in sorted(Path(path, "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if any(
            action[kind]["dataChange"]
            for action in actions
            for kind in ("add", "remove")
            if kind in action
        ):
            versions.append(str(int(file.stem)))
    return versions
