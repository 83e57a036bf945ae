"""`opal stream --spark`: Spark reads the topics, an option of the verb that needs none."""

import argparse
import importlib.util

from opal_lake.cli.command import Verbs, pairs, store_options
from opal_lake.errors import InvalidInputError
from opal_lake.s3a import spark_settings
from opal_stream.cli.commands import finish, reads, setup_of, stream


def commands(verbs: Verbs) -> None:
    """Add the option to the verb, if its plugin is there (an `opal.commands` entry point, which comes after that of the verb)."""
    parser = verbs.choices.get("stream")
    if parser is None:
        return
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--spark",
        action="store_true",
        help="read by Spark: for what is more than a process can read",
    )
    spark.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark, as spark.driver.memory=8g",
    )
    spark.add_argument("--verbose", action="store_true", help="show what Spark says")
    parser.set_defaults(run=lambda args: run(args) if args.spark else stream(args))


def run(args: argparse.Namespace) -> int | None:
    """What only asks needs no Spark."""
    if not reads(args):
        return stream(args)
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidInputError(
            "opal stream --spark needs Spark, which is not installed: pip install 'airflow-provider-opal[spark]'"
        )
    setup = setup_of(args)
    from opal_spark.cli.launch import launched
    from opal_spark.streams.source import EXCLUDES, client_settings, package
    from opal_spark.streams.stream import SparkStream

    client_settings(
        setup.connection
    )  # refuses what Kafka's own client does not know, before Spark starts
    conf = {"spark.jars.packages": package(), "spark.jars.excludes": EXCLUDES}
    conf |= {**spark_settings(store_options(args)), **pairs(args.conf, "--conf")}
    with launched(f"opal stream {args.table}", conf, verbose=args.verbose) as spark:
        finish(args, SparkStream(spark, setup))
    return None
