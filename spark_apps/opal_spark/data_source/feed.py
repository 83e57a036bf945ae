"""The change feed of a batch read.

One task reads all of it: the rows of a key lie in several files, and a feed has the two rows of an
update one after the other. For large feeds use `OpalTable.changes`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.operations.read import Changes
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    read_changes,
)
from opal_lake.read.changes import plan_changes
from opal_lake.read.result_columns import is_named
from opal_lake.table import Table
from opal_spark.engine.columns import spark_schema, spark_type_name
from opal_spark.engine.tasks import forget_archives
from opal_spark.read.requested_schema import refuse_nulls


def feed_schema(spec: TableSpec) -> StructType:
    """Return a change feed's schema: the table's columns, then those of a change."""
    table_schema = spark_schema(spec, physical=False)
    # The feed's own columns win over the table's of the same name
    names = [field.name for field in spec.schema.fields if not is_named(field, FEED_COLUMNS)]
    schema = StructType([table_schema[name] for name in names])
    schema.add(CHANGE_TYPE, StringType())
    schema.add(COMMIT_VERSION, LongType())
    schema.add(COMMIT_TIMESTAMP, TimestampType())
    return schema


class FeedReader(DataSourceReader):
    """The reader of a change feed, in one task.

    The versions of the feed are fixed when the query is planned: `bounds` are the first and the
    last one, or None if the range has no version.
    """

    def __init__(
        self, path: str, storage: Mapping[str, str], feed: Changes, schema: StructType
    ) -> None:
        versions = version_range(Table.open(path, storage).log, feed.start, feed.end)
        versions.head.spec.require_keys("a change feed")
        if versions.earlier is None:
            self.bounds = None
        else:
            self.bounds = (versions.earlier.version + 1, versions.last)
        self.path, self.storage, self.schema = path, storage, schema
        self.names = _feed_names(schema, feed_schema(versions.head.spec))
        table_columns = [name for name in self.names if name not in FEED_COLUMNS]
        self.feed = replace(feed, columns=table_columns)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if self.bounds is not None:
            log = Table.open(self.path, self.storage).log
            versions = version_range(log, *self.bounds)
            plan = plan_changes(log, versions, is_net=self.feed.is_net)
            rows = read_changes(plan, self.feed)
            rows = rows.select(self.names).rename_columns(self.schema.names)
            refuse_nulls(rows, self.schema)
            yield from rows.to_batches()
        forget_archives()


def _feed_names(schema: StructType, feed: StructType) -> list[str]:
    """Return the feed's names for the columns of the query's schema.

    The query may write a name in another case. Raises InvalidInputError for a column that the feed
    does not have with this type.
    """
    feed_fields = {field.name.casefold(): field for field in feed}
    names = []
    for field in schema:
        feed_field = feed_fields.get(field.name.casefold())
        if feed_field is None or feed_field.dataType != field.dataType:
            columns = ", ".join(f"{known.name} {spark_type_name(known.dataType)}" for known in feed)
            raise InvalidInputError(
                f"the schema given to format('opal') does not fit the change feed: {field.name} "
                f"{spark_type_name(field.dataType)}. The feed has {columns}: name any of them with "
                "these types, and cast in the query"
            )
        names.append(feed_field.name)
    return names
