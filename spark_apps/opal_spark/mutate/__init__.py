"""The merge of files into a folder of files, with Spark; `opal_folder` moves and swaps the files.

`mutate` is the run. `groups` finds files that are read together, `rows` reads them with the
position of each row. `decisions` decides which mutation of a record counts. `bad_rows` refuses bad
rows with file and line, or puts them aside. `parquet_files` and `avro_files` read the schemas in
files, where Spark does not report them.
"""

from opal_spark.mutate.mutate import mutate
from opal_spark.mutate.read import read_master

__all__ = ["mutate", "read_master"]
