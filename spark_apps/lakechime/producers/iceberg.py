"""Iceberg tables: each snapshot that a branch went through since the last look.

The tables' own metadata are read with pyiceberg. A snapshot that changes no data (`replace`: a
compaction) registers nothing. The next one names the last registered snapshot as its predecessor.
The partitions of a snapshot are those of the files that it added or removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
_READERS = 8  # threads that read manifests
_AT_ONCE = 64  # snapshots whose manifests are read together
_OPERATIONS = {"append": OperationType.APPEND, "delete": OperationType.DELETE}
_NO_CHANGE = "replace"
_METADATA = ".metadata.json"
_MISSING = "Iceberg tables need pyiceberg, which is not installed: pip install 'opal-lake[iceberg]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergLocation:
    """The location of a table: its identifier in a catalog, or the path of its folder.

    `properties` are those of pyiceberg.
    """

    identifier: str | None = None
    catalog: str | None = None
    path: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.identifier is None):
            raise InvalidEventError(
                f"an Iceberg table has identifier={self.identifier!r} and path={self.path!r}; "
                "give either its identifier in a catalog, or the path of its folder"
            )

    @property
    def text(self) -> str:
        if self.path is not None:
            return self.path
        catalog = self.catalog or self.properties.get("uri", "default")
        return f"{catalog}:{self.identifier}"

    def load(self) -> "Table":
        """Return the table as it is now, or raise NotFoundError."""
        try:
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError as error:
            raise InvalidEventError(_MISSING) from error
        try:
            if self.path is not None:
                return self._from_folder(self.path)
            return self._from_catalog()
        except (NoSuchTableError, FileNotFoundError) as error:
            raise NotFoundError(
                f"the Iceberg table {self.text} does not exist; correct its name or its path"
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
                f"the Iceberg catalog {name} cannot be opened ({error}); give its address: in the "
                "file of tables under options, as {type: rest, uri: ...}, in .pyiceberg.yaml, or "
                f"as PYICEBERG_CATALOG__{name.upper()}__URI"
            ) from error
        return catalog.load_table(self.identifier)

    def _from_folder(self, path: str) -> "Table":
        from pyiceberg.table import StaticTable

        if not path.endswith(_METADATA):
            path = newest_metadata(path, self.properties)
        return StaticTable.from_metadata(path, dict(self.properties))


def newest_metadata(path: str, properties: Mapping[str, str]) -> str:
    """Return the path of the metadata file with the greatest number."""
    folder = Folder.open(f"{path.rstrip('/')}/metadata", properties)
    names_by_number: dict[int, list[str]] = {}
    for entry in folder.files():
        number = _metadata_number(entry.path)
        if number is not None:
            names_by_number.setdefault(number, []).append(entry.path)
    if not names_by_number:
        raise NotFoundError(
            f"{path} has no Iceberg metadata (metadata/v1{_METADATA}, ...); correct the path"
        )
    newest_number = max(names_by_number)
    newest = names_by_number[newest_number]
    if len(newest) > 1:
        raise InvalidEventError(
            f"{path} has {len(newest)} metadata files of number {newest_number}, "
            "which only the table's catalog can order; name the catalog"
        )
    return f"{path.rstrip('/')}/metadata/{newest[0]}"


def _metadata_number(name: str) -> int | None:
    """Return the number in the name of a metadata file, or None for another file.

    Names are `v3.metadata.json` and `00003-<uuid>.metadata.json`.
    """
    if not name.endswith(_METADATA):
        return None
    stem, _, _ = name.removeprefix("v").partition("-")
    digits, _, _ = stem.partition(".")
    return int(digits) if digits.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSource:
    """A branch of an Iceberg table."""

    location: IcebergLocation
    target: Target
    branch: str = MAIN

    def steps(self, position: Position | None) -> Iterator[Step]:
        table = self.location.load()
        # A quoted branch has no "@", so the last "@" of an origin ends the table's location
        branch = quote(self.branch, safe="")
        origin = Origin(
            table_format=TableFormat.ICEBERG,
            at=f"{self.location.text}@{branch}",
            id=f"{table.metadata.table_uuid}@{branch}",
        )
        if position is not None:
            check_format(position, self.target, TableFormat.ICEBERG, origin.at)
        head = self._head(table)
        lineage = Lineage.of(position)
        if position is not None and not origin.is_of(position, self.target):
            lineage = Lineage(turns=lineage.turns + 1)
        if head is None or head.snapshot_id == lineage.head:
            return
        links = {snapshot.snapshot_id: _link_of(snapshot) for snapshot in table.metadata.snapshots}
        course = plan_course(head.snapshot_id, links, lineage)
        events = _Events(
            table=table, target=self.target, origin=origin, lineage=lineage, course=course
        )
        yield from events.steps()

    def _head(self, table: "Table") -> "Snapshot | None":
        if self.branch == MAIN:
            return table.current_snapshot()
        reference = table.metadata.refs.get(self.branch)
        if reference is None:
            raise NotFoundError(
                f"the Iceberg table {self.location.text} has no branch {self.branch!r}; "
                f"use one of {', '.join(table.metadata.refs)}"
            )
        return table.snapshot_by_id(reference.snapshot_id)


def _link_of(snapshot: "Snapshot") -> Link:
    # Format version 1 has the sequence number 0, which stands for none
    return Link(parent=snapshot.parent_snapshot_id, sequence=snapshot.sequence_number or None)


@dataclass(slots=True, kw_only=True)
class _Events:
    """The events of a course of snapshots."""

    table: "Table"
    target: Target
    origin: Origin
    lineage: Lineage
    course: Course
    previous: str | None = None  # the snapshot of the last event
    lost: str | None = None  # the expired snapshots that the next event stands for

    def steps(self) -> Iterator[Step]:
        course = self.course
        self.previous = course.after
        if course.is_lost:
            self.lost = f"after {self.lineage.head}"
        if course.restored is not None:
            yield self._restoration(course.restored)
        for start in range(0, len(course.ids), _AT_ONCE):
            ids = course.ids[start : start + _AT_ONCE]
            snapshots = [self._snapshot(snapshot_id) for snapshot_id in ids]
            for snapshot, partitions in zip(snapshots, self._partitions(snapshots), strict=True):
                yield self._step(snapshot, partitions)

    def _restoration(self, snapshot_id: int) -> Step:
        """Return the step of a branch that went back to a registered snapshot."""
        old_head = self.lineage.head
        self.previous = self.lineage.registered
        snapshot = self.table.snapshot_by_id(snapshot_id)
        sequence = None if snapshot is None else snapshot.sequence_number
        self.lineage = self.lineage.restored(snapshot_id, sequence)
        tags = {RESTORED: str(snapshot_id), **again_tags(str(self.lineage.turns))}
        event = self._event(snapshot_id, tags)
        self.previous = str(snapshot_id)
        note = (
            f"{self.target.table} went from snapshot {old_head} back to {snapshot_id}, "
            "which was registered before"
        )
        return Step(position=self._position(), events=(event,), note=note)

    def _step(self, snapshot: "Snapshot", partitions: Sequence[tuple[Any, ...] | None]) -> Step:
        lost, self.lost = self.lost, None
        events: tuple[DataChangeEvent, ...] = ()
        note = None
        # A compaction is registered if it is the one that stands for lost snapshots
        if lost is not None or _operation_name(snapshot) != _NO_CHANGE:
            events = tuple(self._events(snapshot, partitions))
        if lost is not None:
            events = tuple(replace(event, tags={**event.tags, LOST: lost}) for event in events)
            note = (
                f"snapshots of {self.target.table} {lost} expired before they were registered; "
                f"snapshot {snapshot.snapshot_id} stands for all of them"
            )
        if events:
            self.previous = str(snapshot.snapshot_id)
        self.lineage = self.lineage.followed_by(
            snapshot.snapshot_id, snapshot.sequence_number, self.previous
        )
        return Step(position=self._position(), events=events, note=note)

    def _position(self) -> dict[str, Any]:
        return {**self.origin.to_json(), **self.lineage.to_json()}

    def _snapshot(self, snapshot_id: int) -> "Snapshot":
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return snapshot

    def _partitions(self, snapshots: "Sequence[Snapshot]") -> list[list[tuple[Any, ...] | None]]:
        if len(snapshots) == 1:
            return [self._partitions_of(snapshots[0])]
        with ThreadPoolExecutor(_READERS) as pool:
            return [*pool.map(self._partitions_of, snapshots)]

    def _partitions_of(self, snapshot: "Snapshot") -> list[tuple[Any, ...] | None]:
        """Return the partitions in which a snapshot added or removed files.

        None stands for a file without a partition that events can name.
        """
        if _operation_name(snapshot) == _NO_CHANGE:
            return []
        if not any(levels_of(spec) for spec in self.table.metadata.partition_specs):
            return []
        # Only manifests that the snapshot added have the files that it added or removed
        touched: dict[tuple[Any, ...] | None, None] = {}
        for manifest in snapshot.manifests(self.table.io):
            if manifest.added_snapshot_id in (None, snapshot.snapshot_id):
                touched.update(dict.fromkeys(self._touched(manifest, snapshot.snapshot_id)))
        return [*touched]

    def _touched(
        self, manifest: "ManifestFile", snapshot_id: int
    ) -> Iterator[tuple[Any, ...] | None]:
        from pyiceberg.manifest import ManifestEntryStatus

        spec = self.table.metadata.specs()[manifest.partition_spec_id]
        values = values_of(spec, self.table.metadata.schemas)
        for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=False):
            is_own = entry.snapshot_id in (None, snapshot_id)
            if is_own and entry.status != ManifestEntryStatus.EXISTING:
                yield values(entry.data_file.partition)

    def _events(
        self, snapshot: "Snapshot", partitions: Sequence[tuple[Any, ...] | None]
    ) -> Iterator[DataChangeEvent]:
        operation = _operation_name(snapshot)
        tags = {"iceberg.operation": operation} if operation else {}
        event = replace(
            self._event(snapshot.snapshot_id, tags),
            operation_type=_OPERATIONS.get(operation, OperationType.UPDATE),
        )
        if None in partitions or not partitions:
            yield event
        for partition in partitions:
            if partition is not None:
                yield replace(event, partition=partition)

    def _event(self, snapshot_id: int, tags: Mapping[str, str]) -> DataChangeEvent:
        """Return the event of a snapshot, which may have expired."""
        snapshot = self.table.snapshot_by_id(snapshot_id)
        return DataChangeEvent(
            table=self.target.table,
            cluster=self.target.cluster,
            snapshot_id=str(snapshot_id),
            snapshot_ts=None if snapshot is None else snapshot.timestamp_ms,
            prev_snapshot_id=self.previous,
            table_format=TableFormat.ICEBERG,
            tags={"iceberg.table_uuid": str(self.table.metadata.table_uuid), **tags},
        )


def _operation_name(snapshot: "Snapshot") -> str:
    """Return the operation of a snapshot, or "" if format version 1 leaves it out."""
    if snapshot.summary is None:
        return ""
    return str(snapshot.summary.operation.value)
