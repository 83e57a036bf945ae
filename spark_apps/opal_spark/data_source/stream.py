"""`spark.readStream.format("opal")`: the rows that versions inserted and updated, or their changes, in order and each once.

Spark 4.1 asks for the newest offset without saying where the stream is, and keeps nothing of where it began. So the reader remembers the
last offset that it gave, or that Spark showed it after a restart (it asks for the partitions between the last offset and itself), and the
first offset says where the stream began. With availableNow Spark shows it only after it has asked for the newest offset: that looks like a
first one then, and counts as one only if the stream had none before. 4.2 says where it is, and that a query ends with what is there now.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from opal_lake.clock import moment_text
from opal_lake.definition.schema import Field
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, NotFoundError, OpalError
from opal_lake.log.commit import Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import CommitTimes
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.change_range import VersionRange, version_range
from opal_lake.read.changed_rows import FEED_COLUMNS
from opal_lake.read.changes import begun_reads, plan_changes
from opal_lake.read.read import file_reads, plan_read
from opal_lake.storage import open_storage
from opal_lake.table import table_on
from opal_spark.data_source.available_now import (
    SupportsTriggerAvailableNow,
    is_unlimited,
    read_limit,
)
from opal_spark.data_source.offset import NOT_BEGUN, SNAPSHOT, StreamOffset, offset_from_json
from opal_spark.data_source.options import StreamOptions
from opal_spark.data_source.stream_parts import (
    FilesPartition,
    VersionsPartition,
    by_size,
    of_versions,
)
from opal_spark.engine.tasks import forget_archives
from opal_spark.read.requested_schema import refuse_nulls, requested_fields

Offset = dict[str, Any]


class OpalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # a class since 4.2
    """Offsets and partitions in a process of the driver's, `read` in the tasks."""

    def __init__(
        self, path: str, storage: Mapping[str, str], options: StreamOptions, schema: StructType
    ) -> None:
        self.path, self.storage, self.options, self.schema = path, storage, options, schema
        self.last: Offset | None = None
        self.is_asked_first = False
        self.no_start: OpalError | None = None
        self.target: Snapshot | None = None

    @cached_property
    def log(self) -> CommitLog:
        return table_on(open_storage(self.path, self.storage)).log

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Spark 4.1 asks for it after the newest, and forgets it: where a stream begins is in its first offset."""
        if self.no_start is not None:
            raise self.no_start
        return NOT_BEGUN

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.target = self.log.head()

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802  # Spark's name
        """At most `maxVersionsPerTrigger` versions further; the same one, if no version since has changed what a read returns."""
        self.last = last = (
            start or self.last
        )  # Spark 4.2 gives it; after a restart it is all that tells which columns were read
        head = self.target or self.log.head()
        most = None if is_unlimited(limit) else self.options.most_versions
        if last is None:
            self.last, self.is_asked_first = self._perhaps_first(head, most), True
        else:
            self.last = (
                self._first(head, most) if last == NOT_BEGUN else self._next(last, head, most)
            )
        return self.last

    def getDefaultReadLimit(self) -> object:  # noqa: N802  # Spark's name
        return read_limit(self.options.most_versions)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # Spark's name
        """For the progress of the query: how far it could be."""
        head = self.log.head()
        return (
            None
            if self.last is None or self.last == NOT_BEGUN
            else self._offset(head, head.root.viewed).to_json()
        )

    def _perhaps_first(self, head: Snapshot, most: int | None) -> Offset:
        """A stream that goes on needs its start no more, which may have expired. One that begins asks for its initial offset next."""
        newest = self._offset(head, head.root.viewed).to_json()
        try:
            return self._first(head, most)
        except (InvalidInputError, NotFoundError) as error:
            self.no_start = error
            return newest

    def _first(self, head: Snapshot, most: int | None) -> Offset:
        head.spec.require_keys("a stream of changes")
        if self.options.start is None:
            return self._offset(head, head.version, SNAPSHOT).to_json()
        versions = version_range(self.log, self.options.start)
        after = versions.last if versions.earlier is None else versions.earlier.version
        if isinstance(self.options.start, datetime) and after == head.version:
            newest = moment_text(CommitTimes(head).of(head.version))
            raise InvalidInputError(
                f"{self.log.storage.uri}: option startingTimestamp={self.options.start} is after the newest version {head.version}, of "
                f"{newest}; give an earlier time, or startingVersion=latest"
            )
        return self._offset(head, _end(after, head, most), after).to_json()

    def _next(self, last: Offset, head: Snapshot, most: int | None) -> Offset:
        offset = offset_from_json(last)
        offset.check(head.root, self.log.storage.uri)
        end = _end(offset.version, head, most)
        return last if end == offset.version else self._offset(head, end).to_json()

    def _offset(self, head: Snapshot, version: int, begun: int | str | None = None) -> StreamOffset:
        known = (
            {}
            if self.last is None or self.last == NOT_BEGUN
            else offset_from_json(self.last).fields
        )
        ids = {field.name: field.id for field in self._fields(head.spec, known)}
        return StreamOffset(table_id=head.root.table_id, version=version, fields=ids, begun=begun)

    def _fields(self, spec: TableSpec, known: Mapping[str, int]) -> tuple[Field, ...]:
        """The table's columns in the query's schema. What has no column of its name any more was renamed if `known` has its id."""
        names = {field.id: field.name for field in spec.schema.fields}
        there = {name.casefold() for name in names.values()}
        own = [
            field
            for field in self.schema
            if not (self.options.changes and field.name.casefold() in FEED_COLUMNS)
        ]
        now = [
            field.name
            if field.name.casefold() in there
            else names.get(known.get(field.name, -1), field.name)
            for field in own
        ]
        if not own:
            return ()
        renamed = StructType(
            [
                StructField(name, field.dataType, field.nullable)
                for name, field in zip(now, own, strict=True)
            ]
        )
        fields = requested_fields(renamed, spec)
        return tuple(
            replace(field, name=given.name) for field, given in zip(fields, own, strict=True)
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Of what `end` has and `start` has not. After a restart Spark asks with the last offset as both, which tells where it is."""
        offset, head = offset_from_json(end), self.log.head()
        offset.check(head.root, self.log.storage.uri)
        before = offset if start == NOT_BEGUN else offset_from_json(start)
        before.check(head.root, self.log.storage.uri)
        if start == end:
            self._refuse_limit()
        self.last, self.is_asked_first = end, False
        if start == end:
            return []
        fields = self._fields(head.spec, offset.fields)
        begun = (
            before.version
            if start != NOT_BEGUN
            else self._begun(head)
            if offset.begun is None
            else offset.begun
        )
        if begun == SNAPSHOT:
            return self._snapshot(head, offset.version, fields)
        assert isinstance(begun, int)
        return (
            []
            if begun >= offset.version
            else self._changed(version_range(self.log, begun + 1, offset.version), fields)
        )

    def _begun(self, head: Snapshot) -> int | str | None:
        """Of a stream whose start could not be read when its first offset was: Spark has kept that, and asks again with its next run."""
        return offset_from_json(self._first(head, None)).begun

    def _refuse_limit(self) -> None:
        """The offset that was asked for before Spark said where the stream is may lie before that: the stream would stand still."""
        if self.is_asked_first and self.options.most_versions is not None:
            raise InvalidInputError(
                f"{self.log.storage.uri}: on Spark 4.1 a query with trigger(availableNow=True) and maxVersionsPerTrigger cannot go on "
                "after a restart; run it by opal_spark.run_available(writer), or without maxVersionsPerTrigger"
            )

    def _snapshot(
        self, head: Snapshot, version: int, fields: tuple[Field, ...]
    ) -> list[InputPartition]:
        inserted = (version, CommitTimes(head).of(version)) if self.options.changes else None
        reads = file_reads(plan_read(self.log.at(version, head), None))
        return [FilesPartition(files, fields, inserted) for files in by_size(reads)]

    def _changed(self, versions: VersionRange, fields: tuple[Field, ...]) -> list[InputPartition]:
        if versions.earlier is None:
            return []
        changes = self.options.changes
        if changes is not None:
            commits = self.log.commits_after(versions.earlier.version, versions.last)
            return of_versions(self.log, commits, fields, changes)
        if not self.options.ignore_deletes:
            self._refuse_deletes(self.log.commits_after(versions.earlier.version, versions.last))
        return [
            FilesPartition(files, fields)
            for files in by_size(begun_reads(plan_changes(self.log, versions)))
        ]

    def _refuse_deletes(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            deletes = (
                commit.result.get("counts", {}).get("deletes") if commit.actions.processed else 0
            )
            if deletes or commit.actions.restored:
                what = f"has deletes ({deletes:,})" if deletes else "restored an older one"
                raise InvalidInputError(
                    f"{self.log.storage.uri}: version {commit.version} {what}, which a stream of rows cannot express; read "
                    f"changes with .option('readChangeFeed', 'true'), or leave deletes out with .option('ignoreDeletes', 'true')"
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        assert isinstance(partition, FilesPartition | VersionsPartition)
        for rows in partition.tables():
            by_name = {name.casefold(): name for name in rows.column_names}
            rows = rows.select(
                [by_name[name.casefold()] for name in self.schema.names]
            ).rename_columns(self.schema.names)
            refuse_nulls(rows, self.schema)
            yield from rows.to_batches()
        forget_archives()


def _end(after: int, head: Snapshot, most: int | None) -> int:
    return max(after, head.root.viewed if most is None else min(head.root.viewed, after + most))
