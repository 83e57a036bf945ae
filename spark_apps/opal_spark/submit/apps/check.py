"""The app that runs `check`: every invariant of a table, by Spark's tasks.

    spark-submit check.py --spec '{"operation": "check", "table": "s3a://lake/users", "arguments": {"sample": "1%"}}'
    spark-submit check.py --spec @spec.json

Prints the JobResult as the last line, its examples are the findings; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import check

if __name__ == "__main__":
    sys.exit(run_app("check", check))
