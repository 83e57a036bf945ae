"""The app that runs `changes`: show what versions changed, or export it.

    spark-submit changes.py --spec '{"operation": "changes", "table": "lake/users", "arguments": {"start": 8, "to": "out"}}'
    spark-submit changes.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import changes

if __name__ == "__main__":
    sys.exit(run_app("changes", changes))
