"""The app that runs `restore`: a new version that shows what an older one showed.

    spark-submit restore.py --spec '{"operation": "restore", "table": "t", "arguments": {"version": 7}}'
    spark-submit restore.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import restore

if __name__ == "__main__":
    sys.exit(run_app("restore", restore))
