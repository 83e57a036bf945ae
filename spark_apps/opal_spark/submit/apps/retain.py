"""The app that runs `retain`: let old versions expire, and delete what nothing needs any more.

    spark-submit retain.py --spec '{"operation": "retain", "table": "t", "arguments": {"window": "30d"}}'
    spark-submit retain.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import retain

if __name__ == "__main__":
    sys.exit(run_app("retain", retain))
