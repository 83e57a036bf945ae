"""The app that runs `maintain`: compaction, Z-order and retention, as far as they are due.

    spark-submit maintain.py --spec '{"operation": "maintain", "table": "t", "arguments": {"dry_run": true}}'
    spark-submit maintain.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import maintain

if __name__ == "__main__":
    sys.exit(run_app("maintain", maintain))
