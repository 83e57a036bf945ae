"""The app that runs `add_columns`: give a table more columns.

    spark-submit add_columns.py --spec '{"operation": "add_columns", "table": "t", "arguments": {"columns": {"discount": "double"}}}'
    spark-submit add_columns.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import add_columns

if __name__ == "__main__":
    sys.exit(run_app("add_columns", add_columns))
