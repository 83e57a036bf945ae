"""`spark.readStream.format("opal")`: a table's rows or changes, in order and each once.

A stream of rows has the rows that versions inserted, and the new rows of updates.

Spark 4.2 passes the stream's position when it asks for the newest offset. Spark 4.1 passes nothing,
and does not store where a stream began. So the reader does two things:

- It remembers the last offset: the one that it returned, or after a restart the one of the
  checkpoint. Spark 4.1 shows that offset by asking for the partitions from the offset to itself.
- It writes the start of the stream into the first offset.

With trigger(availableNow=True) Spark 4.1 shows the offset of the checkpoint only after it has asked
for the newest offset. The reader then answers as for a new stream, and Spark drops this answer if
the checkpoint has an offset.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

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
    Tuning,
    VersionsPartition,
    feed_partitions,
    files_of_tasks,
)
from opal_spark.engine.tasks import forget_archives
from opal_spark.read.requested_schema import refuse_nulls, requested_fields

Offset = dict[str, Any]


class OpalStreamReader(
    DataSourceStreamReader,
    SupportsTriggerAvailableNow,  # type: ignore[misc]  # a class since 4.2
):
    """The reader of a stream.

    A Python process of the driver plans offsets and partitions; the tasks read the rows.
    `last` is the last known offset, `target` the version at which a query ends.
    `is_asked_first` is set while `last` may be an answer that Spark drops. `no_start` is the error
    of a start that cannot be read.
    """

    def __init__(
        self,
        path: str,
        storage: Mapping[str, str],
        options: StreamOptions,
        schema: StructType,
        *,
        tuning: Tuning = Tuning(),  # noqa: B008  # frozen
    ) -> None:
        self.path, self.storage, self.options, self.schema = path, storage, options, schema
        self.tuning = tuning
        self.last: Offset | None = None
        self.is_asked_first = False
        self.no_start: OpalError | None = None
        self.target: Snapshot | None = None

    @cached_property
    def log(self) -> CommitLog:
        return table_on(open_storage(self.path, self.storage)).log

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset of a stream that has read nothing.

        It is constant, because Spark 4.1 asks for it after the newest offset and does not store it.
        Raises the error of a start that cannot be read.
        """
        if self.no_start is not None:
            raise self.no_start
        return NOT_BEGUN

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.target = self.log.head()

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: Offset | None = None, limit: object = None
    ) -> Offset:
        """Return an offset at most `maxVersionsPerTrigger` versions after the last.

        Return the last offset itself if no later version has changed the rows of a read.
        """
        # Only Spark 4.2 passes `start`. After a restart it is the offset of the checkpoint.
        last = start or self.last
        # Set before the next offset is planned: `_offset` takes the columns' ids from it
        self.last = last
        head = self.target or self.log.head()
        max_versions = None if is_unlimited(limit) else self.options.max_versions
        if last is None:
            self.last = self._perhaps_first(head, max_versions)
            self.is_asked_first = True
        elif last == NOT_BEGUN:
            self.last = self._first(head, max_versions)
        else:
            self.last = self._next(last, head, max_versions)
        return self.last

    def getDefaultReadLimit(self) -> object:  # noqa: N802  # Spark's name
        return read_limit(self.options.max_versions)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # Spark's name
        """Return the offset of the newest version, for the query's progress."""
        head = self.log.head()
        if self.last is None or self.last == NOT_BEGUN:
            return None
        return self._offset(head, head.root.viewed).to_json()

    def _perhaps_first(self, head: Snapshot, max_versions: int | None) -> Offset:
        """Return the first offset of a stream; the stream may already have a checkpoint.

        If the start cannot be read, return the newest offset and remember the error. A stream with
        a checkpoint does not need its start, which may have expired. For a stream without one,
        Spark asks for the initial offset next, and `initialOffset` raises the error.
        """
        newest = self._offset(head, head.root.viewed).to_json()
        try:
            return self._first(head, max_versions)
        except (InvalidInputError, NotFoundError) as error:
            self.no_start = error
            return newest

    def _first(self, head: Snapshot, max_versions: int | None) -> Offset:
        head.spec.require_keys("a stream of changes")
        if self.options.start is None:
            return self._offset(head, head.version, SNAPSHOT).to_json()
        versions = version_range(self.log, self.options.start)
        after = versions.last if versions.earlier is None else versions.earlier.version
        # A time after the newest version is probably a typo: the stream would skip all rows that
        # are committed until then
        if isinstance(self.options.start, datetime) and after == head.version:
            newest = moment_text(CommitTimes(head).of(head.version))
            raise InvalidInputError(
                f"{self.log.storage.uri}: option startingTimestamp={self.options.start} is after "
                f"the newest version {head.version}, of {newest}; "
                "give an earlier time, or startingVersion=latest"
            )
        end = _last_version(after, head, max_versions)
        return self._offset(head, end, after).to_json()

    def _next(self, last: Offset, head: Snapshot, max_versions: int | None) -> Offset:
        offset = offset_from_json(last)
        offset.check(head.root, self.log.storage.uri)
        end = _last_version(offset.version, head, max_versions)
        if end == offset.version:
            return last
        return self._offset(head, end).to_json()

    def _offset(self, head: Snapshot, version: int, begun: int | str | None = None) -> StreamOffset:
        if self.last is None or self.last == NOT_BEGUN:
            known_ids: Mapping[str, int] = {}
        else:
            known_ids = offset_from_json(self.last).fields
        ids = {field.name: field.id for field in self._fields(head.spec, known_ids)}
        return StreamOffset(table_id=head.root.table_id, version=version, fields=ids, begun=begun)

    def _fields(self, spec: TableSpec, known_ids: Mapping[str, int]) -> tuple[Field, ...]:
        """Return the table's fields for the columns of the query, with the query's names.

        If the table has no column of such a name, the column was renamed: `known_ids` has its id.
        """
        name_of_id = {field.id: field.name for field in spec.schema.fields}
        table_names = {name.casefold() for name in name_of_id.values()}
        query_names = []
        renamed = StructType()
        for field in self.schema:
            if self.options.changes and field.name.casefold() in FEED_COLUMNS:
                continue
            table_name = field.name
            if field.name.casefold() not in table_names and field.name in known_ids:
                table_name = name_of_id.get(known_ids[field.name], field.name)
            query_names.append(field.name)
            renamed.add(table_name, field.dataType, field.nullable)
        if not query_names:
            return ()
        fields = requested_fields(renamed, spec)
        with_query_names = [
            replace(field, name=name) for field, name in zip(fields, query_names, strict=True)
        ]
        return tuple(with_query_names)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of the versions after `start`, up to `end`.

        After a restart Spark 4.1 passes the checkpoint's offset as both `start` and `end`.
        """
        offset, head = offset_from_json(end), self.log.head()
        # The table may have been replaced since the checkpoint was written
        offset.check(head.root, self.log.storage.uri)
        before = offset if start == NOT_BEGUN else offset_from_json(start)
        before.check(head.root, self.log.storage.uri)
        if start == end:
            self._refuse_limit()
        self.last, self.is_asked_first = end, False
        if start == end:
            return []
        fields = self._fields(head.spec, offset.fields)
        if start != NOT_BEGUN:
            begun: int | str | None = before.version
        elif offset.begun is not None:
            begun = offset.begun
        else:
            begun = self._begun(head)
        # The first micro-batch of such a stream is the whole table, at the version of its end
        if begun == SNAPSHOT:
            return self._snapshot(head, offset.version, fields)
        assert isinstance(begun, int)
        if begun >= offset.version:
            return []
        return self._changed(version_range(self.log, begun + 1, offset.version), fields)

    def _begun(self, head: Snapshot) -> int | str | None:
        """Return where the stream begins, for an end that does not record it.

        `_perhaps_first` returned that end, because the start could not be read. The start is read
        again here, and its error is raised.
        """
        return offset_from_json(self._first(head, None)).begun

    def _refuse_limit(self) -> None:
        """Raise InvalidInputError if the stream could not advance after this restart.

        With a limit, the offset that Spark 4.1 asked for before it showed the checkpoint is counted
        from the stream's start. So it may lie before the checkpoint.
        """
        if self.is_asked_first and self.options.max_versions is not None:
            raise InvalidInputError(
                f"{self.log.storage.uri}: on Spark 4.1 a query with trigger(availableNow=True) and "
                "maxVersionsPerTrigger cannot continue after a restart; run it by "
                "opal_spark.run_available(writer), or without maxVersionsPerTrigger"
            )

    def _snapshot(
        self, head: Snapshot, version: int, fields: tuple[Field, ...]
    ) -> list[InputPartition]:
        inserted = None
        if self.options.changes:
            inserted = (version, CommitTimes(head).of(version))
        plan = plan_read(self.log.at(version, head), None)
        tasks = files_of_tasks(file_reads(plan), self.tuning)
        return [FilesPartition(files, fields, inserted) for files in tasks]

    def _changed(self, versions: VersionRange, fields: tuple[Field, ...]) -> list[InputPartition]:
        if versions.earlier is None:
            return []
        changes = self.options.changes
        if changes is not None:
            commits = self.log.commits_after(versions.earlier.version, versions.last)
            return feed_partitions(self.log, commits, fields, changes, self.tuning)
        if not self.options.ignore_deletes:
            self._refuse_deletes(self.log.commits_after(versions.earlier.version, versions.last))
        reads = begun_reads(plan_changes(self.log, versions))
        tasks = files_of_tasks(reads, self.tuning)
        return [FilesPartition(files, fields) for files in tasks]

    def _refuse_deletes(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            deletes = 0
            # Deletes of an ingest hide rows only in the version that processes the ingest
            if commit.actions.processed:
                deletes = commit.result.get("counts", {}).get("deletes")
            if deletes:
                reason = f"has deletes ({deletes:,})"
            elif commit.actions.restored:
                reason = "restored an older one"
            else:
                continue
            raise InvalidInputError(
                f"{self.log.storage.uri}: version {commit.version} {reason}, which a stream of "
                "rows cannot express; read changes with .option('readChangeFeed', 'true'), or "
                "leave out deletes and rows that a restore removed, with "
                ".option('ignoreDeletes', 'true')"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows, in a task."""
        assert isinstance(partition, FilesPartition | VersionsPartition)
        for rows in partition.tables():
            # Spark expects the order and the names of the query's schema
            own_names = {name.casefold(): name for name in rows.column_names}
            names = [own_names[name.casefold()] for name in self.schema.names]
            selected = rows.select(names).rename_columns(self.schema.names)
            refuse_nulls(selected, self.schema)
            yield from selected.to_batches()
        forget_archives()


def _last_version(after: int, head: Snapshot, max_versions: int | None) -> int:
    """Return the last version of a micro-batch that begins after the version `after`."""
    # Versions after `viewed` did not change the rows of a read
    end = head.root.viewed
    if max_versions is not None:
        end = min(end, after + max_versions)
    return max(after, end)
