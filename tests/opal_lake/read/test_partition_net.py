"""Net rows of a partition key: the same in any order of keys, and at every later version."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import Row, content, create, latest, rows

DAYS = ("1", "2", "3", "4")
SKUS = st.sampled_from("abcde")
FILES = st.lists(
    st.lists(
        st.tuples(SKUS, st.integers(0, 6), st.none() | st.integers(0, 99)), min_size=1, max_size=6
    ),
    min_size=4,
    max_size=4,
)


def put(table: Table, key: str, values: list[Row]) -> None:
    table.ingest(*rows(values), partition_key=key)


def net(table: Table, key: str, version: int | None = None) -> list[Row]:
    return content(table, partition_key=key, net=True, version=version)


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format,examples", [("parquet", 15), ("parquet", 40), ("orc", 40)])
def test_a_key_s_net_rows_follow_from_its_own_files_alone(file_format: str, examples: int) -> None:
    """Net rows are the same in any order of ingests, with compactions between.

    One of the days is ingested again. There are few examples at first, and more in the slow tests.
    """

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        files=FILES,
        order=st.permutations(DAYS),
        at_once=st.integers(1, 4),
        cleared=st.sampled_from(DAYS),
    )
    def run(files: list[list[Row]], order: list[str], at_once: int, cleared: str) -> None:
        assert_net_of_own_files(
            create(MemoryStorage(), file_format=file_format), files, order, (at_once, cleared)
        )

    run()


def assert_net_of_own_files(
    table: Table, files: list[list[Row]], order: list[str], chosen: tuple[int, str]
) -> None:
    (at_once, cleared), model = (
        chosen,
        {day: latest([files[position]]) for position, day in enumerate(DAYS)},
    )
    for number, day in enumerate(order, start=1):
        put(table, day, files[DAYS.index(day)])
        if number % at_once == 0:
            table.metagen(all=True)
    table.metagen(all=True)
    visible = table.snapshot_at().version
    compact(table)
    put(table, cleared, files[DAYS.index(cleared)])
    assert {day: net(table, day) for day in DAYS} == model, "what is pending does not count"
    table.metagen(all=True)
    for version in range(visible, table.snapshot_at().version + 1):
        assert {day: net(table, day, version) for day in DAYS} == model
    everything = [row for day in DAYS for row in content(table, partition_key=day)]
    assert sorted(everything) == content(table)
    for day in DAYS:
        assert set(content(table, partition_key=day)) <= set(net(table, day))


def test_a_correction_of_the_key_counts_from_its_version_on() -> None:
    table = create(MemoryStorage())
    for key, values in (
        ("mon", [("a", 1, 1), ("b", 1, 2)]),
        ("tue", [("a", 2, 3)]),
        ("mon", [("a", 1, 4), ("b", 5, None)]),
    ):
        put(table, key, values)  # type: ignore[arg-type]  # lists are invariant
        table.metagen(all=True)
    assert [net(table, "mon", version) for version in (2, 4, 6)] == [
        [("a", 1, 1), ("b", 1, 2)]
    ] * 2 + [[("a", 1, 4)]]
    assert content(table, partition_key="mon", net=True, event_time=2) == [("a", 1, 4), ("b", 1, 2)]


def test_a_net_read_is_refused_after_a_major_compaction_dropped_rows() -> None:
    table = create(MemoryStorage())
    for key, values in (("mon", [("a", 1, 1), ("b", 1, 2)]), ("tue", [("a", 2, 3)])):
        put(table, key, values)  # type: ignore[arg-type]  # lists are invariant
        table.metagen(all=True)
    before = table.snapshot_at().version
    compact(table, floor=3)
    with pytest.raises(
        NotFoundError,
        match=r"rows of partition key 'mon' are unknown.*older version.*valid_rows.*look_back",
    ):
        net(table, "mon")
    assert net(table, "tue") == [("a", 2, 3)]
    assert content(table, partition_key="mon") == [("b", 1, 2)]
    assert net(table, "mon", before) == [("a", 1, 1), ("b", 1, 2)]
    for number in range(120):  # past a checkpoint, which carries it too
        put(table, "wed", [("c", number, 0)])
    with pytest.raises(NotFoundError, match="net rows of partition key 'mon' are unknown"):
        net(table, "mon")


def test_net_read_needs_one_partition_key() -> None:
    table = create(MemoryStorage())
    for view in ({}, {"after": 0}, {"partition_key": "mon", "after": 0}):
        with pytest.raises(InvalidInputError, match="give partition_key, and leave out after"):
            table.read(net=True, **view)  # type: ignore[arg-type]  # the views are the tests' own
