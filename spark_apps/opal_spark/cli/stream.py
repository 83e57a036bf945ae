"""`opal stream run --spark`: with this option Spark reads the topics."""

import argparse
import importlib.util

from opal_lake.cli.command import OpalParser, Verbs, store_options
from opal_lake.cli.run_job import spark_is_missing
from opal_lake.errors import InvalidInputError
from opal_lake.s3a import spark_settings
from opal_spark.engine.versions import check_installed_spark
from opal_stream.cli.run import checked_run, finish, run, setup_of


def commands(verbs: Verbs) -> None:
    """Add Spark to the verb `opal stream`, if the package of the verb is installed.

    It is an `opal.commands` entry point that runs after the one of the verb.
    """
    stream = verbs.choices.get("stream")
    if not isinstance(stream, OpalParser):
        return
    parser = stream.verbs()["run"]
    parser.add_argument(
        "--verbose", action="store_true", help="with --spark: show the output of Spark"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    if args.spark:
        run_by_spark(args)
        return
    if args.verbose:
        raise InvalidInputError(
            "--verbose does nothing without --spark; add --spark, or leave --verbose out"
        )
    run(args)


def run_by_spark(args: argparse.Namespace) -> None:
    """Run the stream on Spark until all messages are read or the user stops it."""
    given = checked_run(args)
    if importlib.util.find_spec("pyspark") is None:
        raise spark_is_missing("opal stream run --spark")
    check_installed_spark()
    setup = setup_of(args, given)
    from opal_spark.cli.launch import launched
    from opal_spark.streams.source import EXCLUDES, client_settings, package
    from opal_spark.streams.stream import SparkStream

    # Raises an error for settings that Kafka's own client does not know, before Spark starts
    client_settings(setup.connection)
    conf = {"spark.jars.packages": package(), "spark.jars.excludes": EXCLUDES}
    conf |= {**spark_settings(store_options(args)), **given.spark_conf}
    with launched(f"opal stream run {args.table}", conf, verbose=args.verbose) as spark:
        finish(args, given, SparkStream(spark, setup))
