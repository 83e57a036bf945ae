"""The app that runs `metagen`: make pending rows visible.

    spark-submit metagen.py --spec '{"operation": "metagen", "table": "lake/users", "arguments": {}}'
    spark-submit metagen.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import metagen

if __name__ == "__main__":
    sys.exit(run_app("metagen", metagen))
