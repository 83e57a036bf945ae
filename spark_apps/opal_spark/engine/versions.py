"""The versions of Spark that opal-lake supports.

They are checked before anything else of Spark is imported, and before a session's first job.
"""

import re
from typing import TYPE_CHECKING

from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Also the range of the extras `spark` and `connect`. CI tests the oldest, and one of each later
# minor version.
OLDEST = (4, 1)
BEFORE = (5, 0)
_NEEDED = "opal-lake needs Spark 4.1 or a later 4.x"


def check_installed_spark() -> None:
    """Raise InvalidInputError if PySpark is installed in an unsupported version."""
    try:
        import pyspark
    except ModuleNotFoundError:
        return
    if not _fits(pyspark.__version__):
        raise InvalidInputError(
            f"{pyspark.__path__[0]} is PySpark {pyspark.__version__}, and {_NEEDED}: "
            "pip install 'pyspark>=4.1,<5', or set SPARK_HOME to such a Spark"
        )


def check_session(spark: "SparkSession") -> None:
    """Raise InvalidInputError if `spark` is not a session of a supported Spark.

    The Spark of a Connect session is the server's, whatever PySpark is installed here.
    """
    if not isinstance(getattr(spark, "version", None), str):
        raise InvalidInputError(
            f"{spark!r} is not a SparkSession; the session comes first, then the table's path, "
            "as in OpalTable.for_path(spark, 'lake/orders')"
        )
    if not _fits(spark.version):
        raise InvalidInputError(
            f"this session runs on Spark {spark.version}, and {_NEEDED}: "
            "start it on such a Spark, or connect to one"
        )


def _fits(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    major_and_minor = (int(numbers[1]), int(numbers[2]))
    return OLDEST <= major_and_minor < BEFORE
