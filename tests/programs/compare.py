"""The comparison of a table with the model: reads, feeds, history and invariants."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from opal_lake.definition.ordering import encode_order
from opal_lake.definition.schema import Atomic
from opal_lake.errors import NotFoundError
from tests.kit.check import check_table
from tests.kit.model import ModelRow, intervals, net_changes, visible
from tests.opal_lake.write.changed_tables import Node
from tests.programs.formulas import columns_of, condition
from tests.programs.model import TARGET, in_order, plain, shown
from tests.programs.program import Program

FEED = ("_change_type", "_commit_version")
INTERVAL = ("valid_from", "valid_until", "is_current", "deleted")


def compare_step(program: Program) -> None:
    """Compare the newest version, and one more way to read it or an older one."""
    random, version = program.random, program.version
    assert program.table.log.head().version == version
    compare_read(program, version, None)
    readable, moments = program.readable(), moments_of(program)
    match random.randrange(9):
        case 0:
            compare_read(program, random.choice(readable), random.choice(moments))
        case 1:
            compare_where(program, version, newest_columns=False)
        case 2:
            compare_get(program, version, random.choice(moments))
        case 3:
            compare_feeds(program, random.choice(readable))
        case 4:
            compare_feeds(program, version - 1)
        case 5:
            compare_newest_columns(program, random.choice(readable))
        case 6:
            compare_history_view(program, random.choice(readable))
        case 7:
            is_newest = random.random() < 0.5
            compare_where(program, random.choice(readable), newest_columns=is_newest)
        case 8:
            compare_time(program, random.choice(readable))


def compare_all(program: Program) -> None:
    """Compare all readable versions, a sample of event times and feeds, and all invariants."""
    random, moments, readable = program.random, moments_of(program), program.readable()
    sampled = random.sample(readable, min(len(readable), 4 if program.engine.is_spark else 100))
    for version in sampled:
        compare_read(program, version, None)
    for _ in range(3 if program.engine.is_spark else 8):
        compare_read(program, random.choice(readable), random.choice(moments))
    compare_history_view(program, program.version)
    compare_history_view(program, random.choice(readable))
    compare_newest_columns(program, random.choice(readable))
    compare_feeds(program, program.table.log.head().root.oldest_version)
    compare_feeds(program, random.choice(readable))
    compare_unreadable(program)
    compare_log(program)
    findings = check_table(program.table, all=True)
    assert findings == [], findings


def assert_same(actual: list[str], expected: list[str], what: str) -> None:
    """Raise AssertionError with the rows that only one side has."""
    if actual == expected:
        return
    surplus, missing = Counter(actual), Counter(expected)
    surplus.subtract(expected)
    missing.subtract(actual)
    raise AssertionError(f"{what}: too many are {[*+surplus]}, missing are {[*+missing]}")


def moments_of(program: Program) -> list[Any]:
    """Return all event times that matter; None is now."""
    moments: set[Any] = set()
    for state in program.states.values():
        moments |= {row.delta for row in state.rows.values()}
    if program.roles.delta is not None:
        moments |= {*program.pools[program.roles.delta]}
    return [None, *sorted(moments)]


def order_word(program: Program, moment: Any) -> int:
    delta = program.table.snapshot_at().spec.delta
    assert isinstance(delta.type, Atomic)
    return encode_order(moment, delta.type, name=delta.name)


def is_after_floor(program: Program, version: int, moment: Any) -> bool:
    floor = program.table.snapshot_at(version).root.floor
    return moment is None or floor is None or order_word(program, moment) >= floor


def named(rows: Iterable[ModelRow], columns: Iterable[Node]) -> list[str]:
    columns = list(columns)
    return in_order(shown(row, columns) for row in rows)


def compare_read(program: Program, version: int, moment: Any) -> None:
    state = program.states[version]
    if not is_after_floor(program, version, moment):
        expect_error(lambda: program.table.read(version=version, event_time=moment))
        return
    frame = program.table.read(version=version, event_time=moment)
    expected = named(visible(state.rows.values(), event_time=moment), state.columns)
    actual = in_order(program.engine.rows(frame))
    assert_same(actual, expected, f"version {version}, event time {moment!r}")


def expect_error(call: Callable[[], Any]) -> None:
    try:
        call()
    except NotFoundError:
        return
    raise AssertionError("a moment before the floor or the window is read")


def compare_where(program: Program, version: int, *, newest_columns: bool) -> None:
    """Compare a read with a condition, which skips files."""
    state = program.states[version]
    shown_columns = program.now.columns if newest_columns else state.columns
    columns = columns_of(program.random, {TARGET: shown_columns}, may_be_short=True)
    columns = [column for column in columns if not column.text.startswith(f"{TARGET}.")]
    if not columns:
        return
    where = condition(program.random, columns)
    rows = [row for row in state.visible if where.value({TARGET: row.values}) is True]
    chosen = some_columns(program, shown_columns)
    names = [node.name for node in chosen]
    frame = program.table.read(
        version=version, where=where.text, columns=names, newest_columns=newest_columns
    )
    actual = in_order(program.engine.rows(frame))
    what = f"{version}, {newest_columns=}: {names} where {where.text}"
    assert_same(actual, named(rows, chosen), what)


def some_columns(program: Program, columns: Sequence[Node]) -> Sequence[Node]:
    """Return all columns, or some of them in any order."""
    if program.random.random() < 0.5:
        return columns
    return program.random.sample(columns, program.random.randint(1, len(columns)))


def compare_time(program: Program, version: int) -> None:
    """Compare a read at a time at which a version was the newest one."""
    if version < program.table.log.head().root.oldest_version:
        return
    state, moment = program.states[version], program.moment_of(version)
    actual = in_order(program.engine.rows(program.table.read(timestamp=moment)))
    assert_same(actual, named(state.visible, state.columns), f"version {version} at {moment}")


def compare_get(program: Program, version: int, moment: Any) -> None:
    if not is_after_floor(program, version, moment):
        return
    state = program.states[version]
    names = [node.name for node in state.columns if node.number in program.roles.keys]
    by_number = {node.number: node.name for node in state.columns}
    names = [by_number[number] for number in program.roles.keys]
    keys = list(dict.fromkeys(row.key for row in state.rows.values()))
    wanted = [dict(zip(names, key, strict=True)) for key in keys]
    if not wanted:
        return
    rows = program.table.get(wanted, version=version, event_time=moment).to_pylist()
    expected = {row.key: row for row in visible(state.rows.values(), event_time=moment)}
    assert [plain(row) for row in rows] == [
        plain(shown(expected[key], state.columns)) for key in keys if key in expected
    ]


def compare_newest_columns(program: Program, version: int) -> None:
    state = program.states[version]
    frame = program.table.read(version=version, newest_columns=True)
    actual = in_order(program.engine.rows(frame))
    assert_same(actual, named(state.visible, program.now.columns), f"{version} with new columns")


def compare_feeds(program: Program, before: int) -> None:
    """Compare the feed of the versions after `before`, of rows and of their history."""
    root, end = program.table.log.head().root, program.version
    if before < root.oldest_version or before >= end:
        return
    # A feed has the newest columns
    columns = some_columns(program, program.now.columns)
    names = [node.name for node in columns]
    feed = program.engine.rows(program.table.changes(before + 1, end, columns=names))
    expected: list[dict[str, Any]] = []
    for version in range(before + 1, end + 1):
        for kind, row in net_changes(lambda at: program.states[at].visible, version, version):
            change = {"_change_type": kind, "_commit_version": version}
            expected.append({**shown(row, columns), **change})
    for change in feed:
        del change["_commit_timestamp"]
    assert_same(in_order(feed), in_order(expected), f"feed of {before + 1} to {end}")
    net_feed = program.table.changes(before + 1, end, mode="netChanges", columns=names)
    net = program.engine.rows(net_feed)
    wanted: list[dict[str, Any]] = []
    for kind, row in net_changes(lambda at: program.states[at].visible, before + 1, end):
        wanted.append({**shown(row, columns), "_change_type": kind})
    for change in net:
        del change["_commit_timestamp"], change["_commit_version"]
    assert_same(in_order(net), in_order(wanted), f"net feed of {before + 1} to {end}")
    compare_history_feed(program, before, end)


def compare_history_feed(program: Program, before: int, end: int) -> None:
    """Compare the changes of the history in sum."""
    columns = program.states[end].columns
    frame = program.table.changes(before + 1, end, axis="event_time", mode="netChanges")
    feed = program.engine.rows(frame)
    floor = program.table.snapshot_at(end).root.floor
    old = history_of(program, before, floor)
    new = history_of(program, end, floor)
    expected: list[dict[str, Any]] = []
    for row_id in old.keys() | new.keys():
        left, right = old.get(row_id), new.get(row_id)
        if left is not None and right is not None and left[1:] == right[1:]:
            continue
        if left is not None:
            kind = "delete" if right is None else "update_preimage"
            expected.append(_history_row(left, columns, kind))
        if right is not None:
            kind = "insert" if left is None else "update_postimage"
            expected.append(_history_row(right, columns, kind))
    for change in feed:
        del change["_commit_timestamp"], change["_commit_version"]
    assert_same(in_order(feed), in_order(expected), f"history feed of {before + 1} to {end}")


def _history_row(interval: tuple[Any, ...], columns: Iterable[Node], kind: str) -> dict[str, Any]:
    row, begin, end, deleted = interval
    times = {
        "valid_from": begin,
        "valid_until": end,
        "is_current": end is None,
        "deleted": deleted,
    }
    return {**shown(row, columns), **times, "_change_type": kind}


def history_of(program: Program, version: int, floor: int | None) -> dict[Any, tuple[Any, ...]]:
    """Return the intervals of a version by row id, but for those before the floor."""
    shown_intervals: dict[Any, tuple[Any, ...]] = {}
    for interval in intervals(program.states[version].rows.values()):
        end = interval[2]
        if floor is None or end is None or order_word(program, end) > floor:
            shown_intervals[interval[0].row_id] = interval
    return shown_intervals


def compare_history_view(program: Program, version: int) -> None:
    floor = program.table.snapshot_at(version).root.floor
    columns = some_columns(program, program.states[version].columns)
    expected: list[dict[str, Any]] = []
    for interval in history_of(program, version, floor).values():
        row = _history_row(interval, columns, "")
        del row["_change_type"]
        expected.append(row)
    names = [node.name for node in columns]
    rows = program.engine.rows(program.table.history_view(version=version, columns=names))
    assert_same(in_order(rows), in_order(expected), f"history of version {version}")


def compare_unreadable(program: Program) -> None:
    readable = program.readable()
    for version in program.states:
        if version not in readable:
            expect_error(partial(program.table.read, version=version))


def compare_log(program: Program) -> None:
    """Compare the operations of the log."""
    oldest = program.table.log.head().root.oldest_version
    rows = program.table.history()
    actual = {row["version"]: row["operation"] for row in rows if row["version"] >= oldest}
    expected = {at: name for at, name in program.operations.items() if at >= oldest}
    assert sorted(actual.items()) == sorted(expected.items())
