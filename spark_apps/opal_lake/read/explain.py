"""A plan of a read as JSON values: the files that it would open and skip, and why.

It is made from metadata alone; no rows are read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from opal_lake.data.prune import (
    And,
    Comparable,
    Compare,
    In,
    IsNull,
    Or,
    Predicate,
    Unknown,
    may_match,
)
from opal_lake.data.segment import Cluster, DataFile
from opal_lake.definition.ordering import from_order
from opal_lake.definition.schema import Atomic, Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.read import FileAction, FileFilter, bounds_of_all

NAMES = {
    FileAction.PENDING: "pending",
    FileAction.LATER: "pruned_by_event_time",
    FileAction.PRUNED: "pruned_by_bounds",
    FileAction.DEAD: "pruned_as_dead",
    FileAction.PLAIN: "read_whole",
    FileAction.MIXED: "read_filtered",
}
_SHOWN_VALUES = 3
_TIMES = ("date", "timestamp", "timestamp_ntz")


def explain(file_filter: FileFilter) -> dict[str, Any]:
    """Return the files and bytes that a read would open and skip, by reason.

    The result also has the files that each condition skips, and those in Z-order.
    """
    snapshot = file_filter.snapshot
    files, sizes = Counter[FileAction](), Counter[FileAction]()
    seen: list[DataFile] = []
    pruned: list[DataFile] = []
    for file in snapshot.files.values():
        action = file_filter.action(file)
        files[action] += 1
        sizes[action] += file.size
        # A read tries the conditions only on files that the event time does not rule out
        if action not in (FileAction.PENDING, FileAction.LATER):
            seen.append(file)
        if action is FileAction.PRUNED:
            pruned.append(file)
    files_by_name = {name: files[action] for action, name in NAMES.items()}
    bytes_by_name = {name: sizes[action] for action, name in NAMES.items()}
    return {
        "uri": snapshot.storage.uri,
        "version": snapshot.version,
        "files": {"total": files.total(), **files_by_name},
        "bytes": {"total": sizes.total(), **bytes_by_name},
        "conditions": list(_conditions(file_filter.predicate, snapshot.spec, seen, pruned)),
        "z_order": _z_order(snapshot),
    }


def _conditions(
    predicate: Predicate | None, spec: TableSpec, seen: list[DataFile], pruned: list[DataFile]
) -> Iterator[dict[str, Any]]:
    """Yield how many files each condition skips, and how many it skips alone.

    `seen` are the files that conditions are tried on, `pruned` the files that they rule out
    together.
    """
    parts = list(_conjuncts(predicate))
    skipped_by_part: list[set[str]] = [set() for _ in parts]
    for file in seen:
        # Built once for each file: there are bounds for each column of the table
        bounds = bounds_of_all(file, spec)
        for part, skipped in zip(parts, skipped_by_part, strict=True):
            if not may_match(part, bounds, file.rows):
                skipped.add(file.path)
    times: Counter[str] = Counter()
    for skipped in skipped_by_part:
        times.update(skipped)
    sizes = {file.path: file.size for file in seen}
    for part, skipped in zip(parts, skipped_by_part, strict=True):
        yield {
            "condition": condition_text(part, spec),
            "columns": sorted({spec.by_id(number).name for number in _columns(part)}),
            "files": len(skipped),
            "bytes": sum(sizes[path] for path in skipped),
            "files_by_it_alone": sum(1 for path in skipped if times[path] == 1),
        }
    # No condition alone rules these files out. The parts of an Or may do so by different columns
    together = sum(1 for file in pruned if not times[file.path])
    if together:
        yield {
            "condition": "all together",
            "columns": [],
            "files": together,
            "bytes": 0,
            "files_by_it_alone": together,
        }


def _conjuncts(predicate: Predicate | None) -> Iterator[Predicate]:
    """Yield the conditions that must all be true."""
    match predicate:
        case None:
            return
        case And(parts=parts):
            for part in parts:
                yield from _conjuncts(part)
        case _:
            yield predicate


def _columns(predicate: Predicate) -> Iterator[int]:
    """Yield the field ids that a predicate names."""
    match predicate:
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from _columns(part)
        case Compare(field_id=number) | In(field_id=number) | IsNull(field_id=number):
            yield number


def condition_text(predicate: Predicate, spec: TableSpec) -> str:
    """Return a condition as people write it."""
    match predicate:
        case And(parts=[]):
            return "true"
        case Or(parts=[]):
            return "false"
        case And(parts=parts):
            return " AND ".join(_within(part, spec) for part in parts)
        case Or(parts=parts):
            return " OR ".join(_within(part, spec) for part in parts)
        case Unknown():
            return "a condition that bounds cannot answer"
        case IsNull(field_id=number, negated=negated):
            test = "IS NOT NULL" if negated else "IS NULL"
            return f"{spec.by_id(number).name} {test}"
        case Compare(field_id=number, op=op, value=value):
            field = spec.by_id(number)
            return f"{field.name} {op} {_value_text(value, field)}"
        case In(field_id=number, values=values):
            field = spec.by_id(number)
            shown = [_value_text(value, field) for value in values[:_SHOWN_VALUES]]
            if len(values) > _SHOWN_VALUES:
                shown.append("...")
            return f"{field.name} IN ({', '.join(shown)})"


def _within(predicate: Predicate, spec: TableSpec) -> str:
    text = condition_text(predicate, spec)
    return f"({text})" if isinstance(predicate, And | Or) else text


def _value_text(value: Comparable, field: Field) -> str:
    assert isinstance(field.type, Atomic)
    kind = field.type.name
    if kind in _TIMES and isinstance(value, int):
        return f"'{from_order(value, field.type)}'"
    if kind == "binary":
        return f"X'{value}'"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bool | int | float):
        return str(value)
    return repr(value)


def _z_order(snapshot: Snapshot) -> dict[str, Any]:
    """Return the files of each Z-order, and the files without a Z-order."""
    files_by_columns: dict[tuple[int, ...], list[DataFile]] = {}
    for file in snapshot.files.values():
        columns = file.cluster.columns if file.cluster else ()
        files_by_columns.setdefault(columns, []).append(file)
    unordered = files_by_columns.pop((), [])
    orders = sorted(files_by_columns.items())
    return {
        "orders": [_order(snapshot.spec, columns, files) for columns, files in orders],
        "files_without": len(unordered),
        "bytes_without": sum(file.size for file in unordered),
    }


def _order(
    spec: TableSpec, columns: tuple[int, ...], files: Iterable[DataFile]
) -> Mapping[str, Any]:
    names = {field.id: field.name for field in spec.schema.fields}
    members = list(files)
    runs: set[Cluster | None] = {file.cluster for file in members}
    return {
        "columns": [names.get(number, f"field {number}") for number in columns],
        "runs": len(runs),
        "files": len(members),
        "bytes": sum(file.size for file in members),
    }
