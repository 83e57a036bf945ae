"""The app that runs `discard`: withdraw pending rows.

    spark-submit discard.py --spec '{"operation": "discard", "table": "t", "arguments": {"partition_key": "2026-11-24"}}'
    spark-submit discard.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import discard

if __name__ == "__main__":
    sys.exit(run_app("discard", discard))
