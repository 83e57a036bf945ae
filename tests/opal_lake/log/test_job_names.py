"""Names that callers pass: those that no reader accepts are refused before a write."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opal_lake import layout
from opal_lake.definition.positions import Advance
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.conflict import Proposal
from opal_lake.operations.ingest import Ingest
from opal_lake.result import JobResult
from opal_lake.storage import Storage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from opal_lake.write.discard import discard
from opal_lake.write.ingest_job import check_names
from tests.kit.check import check_table
from tests.opal_lake.shop import Row, create, reopen, rows

FIRST: list[Row] = [("ax", 1, 10), ("bow", 1, 20)]
WRONG: list[Any] = [
    5,
    0,
    -1,
    1 << 64,
    5.0,
    5.5,
    float("nan"),
    True,
    False,
    b"x",
    "",
    "\ud800",
    "a\udfff b",
    [],
    ["a"],
    ("a",),
    {"a": 1},
    date(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=UTC),
    Decimal(1),
    object(),
]
ODD_TEXTS = ["a\0b", "ä", "日本", "a/b", "..", "x" * 100_000, "null", "5", '"\\', "\n"]
VALUES = st.one_of(
    st.sampled_from([*WRONG, *ODD_TEXTS, None]), st.text(), st.integers(), st.floats(), st.binary()
)

Call = Callable[[Table, Any], JobResult]
INGESTS: dict[str, Call] = {
    "token": lambda table, value: table.ingest(*rows(FIRST), token=value),
    "partition_key": lambda table, value: table.ingest(*rows(FIRST), partition_key=value),
    "replaces": lambda table, value: table.ingest(*rows(FIRST), replaces=[value]),
    "application": lambda table, value: table.ingest(*rows(FIRST), application=(value, 1)),
    "sequence": lambda table, value: table.ingest(*rows(FIRST), application=("a", value)),
    "pair": lambda table, value: table.ingest(*rows(FIRST), application=value),
    "position": lambda table, value: table.ingest(
        *rows(FIRST), positions={value: Advance(start=0, end=1)}
    ),
    "start": lambda table, value: table.ingest(
        *rows(FIRST), positions={"a": Advance(start=value, end=1, first=True, back=True)}
    ),
    "end": lambda table, value: table.ingest(
        *rows(FIRST), positions={"a": Advance(start=0, end=value)}
    ),
    "advance": lambda table, value: table.ingest(*rows(FIRST), positions={"a": value}),
    "business_snapshot": lambda table, value: table.ingest(*rows(FIRST), business_snapshot=value),
}
JOBS: dict[str, Call] = {
    "metagen": lambda table, value: table.metagen(token=value),
    "restore": lambda table, value: table.restore(version=0, token=value),
    "compact": lambda table, value: table.compact(token=value),
    "zorder": lambda table, value: table.zorder(["sku"], token=value),
    "retain": lambda table, value: table.retain(token=value),
    "maintain": lambda table, value: table.maintain(token=value),
    "rebuild_key_store": lambda table, value: table.rebuild_key_store(token=value),
    "set_properties": lambda table, value: table.set_properties({"window": "3d"}, token=value),
    "add_columns": lambda table, value: table.add_columns({"more": "long"}, token=value),
    "discard": lambda table, value: discard(table.log, token="first", job_token=value),
}


def pending_table() -> Table:
    table = create(MemoryStorage())
    table.ingest(*rows(FIRST), token="first")
    return table


def paths(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def name_of(value: Any) -> str:
    """Return the same name in every process: an object has its address in its text."""
    return "an object" if type(value) is object else repr(value)


@pytest.mark.parametrize("value", WRONG, ids=name_of)
@pytest.mark.parametrize("name", [*INGESTS, *JOBS])
def test_invalid_name_is_refused_before_anything_is_written(name: str, value: Any) -> None:
    numbers_fit = name in ("sequence", "start", "end") and type(value) is int and value >= 0
    if (numbers_fit and value < 1 << 63) or (name == "position" and not hashable(value)):
        return
    table = pending_table()
    before = paths(table.storage)
    with pytest.raises(InvalidInputError):
        (INGESTS | JOBS)[name](table, value)
    assert paths(table.storage) == before


@settings(max_examples=40, deadline=None)
@given(value=VALUES)
@pytest.mark.parametrize("name", INGESTS)
def test_any_argument_of_an_ingest_is_refused_or_read_back(name: str, value: Any) -> None:
    if name == "position" and not hashable(value):
        return
    table = create(MemoryStorage())
    try:
        result = INGESTS[name](table, value)
    except InvalidInputError:
        assert layout.commit_path(1) not in paths(table.storage)
        return
    commit = next(iter(reopen(table.storage).commits()))
    assert commit.version == result.version == 1
    given = {
        "token": commit.token,
        "partition_key": commit.partition_key,
        "replaces": (commit.actions.replaced_tokens or (None,))[0],
        "application": (commit.application or (None,))[0],
        "sequence": (commit.application or (None, None))[1],
        "pair": commit.application,
        "position": next(iter(commit.positions), None),
        "start": commit.positions["a"].start if name == "start" else None,
        "end": commit.positions["a"].end if name == "end" else None,
        "advance": commit.positions.get("a"),
        "business_snapshot": commit.business_snapshot,
    }
    assert given[name] == value
    assert type(given[name]) is type(value)
    assert check_table(table) == []


@pytest.mark.parametrize("value", [None, "run 7", *ODD_TEXTS], ids=ascii)
@pytest.mark.parametrize("name", JOBS)
def test_every_text_can_be_a_token(name: str, value: str | None) -> None:
    table = pending_table()
    first = JOBS[name](table, value)
    assert first.token == value
    if value is not None:
        assert JOBS[name](table, value) == replace(first, repeated=True)
    assert check_table(table) == []


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
@pytest.mark.parametrize(
    "field",
    [
        "version",
        "table_id",
        "write_id",
        "previous_write_id",
        "timestamp_us",
        "operation",
        "writer_us",
        "number",
        "token",
        "application",
        "partition_key",
        "business_snapshot",
        "epoch",
        "replaced_tokens",
        "savepoints",
        "released",
        "finished",
        "processed",
        "abandoned",
        "oldest_version",
    ],
)
def test_every_written_commit_can_be_read(field: str, value: Any) -> None:
    """Whatever a writer passes by: the last check is where the log is written."""
    table = create(MemoryStorage())
    link = Commit(
        version=1,
        table_id=table.snapshot_at().root.table_id,
        write_id="next",
        previous_write_id=table.snapshot_at().root.write_id,
        timestamp_us=table.snapshot_at().root.timestamp_us + 1,
        operation="ingest",
        result=JobResult(operation="ingest", table="t").to_dict(),
    )
    link = _with(link, field, value)
    if link is None:
        return
    before = paths(table.storage)
    try:
        is_written = table.log.put(link)
    except InvalidInputError:
        assert paths(table.storage) == before
        return
    if not is_written:
        assert layout.commit_path(value) in before
        return
    read = table.log.read_commit(link.version)
    assert read == replace(link, result=read.result)


def _with(link: Commit, field: str, value: Any) -> Commit | None:
    """Return the commit with a value in a field, None if Python itself cannot hold it."""
    if field in ("replaced_tokens", "released", "processed", "abandoned"):
        actions = {field: (value,)}
    elif field == "savepoints":
        actions = {field: {value: 1}} if hashable(value) else {}
    elif field in ("finished", "oldest_version"):
        actions = {field: value} if value not in ("", 0, [], {}, ()) or value is None else {}
    else:
        return replace(link, **{field: value})
    return replace(link, actions=Actions(**actions)) if actions else None


@pytest.mark.parametrize("value", [20261124, True, b"x", 5.5, "", "\ud800"], ids=repr)
def test_ingest_and_proposal_refuse_invalid_names(value: Any) -> None:
    for name in ("token", "partition_key"):
        with pytest.raises(InvalidInputError):
            check_names(Ingest([], **{name: value}))
        with pytest.raises(InvalidInputError):
            Proposal(
                operation="ingest",
                number=1,
                build=lambda head, winners: None,
                started_us=0,
                **{name: value},
            )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"partition_key": 20261124},
            "partition_key is a whole number; write it as '20261124'",
        ),
        ({"partition_key": ""}, "partition_key is an empty text; leave it out"),
        ({"replaces": [None]}, "replaces is a list with None, which is"),
        ({"replaces": 5}, "replaces is a whole number; give a list, each a text"),
        (
            {"application": (None, 1)},
            "application is a pair; give a pair: a text and a whole number",
        ),
        ({"application": (7, 1)}, "application is a pair; give a pair"),
        ({"application": ("job", 5.0)}, "application is a pair; give a pair"),
        ({"application": ("a", True)}, "application is a pair; give a pair"),
        ({"application": "ab"}, "application is a text; give a pair"),
        ({"token": 7}, "token is a whole number; write it as '7'"),
        ({"token": "\ud800"}, "token='.ud800' holds an unpaired surrogate at character 0"),
        ({"token": "a", "replaces": ["a"]}, "replaces has 'a', the token of this ingest itself"),
        ({"positions": ["a"]}, "positions must map names to values, got a list"),
        ({"positions": {5: Advance(start=0, end=1)}}, "positions must map names to values"),
    ],
    ids=repr,
)
def test_refusal_names_a_valid_argument(arguments: dict[str, Any], message: str) -> None:
    table = create(MemoryStorage())
    with pytest.raises(InvalidInputError, match=message):
        table.ingest(*rows(FIRST), **arguments)


@pytest.mark.parametrize("value", [True, 5.5, b"x", ["a"], ("a",), "\ud800", ""], ids=repr)
def test_a_savepoint_has_a_text_as_its_name(value: Any) -> None:
    table = create(MemoryStorage())
    before = paths(table.storage)
    with pytest.raises(InvalidInputError):
        table.savepoint(value)
    with pytest.raises((InvalidInputError, NotFoundError)):
        table.release(value)
    assert paths(table.storage) == before


@pytest.mark.parametrize("version", [True, False, 1.0, "1"], ids=repr)
def test_a_savepoint_is_of_a_whole_version(version: Any) -> None:
    table = pending_table()
    with pytest.raises(InvalidInputError, match="is not a version; write one of the numbers"):
        table.savepoint("a", version=version)
