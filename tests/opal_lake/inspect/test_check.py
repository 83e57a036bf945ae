"""Every kind of damage to every kind of file: the check names it, and no read is wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import FormatError, NotFoundError
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.tuning import Tuning
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import Table, create_on
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
KINDS = {
    "create commit": lambda path: path == layout.commit_path(0),
    "ingest commit": lambda path: path == layout.commit_path(3),
    "metagen commit": lambda path: path == layout.commit_path(4),
    "last commit": lambda path: path == layout.commit_path(13),
    "root": lambda path: layout.checkpoint_version(path) == 12,
    **{f"section {name}": lambda path, name=name: f"-{name}." in path for name in
       ("files", "segments", "pending", "logs", "runs", "partitions", "tokens")},
    "segment log": lambda path: path.startswith(layout.SEGMENT_LOGS),
    "bitmap base": lambda path: path.startswith(layout.BITMAPS),
    "run": lambda path: path.startswith(layout.KEY_STORE),
    "data file": lambda path: path.startswith(layout.DATA),
    "claim": lambda path: path.startswith(layout.CLAIMS),
    "side file": lambda path: path.startswith(layout.SIDE),
    "kept result": lambda path: path.startswith(layout.RESULTS),
}  # fmt: skip


def table_with_history(file_format: str) -> Table:
    """Return a table of 13 commits.

    Each of three batches is ingested and processed in two rounds. They have tokens, updates,
    deletes and late rows.
    """
    storage, clock, ids = MemoryStorage(), ManualClock(), CountingIds()
    table_layout = TableLayout(
        keys=["id"],
        delta="at",
        deletes="price IS NULL",
        file_format=file_format,
        properties={"segment_rows": 5, "group_rows": 11, "checkpoint_commits": 6},
    )
    create_on(storage, plan_spec(SCHEMA, table_layout), clock, ids)
    tuning = Tuning(fold_at_logs=2, inline_bytes=0, ingest_max_files=2)
    table = Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids, tuning=tuning),
        cache=MemoryRuns(storage=storage),
    )
    for batch in range(6):
        keys = [f"k{(batch * 3 + position) % 9}" for position in range(7 if batch % 2 else 13)]
        at = [1_000_000 * ((batch * 7 + position * 5) % 11) for position in range(len(keys))]
        rows: dict[str, list[Any]] = {
            "id": keys,
            "at": at,
            "price": [
                None if position % 6 == 5 else f"{batch}.{position:02d}"
                for position in range(len(keys))
            ],
        }
        table.ingest(
            arrow_rows(rows), [price is None for price in rows["price"]], token=f"ingest/{batch}"
        )
        table.metagen(token=f"metagen/{batch}")
    table.ingest(arrow_rows({"id": ["z"], "at": [7], "price": ["1.00"]}), [False], token="the last")
    table.set_properties({"segment_rows": 5}, token="no work")
    return table


def arrow_rows(rows: dict[str, list[Any]]) -> pa.Table:
    strings = pa.array(rows["price"], pa.string())
    return pa.table(
        [
            pa.array(rows["id"]),
            pa.array(rows["at"], pa.int64()).cast(SCHEMA.field("at").type),
            strings.cast(pa.decimal128(9, 2)),
            pa.array([[key, None] for key in rows["id"]], pa.list_(pa.string())),
        ],
        schema=SCHEMA,
    )  # fmt: skip


def views(table: Table) -> dict[str, Callable[[], Any]]:
    """Run reads that need different files."""
    return {
        "now": lambda: content(table.read()),
        "version 4": lambda: content(table.read(version=4)),
        "version 12": lambda: content(table.read(version=12)),
        "event time 3": lambda: content(table.read(event_time=moment(3))),
        "version 10, event time 6": lambda: content(table.read(version=10, event_time=moment(6))),
        "repeated token": lambda: (
            table.ingest(arrow_rows({"id": [], "at": [], "price": []}), [], token="ingest/2").counts
        ),
    }


def moment(second: int) -> str:
    return f"1970-01-01T00:00:{second:02d}+00:00"


def content(rows: pa.Table) -> list[Any]:
    return sorted(rows.to_pylist(), key=repr)


def damaged(data: bytes, every: int = 0) -> dict[str, bytes | None]:
    """Yield the bytes with flips, cut, and empty."""
    size = len(data)
    positions = (
        range(0, size, every)
        if every
        else sorted({1, size // 3, size * 2 // 3, size - 2} & set(range(size)))
    )
    flips: dict[str, bytes | None] = {
        f"byte {position} flipped": data[:position]
        + bytes([data[position] ^ 0x41])
        + data[position + 1 :]
        for position in positions
    }
    return flips | {
        "cut in half": data[: size // 2],
        "longer": data + b"\0",
        "empty": b"",
        "deleted": None,
    }


def copy_with(table: Table, path: str, data: bytes | None) -> Table:
    """Return the table in a new store with another file, so that nothing is cached."""
    storage = MemoryStorage()
    for stored in table.storage.list(""):
        content_there = data if stored.path == path else table.storage.get(stored.path)
        if content_there is not None:
            storage.put_if_absent(stored.path, content_there)
    return Table(
        log=CommitLog(storage=storage, clock=ManualClock(), ids=CountingIds("copy")),
        cache=MemoryRuns(storage=storage),
    )


@pytest.fixture(scope="module", params=["parquet", "orc"])
def whole(request: pytest.FixtureRequest) -> tuple[Table, dict[str, Any]]:
    table = table_with_history(request.param)
    return table, {name: view() for name, view in views(copy_with(table, "", None)).items()}


def test_whole_table_has_every_kind_of_file_and_no_finding(
    whole: tuple[Table, dict[str, Any]],
) -> None:
    table, answers = whole
    assert check_table(table) == []
    assert check_table(table, quick=True) == []
    paths = [stored.path for stored in table.storage.list("")]
    assert [kind for kind, fits in KINDS.items() if not any(map(fits, paths))] == []
    assert len({repr(answer) for answer in answers.values()}) >= 5


class BusyStore(MemoryStorage):
    """Somebody commits while a long listing is under way."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("busy", page_objects=1)
        self.meanwhile = meanwhile

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        for position, stored in enumerate(super().list(prefix, start_after)):
            if prefix == "" and position % 12 == 0 and position < 150:
                self.meanwhile()
            yield stored


def test_commits_during_a_check_cause_no_finding(
    whole: tuple[Table, dict[str, Any]],
) -> None:
    table, _ = whole
    store = BusyStore(lambda: None)
    for stored in table.storage.list(""):
        store.put_if_absent(stored.path, table.storage.get(stored.path))
    busy = Table(
        log=CommitLog(storage=store, clock=ManualClock(), ids=CountingIds("busy")),
        cache=MemoryRuns(storage=store),
    )
    added = arrow_rows({"id": ["k1", "new"], "at": [5, 6], "price": ["1.00", None]})
    store.meanwhile = lambda: (
        busy.ingest(added, [False, True], token=f"token {store._clock.now_us()}"),
        busy.metagen(),
    )
    assert check_table(busy) == []
    assert busy.snapshot_at().version > 20
    store.meanwhile = lambda: None
    assert check_table(busy) == []


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_is_named_and_never_gives_a_wrong_answer(
    kind: str, whole: tuple[Table, dict[str, Any]]
) -> None:
    """Each kind of damage is done once, to the first and the last file in turn.

    The slow test does all of them, at more places, to all files.
    """
    table, answers = whole
    if table.snapshot_at().spec.file_format == "orc" and kind != "data file":
        pytest.skip("only data files differ between Parquet and ORC")
    paths = [stored.path for stored in table.storage.list("") if KINDS[kind](stored.path)]
    for turn, path in enumerate((paths[0], paths[-1])):
        for how, data in [*damaged(table.storage.get(path)).items()][turn::2]:
            assert_named_and_never_wrong(table, path, (kind, how, data), answers)


@pytest.mark.slow
def test_every_file_is_named_and_never_gives_a_wrong_answer(
    whole: tuple[Table, dict[str, Any]],
) -> None:
    table, answers = whole
    for kind, fits in KINDS.items():
        for path in [stored.path for stored in table.storage.list("") if fits(stored.path)]:
            for how, data in damaged(table.storage.get(path), every=401).items():
                assert_named_and_never_wrong(table, path, (kind, how, data), answers)


def assert_named_and_never_wrong(
    table: Table, path: str, damage: tuple[str, str, bytes | None], answers: dict[str, Any]
) -> None:
    kind, how, data = damage
    where = f"{path}: {how}"
    findings = check_table(copy_with(table, path, data))
    named = {finding.path for finding in findings}
    if how == "deleted" and kind == "last commit":
        assert not named, where  # a table without its last commit is what it was before it
        return
    assert path in named or not is_seen(kind, how), f"{where}: found were {findings}"
    assert_no_wrong_answer(copy_with(table, path, data), answers, path, where)


def is_seen(kind: str, how: str) -> bool:
    """Return whether damage shows: nothing names derived checkpoints and results."""
    return not (how == "deleted" and kind in ("last commit", "root", "kept result"))


def assert_no_wrong_answer(table: Table, answers: dict[str, Any], path: str, where: str) -> None:
    for name, view in views(table).items():
        error = None
        try:
            answer = view()
        except (FormatError, NotFoundError) as caught:
            error, answer = str(caught), answers[name]
        assert error is None or path in error, (
            f"{where}, {name}: the error does not name the file: {error}"
        )
        assert answer == answers[name], f"{where}, {name}: a wrong answer, and no error"
