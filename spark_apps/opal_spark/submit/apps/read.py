"""The app that runs `read`: show rows, or export them.

    spark-submit read.py --spec '{"operation": "read", "table": "lake/users", "arguments": {"to": "out", "format": "csv"}}'
    spark-submit read.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import read

if __name__ == "__main__":
    sys.exit(run_app("read", read))
