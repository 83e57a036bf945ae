"""The app that runs `rebuild_key_store`: make the key store anew from the data files.

    spark-submit rebuild_key_store.py --spec '{"operation": "rebuild_key_store", "table": "lake/users", "arguments": {}}'
    spark-submit rebuild_key_store.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import rebuild_key_store

if __name__ == "__main__":
    sys.exit(run_app("rebuild_key_store", rebuild_key_store))
