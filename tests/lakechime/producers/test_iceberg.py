"""Iceberg tables written by pyiceberg: a branch's snapshots are events, in order."""

import random
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestampType

from lakechime import InvalidEventError, LakeChime, NotFoundError, OperationType, TableFormat, chain
from lakechime.chains import ProblemKind
from lakechime.producers.iceberg import IcebergLocation, IcebergSource
from lakechime.producers.lineage import Course, Lineage, Link, plan_course
from lakechime.producers.outbox import Synced, Target, sync
from lakechime.producers.partition_values import values_of
from tests.lakechime.producers.build import check_chain, events_of, gaps_of

NAME = "web.clicks"
FIELDS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "hour", IntegerType()),
    NestedField(4, "at", TimestampType()),
    NestedField(5, "page", StringType()),
)


@dataclass(kw_only=True)
class Lake:
    """A catalog in SQLite, and a table in it."""

    properties: dict[str, str]
    catalog: Catalog
    spec: PartitionSpec = field(default_factory=PartitionSpec)
    identifier: str = NAME

    def __post_init__(self) -> None:
        self.catalog.create_namespace_if_not_exists("web")
        self.catalog.create_table(self.identifier, Schema(*FIELDS), partition_spec=self.spec)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.identifier)

    @property
    def source(self) -> IcebergSource:
        location = IcebergLocation(
            identifier=self.identifier, catalog="test", properties=self.properties
        )
        return IcebergSource(location=location, target=Target(table=NAME))

    def look(self, client: LakeChime, **options: Any) -> Synced:
        return sync(client, replace(self.source, **options))

    def append(self, *rows: tuple[int, int], branch: str = "main") -> str:
        self.table.append(clicks(*rows), branch=branch)
        return self.head(branch)

    def head(self, branch: str = "main") -> str:
        return str(self.table.metadata.refs[branch].snapshot_id)

    def set_main(self, snapshot: str) -> None:
        with self.table.manage_snapshots() as manage:
            manage.set_current_snapshot(snapshot_id=int(snapshot))

    def expire(self, *snapshots: str) -> None:
        expiring = self.table.maintenance.expire_snapshots()
        for snapshot in snapshots:
            expiring = expiring.by_id(int(snapshot))
        expiring.commit()


def clicks(*rows: tuple[int, int]) -> pa.Table:
    """Return rows of ids and days of November."""
    columns = [
        pa.array([number for number, _ in rows], pa.int64()),
        pa.array([date(2026, 11, day) for _, day in rows], pa.date32()),
    ]
    hours = pa.array([number % 24 for number, _ in rows], pa.int32())
    moments = pa.array([date(2026, 11, day) for _, day in rows], pa.date32()).cast(
        pa.timestamp("us")
    )
    return pa.table(
        [*columns, hours, moments, pa.array(["x"] * len(rows))],
        names=["id", "day", "hour", "at", "page"],
    )


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }


@pytest.fixture
def catalog(properties: dict[str, str]) -> Catalog:
    return load_catalog("test", **properties)


@pytest.fixture
def lake(properties: dict[str, str], catalog: Catalog) -> Lake:
    return Lake(properties=properties, catalog=catalog)


def test_snapshots_are_events(client: LakeChime, lake: Lake) -> None:
    assert lake.look(client).events == 0
    first, second = lake.append((1, 1)), lake.append((2, 1), (3, 2))
    lake.look(client)
    lake.table.delete("id = 1")
    third = lake.head()
    lake.table.overwrite(clicks((9, 9)), "id = 2")
    lake.look(client)
    reported = [
        (event.snapshot_id, event.prev_snapshot_id, event.operation_type)
        for event in events_of(client, NAME)
    ]
    assert reported[:3] == [
        (first, None, OperationType.APPEND),
        (second, first, OperationType.APPEND),
        (third, second, OperationType.DELETE),
    ]
    assert reported[-1][0] == lake.head()
    events = events_of(client, NAME)
    assert {(event.table_format, event.partition) for event in events} == {
        (TableFormat.ICEBERG, None)
    }
    times = {
        str(snapshot.snapshot_id): snapshot.timestamp_ms for snapshot in lake.table.snapshots()
    }
    assert all(event.snapshot_ts == times[str(event.snapshot_id)] for event in events)
    assert lake.look(client).events == 0
    check_chain(client, NAME, [str(snapshot.snapshot_id) for snapshot in lake.table.snapshots()])


def test_partitions_are_those_of_added_and_removed_files(
    client: LakeChime, properties: dict[str, str], catalog: Catalog
) -> None:
    fields = (
        PartitionField(2, 1000, IdentityTransform(), "day"),
        PartitionField(3, 1001, IdentityTransform(), "hour"),
    )
    lake = Lake(properties=properties, catalog=catalog, spec=PartitionSpec(*fields))
    lake.append((1, 1), (2, 2))
    lake.table.append(pa.Table.from_pylist([{"id": 5}], schema=lake.table.schema().as_arrow()))
    lake.look(client)
    lake.table.delete("id = 1")
    lake.look(client)
    reported = [(event.partition, event.operation_type.value) for event in events_of(client, NAME)]
    assert sorted(reported[:2]) == [(("2026-11-01", 1), "APPEND"), (("2026-11-02", 2), "APPEND")]
    assert reported[2:] == [((None, None), "APPEND"), (("2026-11-01", 1), "DELETE")]


def test_partition_of_other_levels_is_registered_as_a_tag(
    client: LakeChime, properties: dict[str, str], catalog: Catalog
) -> None:
    lake = Lake(
        properties=properties,
        catalog=catalog,
        spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day")),
    )
    lake.append((1, 3))
    lake.look(client)
    with lake.table.update_spec() as update:
        update.add_identity("page")
    lake.append((2, 4))
    lake.look(client)
    reported = [
        (event.partition, event.tags.get("lakechime.partition"))
        for event in events_of(client, NAME)
    ]
    assert reported == [(("2026-11-03",), None), (None, '["2026-11-04", "x"]')]


@pytest.mark.parametrize(
    "source, transform, value, shown",
    [
        (4, DayTransform(), 20_758, ("2026-11-01",)),
        (4, HourTransform(), 498_195, ("2026-11-01-03",)),
        (2, MonthTransform(), 682, ("2026-11",)),
        (1, BucketTransform(16), 3, None),
        (5, TruncateTransform(2), "ab", None),
        (1, IdentityTransform(), 7, (7,)),
        (2, IdentityTransform(), 20_758, ("2026-11-01",)),
        (5, IdentityTransform(), None, (None,)),
        (99, IdentityTransform(), "of a column that is gone", ("of a column that is gone",)),
    ],
)
def test_only_identity_and_time_fields_have_partition_values(
    source: int, transform: Any, value: Any, shown: Any
) -> None:
    """Name identity and time fields; nobody waits for a bucket."""
    spec = PartitionSpec(PartitionField(source, 1000, transform, "p"))
    assert values_of(spec, [Schema(*FIELDS)])(Record(value)) == shown


def test_a_rollback_is_a_restore_each_time(client: LakeChime, lake: Lake) -> None:
    first, second, third = lake.append((1, 1)), lake.append((2, 1)), lake.append((3, 1))
    lake.look(client)
    lake.set_main(first)
    lake.look(client)
    lake.set_main(third)
    lake.look(client)
    lake.set_main(first)
    fourth = lake.append((4, 1))
    synced = lake.look(client)
    reported = [
        (event.snapshot_id, event.prev_snapshot_id, event.tags.get("restored_snapshot_id"))
        for event in events_of(client, NAME)
    ]
    assert reported == [
        (first, None, None),
        (second, first, None),
        (third, second, None),
        (first, third, first),
        (third, first, third),
        (first, third, first),
        (fourth, first, None),
    ]
    assert "back to" in synced.notes[0]
    for begin in range(6):
        window = events_of(client, NAME)[begin:]
        assert ProblemKind.RESTORE in {
            problem.kind for problem in chain(window, on_problems="report").problems
        }


def test_snapshots_that_expired_between_two_looks_are_a_gap(client: LakeChime, lake: Lake) -> None:
    first = lake.append((1, 1))
    lake.look(client)
    lost, oldest, last = lake.append((2, 1)), lake.append((3, 1)), lake.append((4, 1))
    lake.expire(first, lost)
    synced = lake.look(client)
    reported = [(event.snapshot_id, event.prev_snapshot_id) for event in events_of(client, NAME)]
    assert reported == [(first, None), (oldest, "expired"), (last, oldest)]
    assert gaps_of(client, NAME) == [False, True, False]
    assert first in synced.notes[0]
    assert [
        problem.kind
        for problem in chain(events_of(client, NAME)[1:], on_problems="report").problems
    ] == [ProblemKind.GAP]


def test_expiry_of_registered_snapshots_leaves_no_gap(client: LakeChime, lake: Lake) -> None:
    snapshots = [lake.append((1, 1)), lake.append((2, 1))]
    lake.look(client)
    snapshots.append(lake.append((3, 1)))
    lake.expire(*snapshots[:2])
    assert lake.look(client).notes == ()
    check_chain(client, NAME, snapshots)


def test_first_look_begins_at_the_oldest_snapshot_that_did_not_expire(
    client: LakeChime, lake: Lake
) -> None:
    first, second = lake.append((1, 1)), lake.append((2, 1))
    lake.expire(first)
    lake.look(client)
    assert [(event.snapshot_id, event.prev_snapshot_id) for event in events_of(client, NAME)] == [
        (second, "expired")
    ]
    assert gaps_of(client, NAME) == [False]


def test_main_branch_is_read_unless_another_is_requested(client: LakeChime, lake: Lake) -> None:
    first = lake.append((1, 1))
    with lake.table.manage_snapshots() as manage:
        manage.create_branch(snapshot_id=int(first), branch_name="audit")
    audited = lake.append((2, 1), branch="audit")
    lake.look(client)
    check_chain(client, NAME, [first])
    other = Target(table="web.clicks.audit")
    lake.look(client, branch="audit", target=other)
    check_chain(client, other.table, [first, audited])
    lake.set_main(audited)  # published
    lake.look(client)
    check_chain(client, NAME, [first, audited])
    with pytest.raises(NotFoundError, match="no branch"):
        lake.look(client, branch="none", target=other)
    with pytest.raises(InvalidEventError, match="another name"):
        lake.look(client, branch="audit")


def test_branches_of_two_tables_have_two_origins(
    client: LakeChime, properties: dict[str, str], catalog: Catalog
) -> None:
    clicks_lake = Lake(properties=properties, catalog=catalog)
    snapshot = int(clicks_lake.append((1, 1)))
    with clicks_lake.table.manage_snapshots() as manage:
        manage.create_branch(snapshot_id=snapshot, branch_name="audit@main")
        manage.create_branch(snapshot_id=snapshot, branch_name="auditmain")
    audit_lake = Lake(properties=properties, catalog=catalog, identifier=f"{NAME}@audit")
    audit_lake.append((2, 1))
    audit_lake.look(client)
    for branch in "audit@main", "auditmain":
        with pytest.raises(InvalidEventError, match="another name"):
            clicks_lake.look(client, branch=branch)


def test_a_table_that_was_made_again(client: LakeChime, lake: Lake) -> None:
    lake.append((1, 1))
    lake.look(client)
    lake.catalog.drop_table(NAME)
    lake.__post_init__()
    second = lake.append((2, 1))
    lake.look(client)
    event = events_of(client, NAME)[-1]
    assert (event.snapshot_id, event.prev_snapshot_id) == (second, None)
    assert [
        problem.kind for problem in chain(events_of(client, NAME), on_problems="report").problems
    ] == [ProblemKind.RECREATED]


def test_a_folder_without_a_catalog_is_read_by_its_newest_metadata(
    client: LakeChime, lake: Lake, tmp_path: Path
) -> None:
    folder = Path(lake.table.location().removeprefix("file://"))
    source = IcebergSource(location=IcebergLocation(path=str(folder)), target=Target(table=NAME))
    first = lake.append((1, 1))
    sync(client, source)
    second = lake.append((2, 1))
    assert sync(client, source).last == second
    check_chain(client, NAME, [first, second])
    with pytest.raises(NotFoundError, match="correct the path"):
        sync(client, replace(source, location=IcebergLocation(path=f"{tmp_path}/none")))
    with pytest.raises(NotFoundError, match="correct its name"):
        lake.look(
            client,
            location=IcebergLocation(
                identifier="web.none", catalog="test", properties=lake.properties
            ),
        )
    with pytest.raises(InvalidEventError, match="give either its identifier"):
        IcebergLocation(path="a", identifier="b")


@pytest.mark.parametrize("seed", range(3))
def test_random_looks_register_each_snapshot_once_in_order(
    client: LakeChime, lake: Lake, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(20):
        match chance.choice(["append", "append", "delete", "look"]):
            case "append":
                lake.append((number, 1 + number % 3))
            case "delete":
                lake.table.delete(f"id = {chance.randint(0, number)}")
            case "look":
                lake.look(client)
    lake.look(client)
    check_chain(client, NAME, [str(snapshot.snapshot_id) for snapshot in lake.table.snapshots()])


@pytest.mark.parametrize(
    "head, parents, lineage, course",
    [
        (3, {1: None, 2: 1, 3: 2}, Lineage(), Course(ids=(1, 2, 3))),
        (3, {2: None, 3: 2}, Lineage(), Course(ids=(2, 3), after="expired")),
        (3, {3: 2}, Lineage(), Course(ids=(3,), after="2")),
        (3, {1: None, 2: 1, 3: 2}, Lineage(head=1, registered="1"), Course(ids=(2, 3), after="1")),
        (3, {3: 2}, Lineage(head=2, registered="1"), Course(ids=(3,), after="1")),
        (3, {3: 2}, Lineage(head=1, registered="1"), Course(ids=(3,), after="2", is_lost=True)),
        (3, {3: None}, Lineage(head=2, sequence=2, registered="2"), Course(ids=(3,), after="2")),
        (
            4,
            {4: None},
            Lineage(head=2, sequence=2, registered="2"),
            Course(ids=(4,), after="expired", is_lost=True),
        ),
        (
            4,
            {1: None, 2: 1, 3: 2, 4: 1},
            Lineage(head=3, earlier=(2, 1)),
            Course(ids=(4,), restored=1),
        ),
        (1, {1: None, 2: 1, 3: 2}, Lineage(head=3, earlier=(2, 1)), Course(restored=1)),
        (5, {3: None, 4: None, 5: 4}, Lineage(head=3, sequence=3), Course(ids=(4, 5))),
    ],
)
def test_course_to_a_head_is_planned_from_the_links(
    head: int, parents: dict[int, int | None], lineage: Lineage, course: Course
) -> None:
    links = {number: Link(parent=parent, sequence=number) for number, parent in parents.items()}
    assert plan_course(head, links, lineage) == course
