"""Files merged into a folder of files with Spark. What is moved and swapped: `opal_folder`.

`mutate` is the run. `groups` are files of one form, `rows` reads them with the position of each
row, `decisions` says which mutation of a record counts, `bad_rows` names wrong rows with file and
line, or puts them aside. `parquet_files` and `avro_files` read headers of files for what Spark does
not report.
"""

from opal_spark.mutate.mutate import mutate
from opal_spark.mutate.read import read_master

__all__ = ["mutate", "read_master"]
