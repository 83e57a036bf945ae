"""What a read would open and what it would skip, and why, as values that go into JSON as they are. Reads metadata only, never rows."""

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
from opal_lake.read.read import Fate, FileFilter, bounds_of_all

NAMES = {
    Fate.PENDING: "pending",
    Fate.LATER: "pruned_by_event_time",
    Fate.PRUNED: "pruned_by_bounds",
    Fate.DEAD: "pruned_as_dead",
    Fate.PLAIN: "read_whole",
    Fate.MIXED: "read_filtered",
}
_SHOWN_VALUES = 3
_TIMES = ("date", "timestamp", "timestamp_ntz")


def explain(file_filter: FileFilter) -> dict[str, Any]:
    """Files and bytes by what a read does with them; for each condition of the filter what it skips; how far the table is in Z-order."""
    snapshot = file_filter.snapshot
    fates = {path: file_filter.fate(file) for path, file in snapshot.files.items()}
    files, sizes = Counter(fates.values()), Counter[Fate]()
    for path, fate in fates.items():
        sizes[fate] += snapshot.files[path].size
    pruned = [snapshot.files[path] for path, fate in fates.items() if fate is Fate.PRUNED]
    seen = [
        snapshot.files[path]
        for path, fate in fates.items()
        if fate not in (Fate.PENDING, Fate.LATER)
    ]
    return {
        "uri": snapshot.storage.uri,
        "version": snapshot.version,
        "files": {"total": len(fates), **{name: files[fate] for fate, name in NAMES.items()}},
        "bytes": {
            "total": sum(sizes.values()),
            **{name: sizes[fate] for fate, name in NAMES.items()},
        },
        "conditions": list(_conditions(file_filter.predicate, snapshot.spec, seen, pruned)),
        "z_order": _z_order(snapshot),
    }


def _conditions(
    predicate: Predicate | None, spec: TableSpec, seen: list[DataFile], pruned: list[DataFile]
) -> Iterator[dict[str, Any]]:
    """Of each condition that must hold: what it would skip by itself, and what no other one skips."""
    parts = list(_conjuncts(predicate))
    by_part: list[set[str]] = [set() for _ in parts]
    for file in seen:
        bounds = bounds_of_all(file, spec)  # once a file: as many as the table has columns
        for part, paths in zip(parts, by_part, strict=True):
            if not may_match(part, bounds, file.rows):
                paths.add(file.path)
    times = Counter(path for paths in by_part for path in paths)
    sizes = {file.path: file.size for file in seen}
    for part, paths in zip(parts, by_part, strict=True):
        yield {
            "condition": condition_text(part, spec),
            "columns": sorted({spec.by_id(number).name for number in _columns(part)}),
            "files": len(paths),
            "bytes": sum(sizes[path] for path in paths),
            "files_by_it_alone": sum(1 for path in paths if times[path] == 1),
        }
    if together := sum(
        1 for file in pruned if not times[file.path]
    ):  # as when parts of an Or go by different columns
        yield {
            "condition": "all together",
            "columns": [],
            "files": together,
            "bytes": 0,
            "files_by_it_alone": together,
        }


def _conjuncts(predicate: Predicate | None) -> Iterator[Predicate]:
    match predicate:
        case None:
            return
        case And(parts=parts):
            for part in parts:
                yield from _conjuncts(part)
        case _:
            yield predicate


def _columns(predicate: Predicate) -> Iterator[int]:
    match predicate:
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from _columns(part)
        case Compare(field_id=number) | In(field_id=number) | IsNull(field_id=number):
            yield number


def condition_text(predicate: Predicate, spec: TableSpec) -> str:
    """A condition as people write it."""
    match predicate:
        case And(parts=parts) | Or(parts=parts):
            word = " AND " if isinstance(predicate, And) else " OR "
            return (
                word.join(_within(part, spec) for part in parts)
                if parts
                else str(isinstance(predicate, And)).lower()
            )
        case Unknown():
            return "what bounds cannot answer"
        case IsNull(field_id=number, negated=negated):
            return f"{spec.by_id(number).name} IS {'NOT ' if negated else ''}NULL"
        case Compare(field_id=number, op=op, value=value):
            return f"{spec.by_id(number).name} {op} {_value_text(value, spec.by_id(number))}"
        case In(field_id=number, values=values):
            field = spec.by_id(number)
            shown = [_value_text(value, field) for value in values[:_SHOWN_VALUES]]
            return f"{field.name} IN ({', '.join(shown + ['...'] * (len(values) > _SHOWN_VALUES))})"


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
    return str(value) if isinstance(value, bool | int | float) else repr(value)


def _z_order(snapshot: Snapshot) -> dict[str, Any]:
    """By which columns how much is in order, and what is not."""
    orders: dict[tuple[int, ...], list[DataFile]] = {}
    for file in snapshot.files.values():
        orders.setdefault(file.cluster.columns if file.cluster else (), []).append(file)
    rest = orders.pop((), [])
    return {
        "orders": [
            _order(snapshot.spec, columns, files) for columns, files in sorted(orders.items())
        ],
        "files_without": len(rest),
        "bytes_without": sum(file.size for file in rest),
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
