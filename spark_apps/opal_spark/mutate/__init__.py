"""Files merged into a folder of files with Spark: reading, merging, writing. What is moved and swapped: `opal_lake.mutate`."""

from opal_spark.mutate.master import read_master
from opal_spark.mutate.mutate import mutate

__all__ = ["mutate", "read_master"]
