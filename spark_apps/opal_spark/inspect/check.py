"""The check with Spark's tasks for tables with enough rows."""

from pyspark.sql import SparkSession

from opal_lake.inspect.check import Checked, CheckOptions
from opal_lake.inspect.check import check as check_here
from opal_lake.inspect.check.content.by_tasks import look_by_tasks
from opal_lake.inspect.check.content.in_process import Content, look_here
from opal_lake.table import Table
from opal_spark.engine.executor import SparkExecutor


def check(spark: SparkSession, table: Table, options: CheckOptions) -> Checked:
    """By tasks if there is more than one slot; a small table is checked in this process."""
    executor = SparkExecutor(spark=spark)

    def look(content: Content) -> None:
        slots = executor.slots(content.rows)
        if slots > 1:
            look_by_tasks(content, executor, slots)
        else:
            look_here(content)

    return check_here(table, options, look)
