"""The app that runs `set_properties`: change properties of a table.

    spark-submit set_properties.py --spec '{"operation": "set_properties", "table": "t", "arguments": {"properties": {"window": "30d"}}}'
    spark-submit set_properties.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_spark.submit.app import run_app
from opal_spark.submit.operations import set_properties

if __name__ == "__main__":
    sys.exit(run_app("set_properties", set_properties))
