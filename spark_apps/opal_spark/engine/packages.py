"""Parts of Spark that its distribution lacks, by their names on Maven, and fetched from there when they are asked for."""

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.engine.failures import first_words

_FOR_41 = "4.1.1"  # the only one of 4.1 that Maven has whole
_MISSING = ("Failed to find data source", "DATA_SOURCE_NOT_FOUND")


def spark_package(name: str) -> str:
    """The Maven coordinates of a part, for this Spark."""
    version = _FOR_41 if pyspark.__version__.startswith("4.1.") else pyspark.__version__
    return f"org.apache.spark:{name}_2.13:{version}"


def bring_avro(spark: SparkSession) -> None:
    """Let a session read and write Avro, if it does not yet. Its jar needs nothing that Spark lacks."""
    if _knows_avro(spark):
        return
    package = spark_package("spark-avro")
    try:
        spark.sql(f"ADD JAR 'ivy://{package}?transitive=false'").collect()
    except Exception as error:
        raise InvalidInputError(
            f"Spark needs {package} for Avro, which could not be fetched ({first_words(error)}): start Spark with it, as "
            f"`opal mutate --conf spark.jars.packages={package}`, or without a network with --conf spark.jars=FILE"
        ) from error


def _knows_avro(spark: SparkSession) -> bool:
    """By opening a file that is not there."""
    try:
        _ = spark.read.format("avro").schema("x INT").load("file:///opal-no-such-file.avro").schema
    except AnalysisException as error:
        return not any(text in str(error) for text in _MISSING)
    return True
