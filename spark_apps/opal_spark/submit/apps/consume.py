"""The app that runs `consume`: call a function of your own with what came to a table.

    spark-submit consume.py --spec '{"operation": "consume", "table": "lake/orders",
                                     "arguments": {"function": "shop_jobs:revenue", "partition_key": "2026-11-01"}}'
    spark-submit consume.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import consume

if __name__ == "__main__":
    sys.exit(run_app("consume", consume))
