"""`opal stream run`: read topics of Kafka into a table."""

import argparse
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from opal_lake.arguments.values import span_of
from opal_lake.cli.command import store_options
from opal_lake.cli.flags import operation_of
from opal_lake.cli.render import Style
from opal_lake.clock import parse_moment_ms
from opal_lake.errors import InvalidInputError, count_text
from opal_stream.cli.supervised import supervisor_of
from opal_stream.operations.verbs import SETTINGS, Commit, KafkaAccess, Run

if TYPE_CHECKING:
    from opal_lake.table import Table
    from opal_stream.flush.options import Setup, StreamOptions, Totals
    from opal_stream.kafka.connection import Connection
    from opal_stream.kafka.ranges import Interval
    from opal_stream.kafka.topics import Partition
    from opal_stream.tracking.events import Listener, Sink, Tracker

_MIB = 1 << 20


class Running(Protocol):
    """Work of a verb: a stream, an interval run, a supervisor or a committer."""

    def run(self) -> "Totals": ...
    def stop(self) -> None: ...


def run(args: argparse.Namespace) -> None:
    """Read until stopped, or until an interval or --until-empty has no more messages."""
    given = checked_run(args)
    from opal_stream.flush.interval import IntervalRun
    from opal_stream.flush.stream import Stream

    interval = _interval(given)
    if interval is None and given.is_supervised:
        finish(args, given, supervisor_of(args, given, *_opened(args, given)))
        return
    setup = setup_of(args, given)
    running: Running
    if interval is None:
        running = Stream(setup.table, setup.connection, setup.options, setup.tracker)
    else:
        running = IntervalRun(
            setup.table,
            setup.connection,
            setup.options,
            interval,
            partition_key=given.partition_key,
            tracker=setup.tracker,
        )
    finish(args, given, running)


def checked_run(args: argparse.Namespace) -> Run:
    """Return the arguments of a run.

    Raise InvalidInputError without the client of Kafka.
    """
    given = operation_of(args, Run)
    check_kafka()
    return given


def check_kafka() -> None:
    """Raise InvalidInputError if the client of Kafka is not installed."""
    try:
        import confluent_kafka  # noqa: F401  # checked before the verb does anything else
    except ImportError as error:
        raise InvalidInputError(
            "opal stream needs the extra kafka; install it: pip install 'opal-lake[kafka]'"
        ) from error


def setup_of(args: argparse.Namespace, given: Run) -> "Setup":
    """Return the open table, connection, options and tracker of one process."""
    from opal_stream.flush.options import Setup

    table, connection, options = _opened(args, given)
    return Setup(
        table=table,
        connection=connection,
        options=options,
        tracker=tracker_of(args, given, connection, table),
    )


def _opened(args: argparse.Namespace, given: Run) -> "tuple[Table, Connection, StreamOptions]":
    """Return the open table, the connection and the options."""
    from opal_lake.table import Table

    logging.basicConfig(level=logging.WARNING, format="opal stream: %(message)s", stream=sys.stderr)
    options, connection = options_of(given), connection_of(given)
    if connection is None:
        raise InvalidInputError(
            "opal stream run needs --bootstrap-servers, for example "
            "--bootstrap-servers localhost:9092"
        )
    return Table.open(args.table, store_options(args)), connection, options


def finish(args: argparse.Namespace, given: Run | Commit, running: Running) -> None:
    """Run until the work is done, a signal comes, or the watcher ends.

    Then print the totals.
    """
    from opal_stream.cli.watched import stop_when_left_alone

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    if given.watched is not None:
        stop_when_left_alone(running.stop, span_of("watched", given.watched).total_seconds())
    totals = running.run()
    if args.json:
        print(json.dumps({"table": args.table, **asdict(totals)}))
    else:
        print(_page(totals, args.table, given))


def _page(totals: "Totals", table: str, given: Run | Commit) -> str:
    """Return the line about the totals that a person reads."""
    from opal_stream.gathered.backlog import committer_command

    style = Style.of(sys.stdout)
    bad = f", {count_text(totals.bad, 'message')} put aside" if totals.bad else ""
    lost = f", {count_text(totals.missing, 'offset')} lost" if totals.missing else ""
    if not totals.flushes:
        return f"{style.good('nothing new')} for {table}{lost}"
    messages = count_text(totals.records, "message")
    needs_commit = isinstance(given, Run) and given.commit == "gathered" and not given.has_committer
    if needs_commit:
        command = committer_command(table, given.name)
        gathered = style.good(f"gathered {messages}")
        return f"{gathered}{bad}{lost}; run `{command}` to commit them"
    version = ""
    if totals.version is not None:
        version = f", version {totals.version:,} of {table}"
    late = ""
    open_partitions: list[str] = getattr(totals, "open", [])  # only an interval has them
    if open_partitions:
        names = ", ".join(open_partitions)
        late = (
            f"; {names} had no message after the interval yet: run this again later to read late "
            "messages of the interval"
        )
    commits = count_text(totals.flushes, "commit")
    read = style.good(f"read {messages}")
    return f"{read} in {commits}{bad}{lost}{version}{late}"


def options_of(given: Run) -> "StreamOptions":
    """Return the options of the flushing loop."""
    from opal_stream.flush.buffer import FlushLimits
    from opal_stream.flush.options import StreamOptions
    from opal_stream.operations.reading import FormatOptions, Policies

    values = vars(given)
    return StreamOptions(
        topics=tuple(given.topics),
        name=given.name,
        partitions=_partitions(given),
        formats=FormatOptions(**FormatOptions.among(values)),
        limits=FlushLimits(
            interval_s=span_of("flush_interval", given.flush_interval).total_seconds(),
            bytes=given.flush_mb * _MIB,
            rows=given.flush_rows,
        ),
        policies=Policies(**Policies.among(values)),
        on_bad_message=given.on_bad_message,
        start=given.start,
        until_empty=given.until_empty,
        give_up_s=span_of("give_up_after", given.give_up_after).total_seconds(),
        broker_timeout_s=span_of("broker_timeout", given.broker_timeout).total_seconds(),
        commit=given.commit,
        gathered_bytes=given.gathered_mb * _MIB,
    )


def _partitions(given: Run) -> "tuple[int | Partition, ...]":
    """Return the chosen partitions.

    A number alone stands for that partition of every topic.
    """
    from opal_stream.kafka.topics import Partition

    chosen: list[int | Partition] = []
    for given_partition in given.partitions or ():
        if isinstance(given_partition, int):
            chosen.append(given_partition)
        else:
            topic, _, number = given_partition.rpartition("/")
            chosen.append(Partition(topic=topic, number=int(number)))
    return tuple(chosen)


def _interval(given: Run) -> "Interval | None":
    """Return the interval to read, or None. `Run` has refused one end alone."""
    from opal_stream.kafka.ranges import Interval

    if given.start_timestamp is None or given.end_timestamp is None:
        return None
    return Interval(
        start_ms=parse_moment_ms(given.start_timestamp), end_ms=parse_moment_ms(given.end_timestamp)
    )


def connection_of(given: KafkaAccess) -> "Connection | None":
    """Return the connection to Kafka; None without --bootstrap-servers."""
    from opal_stream.kafka.connection import Connection, parse_settings, read_settings

    if not given.bootstrap_servers:
        return None
    settings = parse_settings(os.environ.get(SETTINGS, ""), SETTINGS)
    if given.kafka_settings:
        settings |= read_settings(given.kafka_settings)
    settings |= given.kafka
    return Connection(bootstrap_servers=given.bootstrap_servers, settings=settings)


def tracker_of(
    args: argparse.Namespace,
    given: Run | Commit,
    connection: "Connection | None",
    table: "Table | None" = None,
) -> "Tracker":
    """Return the tracker of a process.

    With `table` it also counts the traffic of topics.

    The traffic of an interval is not counted: a repeated run would count it twice.
    """
    from opal_stream.cli.watched import ReportedTotals
    from opal_stream.plan.recorder import TrafficRecorder
    from opal_stream.tracking.event_files import FolderSink
    from opal_stream.tracking.events import TopicSink, Tracker
    from opal_stream.tracking.metrics import Metrics

    sinks: list[Sink] = []
    if given.tracking:
        sinks.append(FolderSink(given.tracking))
    if given.tracking_topic and connection is not None:
        sinks.append(TopicSink(connection, given.tracking_topic))
    metrics: Metrics | None = None
    if given.metrics_file is not None or given.metrics_port is not None:
        metrics = Metrics(path=given.metrics_file, port=given.metrics_port, host=given.metrics_host)
    is_of_interval = isinstance(given, Run) and given.start_timestamp is not None
    listeners: list[Listener] = []
    if table is not None and not is_of_interval:
        listeners.append(TrafficRecorder(table, given.name))
    reporter = ReportedTotals() if given.watched is not None and args.json else None
    return Tracker(
        sinks, metrics, table=args.table, stream=given.name, listeners=listeners, reporter=reporter
    )
