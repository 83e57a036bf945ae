"""The app for spark-submit: runs the operation of a JobSpec.

    spark-submit app.py --spec '{"operation": "compact", "table": "lake/users"}'
    spark-submit app.py --spec @spec.json

Prints the JobResult as the last line; exit codes as in `opal --help`.
"""

import sys

from opal_lake.cli import OPAL
from opal_lake.errors import InvalidInputError
from opal_spark.engine.versions import check_installed_spark


def main() -> int:
    """Run the app, if this Spark is one that it can run on."""
    try:
        check_installed_spark()
    except InvalidInputError as error:
        return OPAL.report(error)
    # Imports what another Spark may lack
    from opal_spark.submit.runner import run_app

    return run_app()


if __name__ == "__main__":
    sys.exit(main())
