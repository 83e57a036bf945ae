"""Iceberg tables, by their own metadata (pyiceberg): the snapshots that one branch went through since the last look, each once.

A snapshot that changes no data (`replace`: a compaction) registers nothing, and the next one names the last that did as its predecessor.
The partitions of a snapshot are those of the files that it added or took away.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakechime.errors import InvalidEventError, NotFoundError, UnavailableError
from lakechime.event import DataChangeEvent, OperationType, TableFormat
from lakechime.producers.folders import Folder
from lakechime.producers.lineage import Course, Lineage, Link, plan_course
from lakechime.producers.outbox import (
    Origin,
    Position,
    Step,
    Target,
    again_tags,
    check_format,
)
from lakechime.producers.partition_values import levels_of, values_of
from lakechime.tags import LOST, RESTORED

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MAIN = "main"
_READERS = 8
_AT_ONCE = 64  # snapshots whose manifests are read together
_OPERATIONS = {"append": OperationType.APPEND, "delete": OperationType.DELETE}
_NO_CHANGE = "replace"
_METADATA = ".metadata.json"
_MISSING = "Iceberg tables need pyiceberg, which is not installed: pip install 'opal-lake[iceberg]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergPlace:
    """Where a table is: in a catalog, by its name, or in a folder that no catalog keeps. Properties are pyiceberg's."""

    identifier: str | None = None
    catalog: str | None = None
    path: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.identifier is None):
            raise InvalidEventError(
                "name an Iceberg table by its identifier in a catalog, or by the path of its folder, and not by both"
            )

    @property
    def text(self) -> str:
        if self.path is not None:
            return self.path
        return f"{self.catalog or self.properties.get('uri', 'default')}:{self.identifier}"

    def load(self) -> "Table":
        """As it is now. NotFoundError when there is none."""
        try:
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError as error:
            raise InvalidEventError(_MISSING) from error
        try:
            return self._from_folder(self.path) if self.path is not None else self._from_catalog()
        except (NoSuchTableError, FileNotFoundError) as error:
            raise NotFoundError(
                f"there is no Iceberg table {self.text}; correct its name or its path"
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"the Iceberg table {self.text} cannot be read ({error}); try again later"
            ) from error

    def _from_catalog(self) -> "Table":
        from pyiceberg.catalog import load_catalog

        assert self.identifier is not None
        try:
            catalog = load_catalog(self.catalog, **self.properties)
        except ValueError as error:
            name = self.catalog or "default"
            raise InvalidEventError(
                f"the Iceberg catalog {name} cannot be opened ({error}); say where it is: in the file of tables under options, as "
                f"{{type: rest, uri: ...}}, in .pyiceberg.yaml, or as PYICEBERG_CATALOG__{name.upper()}__URI"
            ) from error
        return catalog.load_table(self.identifier)

    def _from_folder(self, path: str) -> "Table":
        from pyiceberg.table import StaticTable

        location = path if path.endswith(_METADATA) else newest_metadata(path, self.properties)
        return StaticTable.from_metadata(location, dict(self.properties))


def newest_metadata(path: str, properties: Mapping[str, str]) -> str:
    """Of a folder as Hadoop's catalog writes it: the one of the greatest number."""
    folder = Folder.open(f"{path.rstrip('/')}/metadata", properties)
    numbered: dict[int, list[str]] = {}
    for entry in folder.files():
        digits = entry.path.removeprefix("v").partition("-")[0].partition(".")[0]
        if entry.path.endswith(_METADATA) and digits.isdecimal():
            numbered.setdefault(int(digits), []).append(entry.path)
    if not numbered:
        raise NotFoundError(
            f"{path} holds no Iceberg metadata (metadata/v1{_METADATA}, ...); correct the path"
        )
    newest = numbered[max(numbered)]
    if len(newest) > 1:
        raise InvalidEventError(
            f"{path} has {len(newest)} metadata files of one number, which only its catalog tells apart; name the catalog"
        )
    return f"{path.rstrip('/')}/metadata/{newest[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSource:
    """A branch of an Iceberg table."""

    place: IcebergPlace
    target: Target
    branch: str = MAIN

    def steps(self, position: Position | None) -> Iterator[Step]:
        table = self.place.load()
        branch = self.branch if self.branch == MAIN else f"@{self.branch}"
        origin = Origin(
            table_format=TableFormat.ICEBERG,
            at=f"{self.place.text}{branch}",
            id=f"{table.metadata.table_uuid}{branch}",
        )
        if position is not None:
            check_format(position, self.target, TableFormat.ICEBERG, origin.at)
        head, lineage = self._head(table), Lineage.of(position)
        if position is not None and not origin.is_of(position, self.target):
            lineage = Lineage(turns=lineage.turns + 1)
        if head is None or head.snapshot_id == lineage.head:
            return
        links = {
            snapshot.snapshot_id: Link(
                parent=snapshot.parent_snapshot_id, sequence=snapshot.sequence_number or None
            )
            for snapshot in table.metadata.snapshots
        }
        course = plan_course(head.snapshot_id, links, lineage)
        yield from _Events(
            table=table, target=self.target, origin=origin, lineage=lineage, course=course
        ).all()

    def _head(self, table: "Table") -> "Snapshot | None":
        if self.branch == MAIN:
            return table.current_snapshot()
        reference = table.metadata.refs.get(self.branch)
        if reference is None:
            raise NotFoundError(
                f"the Iceberg table {self.place.text} has no branch {self.branch!r}; use one of {', '.join(table.metadata.refs)}"
            )
        return table.snapshot_by_id(reference.snapshot_id)


@dataclass(slots=True, kw_only=True)
class _Events:
    """Makes the events of a course of snapshots."""

    table: "Table"
    target: Target
    origin: Origin
    lineage: Lineage
    course: Course
    previous: str | None = None
    lost: str | None = None

    def all(self) -> Iterator[Step]:
        course = self.course
        self.previous, self.lost = (
            course.after,
            f"after {self.lineage.head}" if course.is_lost else None,
        )
        if course.restored is not None:
            yield self._restoration(course.restored)
        for start in range(0, len(course.ids), _AT_ONCE):
            snapshots = [self._snapshot(number) for number in course.ids[start : start + _AT_ONCE]]
            for snapshot, partitions in zip(snapshots, self._partitions(snapshots), strict=True):
                yield self._step(snapshot, partitions)

    def _restoration(self, number: int) -> Step:
        self.previous, gone_from = self.lineage.registered, self.lineage.head
        snapshot = self.table.snapshot_by_id(number)
        self.lineage = self.lineage.restored(
            number, None if snapshot is None else snapshot.sequence_number
        )
        event = self._event(number, {RESTORED: str(number), **again_tags(str(self.lineage.turns))})
        self.previous = str(number)
        note = f"{self.target.table} went from snapshot {gone_from} back to {number}, which was registered before"
        return Step(position=self._position(), events=(event,), note=note)

    def _step(self, snapshot: "Snapshot", partitions: Sequence[tuple[Any, ...] | None]) -> Step:
        """Also a compaction is told where it is all that is left of lost snapshots."""
        lost, self.lost, note = self.lost, None, None
        events = (
            ()
            if _operation_name(snapshot) == _NO_CHANGE and lost is None
            else tuple(self._events(snapshot, partitions))
        )
        if lost is not None:
            events = tuple(replace(event, tags={**event.tags, LOST: lost}) for event in events)
            note = f"snapshots of {self.target.table} {lost} expired before they were registered; left is {snapshot.snapshot_id}"
        self.previous = str(snapshot.snapshot_id) if events else self.previous
        self.lineage = self.lineage.followed_by(
            snapshot.snapshot_id, snapshot.sequence_number, self.previous
        )
        return Step(position=self._position(), events=events, note=note)

    def _position(self) -> dict[str, Any]:
        return {**self.origin.to_json(), **self.lineage.to_json()}

    def _snapshot(self, number: int) -> "Snapshot":
        snapshot = self.table.snapshot_by_id(number)
        assert snapshot is not None
        return snapshot

    def _partitions(self, snapshots: "Sequence[Snapshot]") -> list[list[tuple[Any, ...] | None]]:
        if len(snapshots) == 1:
            return [self._partitions_of(snapshots[0])]
        with ThreadPoolExecutor(_READERS) as pool:
            return [*pool.map(self._partitions_of, snapshots)]

    def _partitions_of(self, snapshot: "Snapshot") -> list[tuple[Any, ...] | None]:
        """Those of the files that the snapshot added and took away, in the order in which they come."""
        if _operation_name(snapshot) == _NO_CHANGE or not any(
            levels_of(spec) for spec in self.table.metadata.partition_specs
        ):
            return []
        own = [
            file
            for file in snapshot.manifests(self.table.io)
            if file.added_snapshot_id in (None, snapshot.snapshot_id)
        ]
        touched: dict[tuple[Any, ...] | None, None] = {}
        for manifest in own:
            touched.update(dict.fromkeys(self._touched(manifest, snapshot.snapshot_id)))
        return [*touched]

    def _touched(
        self, manifest: "ManifestFile", snapshot_id: int
    ) -> Iterator[tuple[Any, ...] | None]:
        from pyiceberg.manifest import ManifestEntryStatus

        spec = self.table.metadata.specs()[manifest.partition_spec_id]
        values = values_of(spec, self.table.metadata.schemas)
        for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=False):
            if entry.status != ManifestEntryStatus.EXISTING and entry.snapshot_id in (
                None,
                snapshot_id,
            ):
                yield values(entry.data_file.partition)

    def _events(
        self, snapshot: "Snapshot", partitions: Sequence[tuple[Any, ...] | None]
    ) -> Iterator[DataChangeEvent]:
        name = _operation_name(snapshot)
        event = replace(
            self._event(snapshot.snapshot_id, {"iceberg.operation": name} if name else {}),
            operation_type=_OPERATIONS.get(name, OperationType.UPDATE),
        )
        if None in partitions or not partitions:
            yield event
        yield from (
            replace(event, partition=partition) for partition in partitions if partition is not None
        )

    def _event(self, number: int, tags: Mapping[str, str]) -> DataChangeEvent:
        """Of a snapshot that may have expired."""
        snapshot = self.table.snapshot_by_id(number)
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(number),
            snapshot_ts=None if snapshot is None else snapshot.timestamp_ms,
            prev_snapshot_id=self.previous,
            table_format=TableFormat.ICEBERG,
            tags={"iceberg.table_uuid": str(self.table.metadata.table_uuid), **tags},
        )


def _operation_name(snapshot: "Snapshot") -> str:
    """Tables of the first format version may leave it out."""
    return "" if snapshot.summary is None else str(snapshot.summary.operation.value)
