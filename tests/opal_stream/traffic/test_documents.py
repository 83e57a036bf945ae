"""Traffic in a table's folder: what counts, what goes, what does no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.errors import FormatError
from opal_lake.log.commit import canonical_json, seal
from opal_lake.storage.memory import MemoryStorage
from opal_stream.traffic.documents import TrafficFolder, decode_traffic, encode_traffic
from opal_stream.traffic.hours import MAX_WEEKS, WEEK, Traffic, Volume
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.opal_lake.shop import create

TABLE = "table"
NUMBERS = st.integers(0, 2**62)
MEANS = st.dictionaries(
    st.integers(0, WEEK - 1),
    st.tuples(st.integers(1, MAX_WEEKS), st.builds(Volume, NUMBERS, NUMBERS)),
)
TRAFFIC = st.builds(
    Traffic,
    hour=st.integers(0, 10**6),
    position=NUMBERS,
    current=st.builds(Volume, NUMBERS, NUMBERS),
    means=MEANS,
)


def counted(messages: float, position: int = 0) -> Traffic:
    return Traffic(hour=500_000, position=position, current=Volume(messages, 10 * messages))


def folder(storage: MemoryStorage, writer: str = "w", table: str = TABLE) -> TrafficFolder:
    return TrafficFolder(storage, table, CountingIds(prefix=writer))


def documents(storage: MemoryStorage) -> list[str]:
    return [entry.path for entry in storage.list(layout.TRAFFIC)]


@given(st.dictionaries(st.text(min_size=1, max_size=20), TRAFFIC, max_size=4))
def test_a_document_comes_back_as_it_was(traffic: dict[str, Traffic]) -> None:
    actual = decode_traffic(encode_traffic(TABLE, traffic), "path", TABLE)
    assert actual.keys() == traffic.keys()
    for name, item in actual.items():
        assert (item.hour, item.position, item.means.keys()) == (
            traffic[name].hour,
            traffic[name].position,
            traffic[name].means.keys(),
        )
        for slot, (weeks, mean) in item.means.items():
            assert weeks == traffic[name].means[slot][0]
            assert mean == pytest.approx(traffic[name].means[slot][1])


@pytest.mark.parametrize(
    "hours",
    [
        [[168, 1, 0, 0]],
        [[0, 0, 0, 0]],
        [[0, 5, 0, 0]],
        [[0, 1, -1, 0]],
        [[0, 1, 0, 0], [0, 1, 0, 0]],
        [[0, 1, 0]],
        5,
        [[0, 1, 0, 1.5]],
    ],
)
def test_documents_with_invalid_values_are_refused(hours: object) -> None:
    part = {"hour": 1, "position": 2, "current": [0, 0], "hours": hours}
    data = seal(canonical_json({"format": 1, "table_id": TABLE, "applications": {"a": part}}))
    with pytest.raises(FormatError, match="cannot be decoded as traffic"):
        decode_traffic(data, "path", TABLE)


def test_a_writer_leaves_one_document() -> None:
    storage = MemoryStorage()
    item = folder(storage)
    for hour in range(5):
        item.write({"a": counted(hour), "b": counted(1)}, hour)
    assert len(documents(storage)) == 1
    assert folder(storage).read()["a"].current == Volume(4, 40)


def test_parts_that_move_between_writers_count_once_and_old_documents_are_deleted() -> None:
    storage = MemoryStorage()
    first, second = folder(storage, "first"), folder(storage, "second")
    first.write({"a": counted(1), "b": counted(1)}, 1000)
    second.write({"c": counted(1)}, 1000)
    second.write({"c": counted(2), "b": counted(2)}, 1000)  # also where its clock does not move
    assert {name: item.current.messages for name, item in folder(storage).read().items()} == {
        "a": 1,
        "b": 2,
        "c": 2,
    }
    assert len(documents(storage)) == 2
    first.write({"a": counted(3)}, 500)  # or is behind
    assert {name: item.current.messages for name, item in folder(storage).read().items()} == {
        "a": 3,
        "b": 2,
        "c": 2,
    }
    assert len(documents(storage)) == 2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sets(st.sampled_from("abcd"), min_size=1), st.integers(0, 5)
        ),
        max_size=12,
    )
)
def test_the_last_count_of_each_part_stays_whichever_writer_wrote_it(
    steps: list[tuple[int, set[str], int]],
) -> None:
    storage, model = MemoryStorage(), dict[str, int]()
    writers = [folder(storage, f"w{number}") for number in range(3)]
    for at, (writer, names, moment_ms) in enumerate(steps):
        writers[writer].write({name: counted(at) for name in names}, moment_ms)
        model |= dict.fromkeys(names, at)
    assert {name: item.current.messages for name, item in folder(storage).read().items()} == model
    assert len(documents(storage)) <= len(model)


def test_damaged_or_foreign_documents_are_left_out_and_reported_by_check() -> None:
    storage = MemoryStorage()
    table = create(storage)
    table_id = table.snapshot_at().root.table_id
    folder(storage, table=table_id).write({"a": counted(1)}, 1)
    assert check_table(table) == []
    storage.put_if_absent(
        layout.traffic_path(2, "damaged"), encode_traffic(table_id, {"a": counted(2)})[:-5]
    )
    storage.put_if_absent(
        layout.traffic_path(3, "strange"), encode_traffic("other", {"a": counted(3)})
    )
    storage.put_if_absent(f"{layout.TRAFFIC}readme.txt", b"")
    assert folder(storage, table=table_id).read()["a"].current.messages == 1
    findings = {
        finding.path.rpartition("-")[2]: finding.invariant for finding in check_table(table)
    }
    assert findings == dict.fromkeys(
        ["damaged.json", "strange.json", f"{layout.TRAFFIC}readme.txt"], "I29"
    )
