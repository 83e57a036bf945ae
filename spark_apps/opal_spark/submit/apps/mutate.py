"""The app that runs `mutate`: merge files of inserts, updates and deletes into a folder of files.

    spark-submit mutate.py --spec '{"operation": "mutate", "table": "lake/products", "arguments": {"increments": ["in"], "ids": ["id"]}}'
    spark-submit mutate.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import mutate

if __name__ == "__main__":
    sys.exit(run_app("mutate", mutate))
