"""`spark.readStream.format("opal")`: a table's rows or changes, in order and each once.

Rows are those that versions inserted and updated.

Spark 4.1 asks for the newest offset without saying where the stream is, and does not store where it
began. So the reader remembers the last offset that it gave, or that Spark showed it after a restart
(it asks for the partitions between the last offset and itself), and the first offset says where the
stream began. With availableNow Spark shows it only after it has asked for the newest offset: that
looks like a first one then, and counts as one only if the stream had none before. Spark 4.2 says
where the stream is, and that a query ends with the versions that exist now.
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
    by_size,
    of_versions,
)
from opal_spark.engine.tasks import forget_archives
from opal_spark.read.requested_schema import refuse_nulls, requested_fields

Offset = dict[str, Any]


class OpalStreamReader(
    DataSourceStreamReader,
    SupportsTriggerAvailableNow,  # type: ignore[misc]  # a class since 4.2
):
    """The reader of a stream.

    Offsets and partitions are made in a process of the driver's, rows are read in the tasks.
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
        """Return the offset before the first one.

        Spark 4.1 asks for it after the newest, and forgets it: the first offset says where the
        stream begins.
        """
        if self.no_start is not None:
            raise self.no_start
        return NOT_BEGUN

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.target = self.log.head()

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: Offset | None = None, limit: object = None
    ) -> Offset:
        """Return an offset at most `maxVersionsPerTrigger` versions after the last one.

        It is the last one, if no version since has changed what a read returns.
        """
        # Spark 4.2 gives it; after a restart only it says which columns were read
        last = start or self.last
        # Set already here: the next offset takes the columns' ids from it
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
        """Return the first offset of a stream that may have had others.

        A stream that continues needs its start no longer, which may have expired. One that begins
        is asked for its initial offset next, and fails there.
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
        # A time after the newest version is a slip: the stream would skip what comes before it
        if isinstance(self.options.start, datetime) and after == head.version:
            newest = moment_text(CommitTimes(head).of(head.version))
            raise InvalidInputError(
                f"{self.log.storage.uri}: option startingTimestamp={self.options.start} is after "
                f"the newest version {head.version}, of {newest}; "
                "give an earlier time, or startingVersion=latest"
            )
        end = _end(after, head, max_versions)
        return self._offset(head, end, after).to_json()

    def _next(self, last: Offset, head: Snapshot, max_versions: int | None) -> Offset:
        offset = offset_from_json(last)
        offset.check(head.root, self.log.storage.uri)
        end = _end(offset.version, head, max_versions)
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
        """Return the table's columns in the query's schema, by the query's names.

        A name that the table lacks is a column that was renamed, if `known_ids` has its id.
        """
        name_of_id = {field.id: field.name for field in spec.schema.fields}
        table_names = {name.casefold() for name in name_of_id.values()}
        query_names = []
        renamed = StructType()
        for field in self.schema:
            if self.options.changes and field.name.casefold() in FEED_COLUMNS:
                continue
            table_name = field.name
            if field.name.casefold() not in table_names:
                table_name = name_of_id.get(known_ids.get(field.name, -1), field.name)
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
        """Return the partitions of what `end` has and `start` has not.

        After a restart Spark asks with the last offset as both, which says where the stream is.
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
        # The first micro-batch has the whole table, at the version of its end
        if begun == SNAPSHOT:
            return self._snapshot(head, offset.version, fields)
        assert isinstance(begun, int)
        if begun >= offset.version:
            return []
        return self._changed(version_range(self.log, begun + 1, offset.version), fields)

    def _begun(self, head: Snapshot) -> int | str | None:
        """Return where a stream began whose start could not be read for its first offset.

        Spark has stored that offset, and asks again with its next run.
        """
        return offset_from_json(self._first(head, None)).begun

    def _refuse_limit(self) -> None:
        """Raise InvalidInputError where the stream would stand still after a restart.

        The offset that was asked for before Spark said where the stream is may lie before that.
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
        inserted = (version, CommitTimes(head).of(version)) if self.options.changes else None
        reads = file_reads(plan_read(self.log.at(version, head), None))
        tasks = by_size(reads, self.tuning)
        return [FilesPartition(files, fields, inserted) for files in tasks]

    def _changed(self, versions: VersionRange, fields: tuple[Field, ...]) -> list[InputPartition]:
        if versions.earlier is None:
            return []
        changes = self.options.changes
        if changes is not None:
            commits = self.log.commits_after(versions.earlier.version, versions.last)
            return of_versions(self.log, commits, fields, changes, self.tuning)
        if not self.options.ignore_deletes:
            self._refuse_deletes(self.log.commits_after(versions.earlier.version, versions.last))
        reads = begun_reads(plan_changes(self.log, versions))
        return [FilesPartition(files, fields) for files in by_size(reads, self.tuning)]

    def _refuse_deletes(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            deletes = 0
            # Deletes of an ingest hide rows only once they are processed
            if commit.actions.processed:
                deletes = commit.result.get("counts", {}).get("deletes")
            if not deletes and not commit.actions.restored:
                continue
            what = f"has deletes ({deletes:,})" if deletes else "restored an older one"
            raise InvalidInputError(
                f"{self.log.storage.uri}: version {commit.version} {what}, which a stream of rows "
                "cannot express; read changes with .option('readChangeFeed', 'true'), or leave "
                "deletes out with .option('ignoreDeletes', 'true')"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows, in a task."""
        assert isinstance(partition, FilesPartition | VersionsPartition)
        for rows in partition.tables():
            # Spark expects the columns in the query's order and by its names
            by_name = {name.casefold(): name for name in rows.column_names}
            names = [by_name[name.casefold()] for name in self.schema.names]
            selected = rows.select(names).rename_columns(self.schema.names)
            refuse_nulls(selected, self.schema)
            yield from selected.to_batches()
        forget_archives()


def _end(after: int, head: Snapshot, max_versions: int | None) -> int:
    """Return the last version of a micro-batch.

    Versions after `viewed` changed nothing that a read returns.
    """
    end = head.root.viewed
    if max_versions is not None:
        end = min(end, after + max_versions)
    return max(after, end)
