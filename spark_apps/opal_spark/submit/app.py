"""The app for spark-submit: runs the operation of a JobSpec.

    spark-submit app.py --spec '{"operation": "compact", "table": "lake/users"}'
    spark-submit app.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.runner import run_app

if __name__ == "__main__":
    sys.exit(run_app())
