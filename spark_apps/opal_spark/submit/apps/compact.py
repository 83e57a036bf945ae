"""The app that runs `compact`: fewer, larger files.

    spark-submit compact.py --spec '{"operation": "compact", "table": "lake/users", "arguments": {"mode": "minor"}}'
    spark-submit compact.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import compact

if __name__ == "__main__":
    sys.exit(run_app("compact", compact))
