"""The app that runs `ingest`: append the rows of files or of a database.

    spark-submit ingest.py --spec '{"operation": "ingest", "table": "lake/users", "arguments": {"source": {"files": ["in/*.csv"]}}}'
    spark-submit ingest.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import ingest

if __name__ == "__main__":
    sys.exit(run_app("ingest", ingest))
