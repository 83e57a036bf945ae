"""The app that runs `zorder`: rows close in some columns into the same files.

    spark-submit zorder.py --spec '{"operation": "zorder", "table": "lake/users", "arguments": {"columns": ["country", "age"]}}'
    spark-submit zorder.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import zorder

if __name__ == "__main__":
    sys.exit(run_app("zorder", zorder))
