"""Settings that a session lends for the time of an action."""

from pyspark.sql import SparkSession

from opal_spark.session import arrow_batches

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"


def test_the_session_s_own_settings_come_back_when_the_last_is_done(spark: SparkSession) -> None:
    """Also when two Python objects of the one session ask, and leave in any order."""
    other = SparkSession.getActiveSession()
    assert other is not None
    before = spark.conf.get(BYTES, None), spark.conf.get(ROWS, None)
    first, second = arrow_batches(spark, 1000), arrow_batches(other, 2000)
    first.__enter__()
    assert spark.conf.get(ROWS) == "1000"
    second.__enter__()
    assert (spark.conf.get(BYTES), spark.conf.get(ROWS)) == (str(2**31 - 1), "1000")
    first.__exit__(None, None, None)
    assert spark.conf.get(ROWS) == "2000"
    second.__exit__(None, None, None)
    assert (spark.conf.get(BYTES, None), spark.conf.get(ROWS, None)) == before


def test_who_has_to_count_bytes_does_so_beside_who_has_not(spark: SparkSession) -> None:
    with arrow_batches(spark, 1000), arrow_batches(spark, None):
        assert int(spark.conf.get(BYTES) or 0) == 64 << 20


def test_a_lower_limit_of_the_session_is_kept(spark: SparkSession) -> None:
    spark.conf.set(ROWS, "10")
    try:
        with arrow_batches(spark, 1000):
            assert spark.conf.get(ROWS) == "10"
    finally:
        spark.conf.unset(ROWS)
