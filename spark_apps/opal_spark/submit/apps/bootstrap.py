"""The app that runs `bootstrap`: take a folder of Parquet or ORC files, a Delta or an Iceberg table over into an Opal table.

    spark-submit bootstrap.py --spec '{"operation": "bootstrap", "table": "lake/users",
                                       "arguments": {"source": "old/users", "format": "parquet", "keys": ["id"], "delta": "at"}}'
    spark-submit bootstrap.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import bootstrap

if __name__ == "__main__":
    sys.exit(run_app("bootstrap", bootstrap))
