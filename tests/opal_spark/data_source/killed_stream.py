"""A stream of changes into a second table, in a process of its own.

    python -m ... SOURCE TARGET CHECKPOINT [finish]

It prints a line when a micro-batch begins. With `finish` it ends when it has read everything.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import opal_spark
from opal_spark import OpalTable
from opal_spark.engine.session import open_session

APPLICATION = "copy"


def main(source: str, target: str, checkpoint: str, *, finish: bool) -> None:
    spark = open_session("killed-stream")
    opal_spark.register(spark)
    sink = OpalTable.for_path(spark, target).sink(application=APPLICATION)

    def copy(rows: DataFrame, batch: int) -> None:
        print("batch", batch, flush=True)
        sink(
            rows.select(
                "id",
                "at",
                "city",
                F.col("_change_type").alias("kind"),
                F.col("_commit_version").alias("version"),
            ),
            batch,
        )

    limit = "40" if finish else "4"  # what came while it was killed many times is much
    reader = spark.readStream.format("opal").options(
        readChangeFeed="true", startingVersion="0", maxVersionsPerTrigger=limit
    )
    writer = (
        reader.load(source).writeStream.option("checkpointLocation", checkpoint).foreachBatch(copy)
    )
    if finish:
        opal_spark.run_available(writer)
    else:
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4], finish="finish" in sys.argv)
