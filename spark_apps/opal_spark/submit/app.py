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
    """Run the app and return its exit code, if the installed Spark is supported."""
    try:
        check_installed_spark()
    except InvalidInputError as error:
        return OPAL.report(error)
    # Imported after the check, because it imports modules that an unsupported Spark may lack
    from opal_spark.submit.runner import run_app

    return run_app()


if __name__ == "__main__":
    sys.exit(main())
