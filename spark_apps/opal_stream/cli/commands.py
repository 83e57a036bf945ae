"""The verb `opal stream`: read Kafka into a table, or say where the streams of a table stand."""

import argparse
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from opal_lake.cli.command import Verb, Verbs, add_command, pairs, store_options, whole_number
from opal_lake.cli.render import Style
from opal_lake.clock import parse_moment_ms
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError, count_text
from opal_stream.cli.commit import add_commit, commit
from opal_stream.cli.monitoring import MONITORING, print_monitoring
from opal_stream.cli.plan import add_plan, plan
from opal_stream.cli.status import add_alarms, status
from opal_stream.cli.supervised import add_supervised, has_committer, is_supervised, supervisor_of
from opal_stream.cli.uses import COMMIT, READ, STATUS, check_use, use_of
from opal_stream.rules import FORMATS, METRICS_HOST, UNAVAILABLE
from opal_stream.waits import BROKER_TIMEOUT, GIVE_UP_S

if TYPE_CHECKING:
    from opal_lake.table import Table
    from opal_stream.flush.options import Setup, StreamOptions, Totals
    from opal_stream.kafka.connection import Connection
    from opal_stream.kafka.ranges import Interval
    from opal_stream.kafka.topics import Partition
    from opal_stream.tracking.events import Sink, Tracker

GROUP = "Streams from Kafka (no Spark)"
EXAMPLE = "opal stream lake/orders --bootstrap-servers localhost:9092 --topic orders --until-empty"
SETTINGS = "OPAL_KAFKA_SETTINGS"
_MIB = 1 << 20


def commands(verbs: Verbs) -> None:
    """Register the verb (an `opal.commands` entry point)."""
    summary = "read topics of Kafka into a table, or say where it stands: opal stream status TABLE"
    parser = add_command(
        verbs,
        Verb(name="stream", group=GROUP, summary=summary, example=EXAMPLE, run=stream, operands=""),
    )
    parser.add_argument(
        "paths", nargs="*", metavar="TABLE", help="after `status`, `commit` or `plan`: which table"
    )
    add_alarms(parser)
    add_supervised(parser)
    add_plan(parser)
    _add_source(parser)
    _add_formats(parser)
    _add_flush(parser)
    add_commit(parser)
    _add_policies(parser)
    _add_tracking(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="where Kafka is")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME",
        help="what to read, or after `status` to ask for; repeat for more",
    )
    parser.add_argument(
        "--partitions",
        metavar="0,1",
        help="only these numbers, or orders/0,users/1 of several topics (default: all, also new)",
    )
    parser.add_argument(
        "--name",
        default="main",
        help="of the stream: another name reads the topic again (default: %(default)s)",
    )
    parser.add_argument(
        "--start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where the stream begins in a topic that it has never read (default: %(default)s)",
    )
    parser.add_argument(
        "--start-timestamp",
        metavar="TIME",
        help="read an interval of time instead: from its first message on",
    )
    parser.add_argument(
        "--end-timestamp",
        metavar="TIME",
        help="up to and without the first message of this time; it must be past",
    )
    parser.add_argument(
        "--partition-key",
        metavar="KEY",
        help="of the rows of an interval, for consumers by partition",
    )
    parser.add_argument(
        "--kafka",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of librdkafka; repeat for more",
    )
    parser.add_argument(
        "--kafka-settings",
        metavar="FILE",
        help=f"settings of librdkafka, also secrets: lines of name=value; or in {SETTINGS}",
    )


def _add_formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="json",
        help="of the messages (default: %(default)s)",
    )
    parser.add_argument(
        "--registry",
        metavar="URL",
        help="the schema registry; SCHEMA_REGISTRY_LOGIN=user:password in the environment",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=@WHAT",
        help="a column from the message: @key, @timestamp, @header.NAME, ...",
    )
    parser.add_argument(
        "--time-unit",
        choices=("s", "ms", "us", "ns"),
        default="ms",
        help="of times that are numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--unavailable-value",
        default=UNAVAILABLE,
        metavar="TEXT",
        help="what unavailable.value.placeholder of Debezium's connector is, of at least 8 bytes: "
        "such values stay as they are (default: %(default)s)",
    )


def _add_flush(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flush-interval",
        default="1s",
        metavar="SPAN",
        help="commit so long after a first message (default: %(default)s)",
    )
    parser.add_argument(
        "--flush-rows",
        type=whole_number,
        default=1_000_000,
        metavar="N",
        help="or after so many (default: %(default)s)",
    )
    parser.add_argument(
        "--flush-mb",
        type=whole_number,
        default=64,
        metavar="N",
        help="or so many MiB of messages (default: %(default)s)",
    )
    parser.add_argument(
        "--until-empty",
        action="store_true",
        help="end when everything is read that was there at the start",
    )
    parser.add_argument(
        "--give-up-after",
        default=f"{GIVE_UP_S:g}s",
        metavar="SPAN",
        help="how long to wait for a store that fails (default: %(default)s)",
    )
    parser.add_argument(
        "--broker-timeout",
        default=BROKER_TIMEOUT,
        metavar="SPAN",
        help="and for a Kafka that has answered before and does not any more (default: %(default)s)",
    )


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-bad-message",
        choices=("fail", "quarantine"),
        default="fail",
        help="what no row can be made of (default: %(default)s)",
    )
    parser.add_argument(
        "--on-new-columns",
        choices=("fail", "add", "ignore", "quarantine"),
        default="fail",
        help="columns of messages that the table lacks; quarantine puts the messages aside (default: %(default)s)",
    )
    parser.add_argument(
        "--on-gap",
        choices=("fail", "continue"),
        default="fail",
        help="when Kafka has deleted what was not read (default: %(default)s)",
    )
    parser.add_argument(
        "--on-new-topic",
        choices=("fail", "continue"),
        default="fail",
        help="when the topic was made anew (default: %(default)s)",
    )


def _add_tracking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watched",
        metavar="SPAN",
        help="flush and end when the standard input is silent for so long, or closed",
    )
    parser.add_argument(
        "--tracking", metavar="FOLDER", help="a line of JSON for each partition of each commit"
    )
    parser.add_argument("--tracking-topic", metavar="NAME", help="the same as messages")
    parser.add_argument(
        "--metrics-file", metavar="FILE", help="Prometheus metrics, written after each commit"
    )
    parser.add_argument(
        "--metrics-port", type=whole_number, metavar="PORT", help="Prometheus metrics, served"
    )
    parser.add_argument(
        "--metrics-host",
        default=METRICS_HOST,
        metavar="ADDRESS",
        help="where they are served: 0.0.0.0 for all that reach this machine (default: %(default)s)",
    )


class Running(Protocol):
    """What reads into a table, in whatever way."""

    def run(self) -> "Totals": ...
    def stop(self) -> None: ...


def stream(args: argparse.Namespace) -> int | None:
    if not reads(args):
        return _tell(args)
    from opal_stream.flush.interval import IntervalRun
    from opal_stream.flush.stream import Stream

    interval = _interval(args)
    if interval is None and is_supervised(args):
        finish(args, supervisor_of(args, *opened(args)))
        return None
    given = setup_of(args)
    whole = given.table, given.connection, given.options
    if interval is None:
        finish(args, Stream(*whole, given.tracker))
    else:
        finish(
            args,
            IntervalRun(*whole, interval, partition_key=args.partition_key, tracker=given.tracker),
        )
    return None


def reads(args: argparse.Namespace) -> bool:
    """Whether a table is to be read into; another word in its place asks for something else. What makes no sense is refused."""
    check_use(args)
    if use_of(args) in MONITORING:
        return False
    try:
        import confluent_kafka  # noqa: F401  # said before anything else is done
    except ImportError as error:
        raise InvalidInputError(
            "opal stream needs the extra kafka: pip install 'airflow-provider-opal[kafka]'"
        ) from error
    return use_of(args) == READ


def _tell(args: argparse.Namespace) -> int | None:
    if args.table in MONITORING:
        print_monitoring(args.table)
        return None
    if args.table == STATUS:
        args.table = args.paths[0]
        return status(args, _connection(args))
    if args.table == COMMIT:
        args.table = args.paths[0]
        commit(args, finish, _tracker(args, _connection(args)))
        return None
    plan(args, _connection(args))
    return None


def setup_of(args: argparse.Namespace) -> "Setup":
    """What the command line says of one process, checked and open."""
    from opal_stream.flush.options import Setup

    table, connection, options = opened(args)
    return Setup(
        table=table,
        connection=connection,
        options=options,
        tracker=_tracker(args, connection, table),
    )


def opened(args: argparse.Namespace) -> "tuple[Table, Connection, StreamOptions]":
    """Into what, from where, and how."""
    from opal_lake.table import Table

    logging.basicConfig(level=logging.WARNING, format="opal stream: %(message)s", stream=sys.stderr)
    options, connection = _options(args), _connection(args)
    has_committer(args)  # refuses what makes no sense
    if connection is None:
        raise InvalidInputError("opal stream: where is Kafka? --bootstrap-servers localhost:9092")
    return Table.open(args.table, store_options(args)), connection, options


def finish(args: argparse.Namespace, running: Running) -> None:
    """Run until it ends, or a signal or the watcher's end says so; then say what it did."""
    from opal_stream.cli.watched import stop_when_left_alone

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    if args.watched:
        stop_when_left_alone(running.stop, parse_duration(args.watched, name="--watched") / 1e6)
    totals = running.run()
    is_left = args.commit == "gathered" and not has_committer(args)
    print(
        json.dumps({"table": args.table, **asdict(totals)})
        if args.json
        else _page(totals, args, is_left_to_another=is_left)
    )


def _page(totals: "Totals", args: argparse.Namespace, *, is_left_to_another: bool) -> str:
    from opal_stream.gathered.backlog import committer_command

    style, table = Style.of(sys.stdout), args.table
    bad = f", {count_text(totals.bad, 'message')} put aside" if totals.bad else ""
    lost = f", {count_text(totals.missing, 'offset')} lost" if totals.missing else ""
    if not totals.flushes:
        return f"{style.good('nothing new')} for {table}{lost}"
    if is_left_to_another:
        command = committer_command(table, args.name)
        return f"{style.good('gathered ' + count_text(totals.records, 'message'))}{bad}{lost}; {command} commits them"
    at = "" if totals.version is None else f", version {totals.version:,} of {table}"
    if open_ := getattr(totals, "open", []):
        lost += (
            f"; no message after the interval yet in {', '.join(open_)}: late ones need another run"
        )
    return f"{style.good('read ' + count_text(totals.records, 'message'))} in {count_text(totals.flushes, 'commit')}{bad}{lost}{at}"


def _options(args: argparse.Namespace) -> "StreamOptions":
    from opal_stream.flush.buffer import FlushLimits
    from opal_stream.flush.options import StreamOptions
    from opal_stream.formats.decoder import FormatOptions
    from opal_stream.kafka.offsets import Policies

    interval_s = parse_duration(args.flush_interval, name="--flush-interval") / 1e6
    return StreamOptions(
        topics=tuple(dict.fromkeys(args.topic)),
        name=args.name,
        partitions=_partitions(args.partitions),
        formats=FormatOptions(
            format=args.format,
            registry=args.registry,
            columns=pairs(args.column, "--column"),
            time_unit=args.time_unit,
            on_new_columns=args.on_new_columns,
            unavailable_value=args.unavailable_value,
        ),
        limits=FlushLimits(interval_s=interval_s, bytes=args.flush_mb * _MIB, rows=args.flush_rows),
        policies=Policies(on_gap=args.on_gap, on_new_topic=args.on_new_topic),
        on_bad_message=args.on_bad_message,
        start=args.start,
        until_empty=args.until_empty,
        give_up_s=parse_duration(args.give_up_after, name="--give-up-after") / 1e6,
        broker_timeout_s=parse_duration(args.broker_timeout, name="--broker-timeout") / 1e6,
        commit=args.commit,
        gathered_bytes=args.gathered_mb * _MIB,
    )


def is_of_interval(args: argparse.Namespace) -> bool:
    return any((args.start_timestamp, args.end_timestamp, args.partition_key))


def _interval(args: argparse.Namespace) -> "Interval | None":
    from opal_stream.kafka.ranges import Interval

    given = {"--start-timestamp": args.start_timestamp, "--end-timestamp": args.end_timestamp}
    if not any(given.values()):
        if args.partition_key is not None:
            raise InvalidInputError(
                "--partition-key is for the rows of an interval: give --start-timestamp and --end-timestamp, too"
            )
        return None
    if missing := [name for name, value in given.items() if not value]:
        raise InvalidInputError(f"an interval has two ends: {missing[0]} is missing")
    return Interval(
        start_ms=parse_moment_ms(args.start_timestamp), end_ms=parse_moment_ms(args.end_timestamp)
    )


def _partitions(text: str | None) -> "tuple[int | Partition, ...]":
    from opal_stream.kafka.topics import Partition

    if text is None:
        return ()
    parts = [part.strip().rpartition("/") for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidInputError(
            "--partitions names none; write numbers, as 0,1,2, or leave it out to read all"
        )
    if wrong := [
        topic + slash + number
        for topic, slash, number in parts
        if not number.isdecimal() or bool(topic) != bool(slash)
    ]:
        raise InvalidInputError(
            f"--partitions {text!r}: {wrong[0]!r} is no partition; write numbers, as 0,1,2, or orders/0,users/1"
        )
    return tuple(
        dict.fromkeys(
            Partition(topic=topic, number=int(number)) if topic else int(number)
            for topic, _, number in parts
        )
    )


def _connection(args: argparse.Namespace) -> "Connection | None":
    from opal_stream.kafka.connection import Connection, parse_settings, read_settings

    if not args.bootstrap_servers:
        return None
    settings = parse_settings(os.environ.get(SETTINGS, ""), SETTINGS)
    settings |= read_settings(args.kafka_settings) if args.kafka_settings else {}
    return Connection(
        bootstrap_servers=args.bootstrap_servers, settings=settings | pairs(args.kafka, "--kafka")
    )


def _tracker(
    args: argparse.Namespace, connection: "Connection | None", table: "Table | None" = None
) -> "Tracker":
    """Whoever reads a table's topics, and no interval of them, counts what comes into the table."""
    from opal_stream.cli.watched import ToldTotals
    from opal_stream.plan.recorder import TrafficRecorder
    from opal_stream.tracking.event_files import FolderSink
    from opal_stream.tracking.events import TopicSink, Tracker
    from opal_stream.tracking.metrics import Metrics

    sinks: list[Sink] = []
    if args.tracking:
        sinks.append(FolderSink(args.tracking))
    if args.tracking_topic:
        if connection is None:
            raise InvalidInputError(
                "--tracking-topic is a topic of Kafka: give --bootstrap-servers, too"
            )
        sinks.append(TopicSink(connection, args.tracking_topic))
    has_metrics = args.metrics_file is not None or args.metrics_port is not None
    metrics = (
        Metrics(path=args.metrics_file, port=args.metrics_port, host=args.metrics_host)
        if has_metrics
        else None
    )
    listeners = [] if table is None or is_of_interval(args) else [TrafficRecorder(table, args.name)]
    tell = ToldTotals() if args.watched and args.json else None
    return Tracker(
        sinks, metrics, table=args.table, stream=args.name, listeners=listeners, tell=tell
    )
