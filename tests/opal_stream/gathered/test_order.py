"""The order of commits: partitions in turn, and a topic that was created again last."""

from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest

from opal_lake.errors import FormatError
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from opal_stream.flush.committer import Committer, CommitterOptions
from opal_stream.formats.rows import DecodedRows
from opal_stream.gathered.file import MAX_BEFORE, Header, decode_header
from opal_stream.gathered.folder import GatheredFolder
from opal_stream.kafka.applications import Application, known_positions
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from tests.opal_stream.orders import decode, gather, new_spec, order


@pytest.fixture
def table() -> Table:
    store = MemoryStorage()
    create_on(store, new_spec())
    return table_on(store)


def application(topic_id: str, partition: int = 0, topic: str = "orders") -> Application:
    return Application(
        stream="main", partition=Partition(topic=topic, number=partition), topic_id=topic_id
    )


def write(
    table: Table,
    of: Application,
    low: int,
    after: Sequence[str] | None = (),
    *,
    first: bool | None = None,
) -> None:
    """Write a file of one message."""
    own = Header(
        table_id=table.log.head().root.table_id,
        application=of,
        writer="w",
        consumed=Consumed(low=low, high=low + 1, records=1),
        first=low == 0 if first is None else first,
        after=None if after is None else tuple(after),
    )
    decoded = decode([order(1, name=f"{of.topic_id}{low}")])
    rows = DecodedRows(rows=decoded.rows, schema=decoded.schema).fitted(table.log.head().spec)
    assert GatheredFolder(table.storage, own.table_id).put(own, rows)


def committed(table: Table, turns: int = 50) -> list[str]:
    """Return the files of each commit."""
    committer, before = Committer(table, CommitterOptions(bytes=1)), table.log.head().version
    for _ in range(turns):
        committer._turn()
    commits = [*table.commits()][: table.log.head().version - before]
    return [
        f"{item.partition.topic}{item.topic_id}/{item.partition.number}:{advance.start}"
        for commit in reversed(commits)
        for item, advance in zip(
            known_positions(dict.fromkeys(commit.positions, 0)),
            commit.positions.values(),
            strict=True,
        )
    ]


def test_partitions_take_turns_and_the_longest_waiting_one_begins(table: Table) -> None:
    for low in range(3):
        for partition in (10, 2, 1):
            write(table, application("A", partition), low)
    assert committed(table) == [
        f"ordersA/{partition}:{low}" for low in range(3) for partition in (10, 2, 1)
    ]


@pytest.mark.parametrize("names", [*permutations("abc")])
def test_a_topic_waits_for_those_before_it_whatever_they_are_called(
    table: Table, names: Sequence[str]
) -> None:
    for position, name in reversed([*enumerate(names)]):  # the store's times say the opposite
        for partition in (0, 1):
            for low in range(2):
                write(table, application(name, partition), low, names[:position])
    order_of = [entry[len("orders")] for entry in committed(table)]
    assert order_of == [name for name in names for _ in range(4)]
    assert table.read(columns=["name"]).column("name").to_pylist() == [f"{names[-1]}1"]


def test_rows_of_a_topic_before_do_not_come_after_those_of_the_next_one(table: Table) -> None:
    """A damaged file that is put back comes late."""
    write(table, application("a"), 5, ["z"], first=True)
    assert committed(table) == ["ordersa/0:5"]
    write(table, application("a"), 6, ["z"])
    write(table, application("z", 1), 0)
    write(table, application("z", 1), 1)
    assert committed(table) == ["ordersa/0:6"]
    with pytest.raises(
        FormatError,
        match=(
            r"00\.rows holds rows of a deleted topic, .* the file's rows would "
            r"replace; delete the file"
        ),
    ):
        gather(table)
    write(table, application("c"), 0, ["a", "z"])
    write(table, application("c", 1), 0, None)  # who does not know is believed
    assert committed(table) == ["ordersc/0:0", "ordersc/1:0"]


def test_files_that_cannot_be_committed_hold_back_no_other_partition(table: Table) -> None:
    write(table, application("z"), 7)
    write(table, application("a"), 0, ["z", "gone"])
    assert committed(table) == ["ordersa/0:0"]


def test_topics_that_wait_for_each_other_are_all_committed(table: Table) -> None:
    for low in range(3):
        write(table, application("a"), low, ["b", "a"])
        write(table, application("b"), low, ["a"])
        write(table, application("c", topic="others"), low)
    done = committed(table)
    assert sorted(done) == sorted(
        f"{name}/0:{low}" for name in ("ordersa", "ordersb", "othersc") for low in range(3)
    )


@pytest.mark.parametrize(
    "after, actual",
    [
        ({"after": None}, None),
        ({"after": []}, ()),
        ({"after": ["x", "-y"]}, ("x", "-y")),
    ],
)
def test_a_header_need_not_name_what_comes_before(
    table: Table, after: Mapping[str, object], actual: tuple[str, ...] | None
) -> None:
    assert decode_header(*changed(table, after)).after == actual


@pytest.mark.parametrize("after", [{}, {"after": 1}, {"after": "x"}, {"after": [1]}])
def test_a_header_with_an_invalid_list_is_damaged(
    table: Table, after: Mapping[str, object]
) -> None:
    with pytest.raises(FormatError, match="cannot be decoded as gathered rows"):
        decode_header(*changed(table, after))


def changed(table: Table, after: Mapping[str, object]) -> tuple[bytes, str, str]:
    write(table, application("a"), 0)
    [entry] = table.storage.list("_opal/gathered/")
    line, end, _ = table.storage.get(entry.path).partition(b"\n")
    body = {
        name: value for name, value in unseal(line + end, entry.path).items() if name != "after"
    }
    return seal(canonical_json(body | dict(after))), entry.path, table.log.head().root.table_id


def test_a_header_with_all_that_it_may_name_is_read(table: Table) -> None:
    names = [f"{number:022d}" for number in range(MAX_BEFORE)]
    write(table, application("a" * 22, topic="o" * 249), 0, names)
    assert len(committed(table)) == 1
