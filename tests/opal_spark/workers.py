"""Spark's Python workers in tests, whose daemon has imported once what each needs.

A test run starts a hundred workers, and each would take more than a second of CPU to import it.
"""

import gc

import pandas as pd
import pyarrow.parquet as pq
import pyspark.worker
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers

from opal_spark.engine import by_key, columns, tasks

IMPORTED = (by_key, columns, pd, pq, pyspark.worker, serializers, tasks)

if __name__ == "__main__":
    gc.freeze()  # no worker collects, and so copies, what all share
    manager()
