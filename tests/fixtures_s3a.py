"""A session whose Spark reads and writes S3 through S3A."""

from pyspark.sql import SparkSession

from opal_spark.engine.java import ensure_java


def s3a_session(endpoint: str) -> SparkSession:
    ensure_java()
    settings = {
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.2",
        "spark.jars.excludes": ",".join(
            (
                "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3",
                "org.wildfly.openssl:wildfly-openssl",
            )
        ),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "test-key",
        "spark.hadoop.fs.s3a.secret.key": "test-secret",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
