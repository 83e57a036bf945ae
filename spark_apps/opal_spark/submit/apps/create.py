"""The app that runs `create`: create a table.

    spark-submit create.py --spec '{"operation": "create", "table": "lake/users",
                                    "arguments": {"schema": "id BIGINT, at TIMESTAMP", "keys": ["id"], "delta": "at"}}'
    spark-submit create.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import create

if __name__ == "__main__":
    sys.exit(run_app("create", create))
