"""Batches of messages as Spark's source of Kafka gives them."""

from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from opal_stream.formats.batch import MessageBatch

SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def frame(spark: SparkSession, batch: MessageBatch) -> DataFrame:
    moments = [datetime.fromtimestamp(moment / 1000, UTC) for moment in batch.timestamps_ms]
    columns = (
        batch.topics,
        batch.partitions,
        batch.offsets,
        moments,
        batch.keys,
        batch.values,
        batch.headers,
    )
    return spark.createDataFrame(list(zip(*columns, strict=True)), SCHEMA)
