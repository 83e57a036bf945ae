"""What `opal stream` is used for, and which options each use takes: one that has no use there is refused, if it is not as by default."""

import argparse
from collections.abc import Iterator

from opal_lake.cli.command import meant
from opal_lake.errors import InvalidInputError
from opal_stream.cli.monitoring import MONITORING
from opal_stream.rules import INTERVAL, check_options, clashes

READ, STATUS, COMMIT, PLAN = "", "status", "commit", "plan"
WORDS = (STATUS, COMMIT, PLAN, *MONITORING)
_KAFKA = frozenset({"bootstrap_servers", "kafka", "kafka_settings"})
SHARED = frozenset({"json", "option", "traceback"})  # of every verb
TAKES = {
    STATUS: _KAFKA | {"topic", "name", "alarm_lag", "alarm_stall", "tracking", "gathered_mb"},
    COMMIT: _KAFKA
    | {"name", "flush_interval", "flush_mb", "until_empty", "give_up_after", "watched"}
    | {"tracking", "tracking_topic", "metrics_file", "metrics_port", "metrics_host"},
    PLAN: _KAFKA | {"topic", "name", "processes", "capacity", "hours", "current"},
    **dict.fromkeys(MONITORING, frozenset[str]()),
}
_NEVER_READ = frozenset({"alarm_lag", "alarm_stall", "hours", "current"})


def use_of(args: argparse.Namespace) -> str:
    """The word in the place of the table, where it asks for something else than to read into one."""
    word, tables = args.table, len(args.paths)
    if word in MONITORING and not tables and not args.topic:
        return str(word)
    return (
        str(word)
        if (word in (STATUS, COMMIT) and tables == 1) or (word == PLAN and tables <= 1)
        else READ
    )


def check_use(args: argparse.Namespace) -> None:
    """An error names the first option that has no use, or whose value makes no sense."""
    given, use = args.parser.given(args), use_of(args)
    if use == READ:
        _check_words(args)
    taken = given.keys() - _NEVER_READ if use == READ else TAKES[use] | SHARED
    if useless := [name for name in given if name not in taken]:
        others = [f"opal stream {word}" for word, options in TAKES.items() if useless[0] in options]
        who = f"opal stream {use}" if use != READ else "a stream that reads"
        where = f", it is for {' and '.join(others)}" if use == READ else ""
        raise InvalidInputError(f"{who} has no use for {flag_of(useless[0])}; leave it out{where}")
    for name, needed in _unmet(args, use):
        if name in given:
            raise InvalidInputError(
                f"{flag_of(name)} does nothing without {needed}; add it, or leave {flag_of(name)} out"
            )
    for name, partner, why in clashes(
        given, has_interval=bool(args.start_timestamp or args.end_timestamp)
    ):
        other = f"{INTERVAL} of time" if partner == INTERVAL else flag_of(partner)
        raise InvalidInputError(
            f"{flag_of(name)} does not go with {other}: {why}; leave out one of both"
        )
    check_options({name: getattr(args, name) for name in given}, flag_of)


def _check_words(args: argparse.Namespace) -> None:
    """A word that is misspelt, or has not the tables that it takes, is not the name of a table."""
    word, tables = args.table, args.paths
    if not tables and args.topic:
        return
    if word == "gather" and tables:
        raise InvalidInputError(
            f"opal stream gather is called opal stream commit: opal stream commit {tables[0]}"
        )
    if word in MONITORING and tables:
        raise InvalidInputError(f"opal stream {word} takes no table; leave out {tables[0]!r}")
    if word in WORDS:
        raise InvalidInputError(
            f"opal stream {word} takes one table: opal stream {word} lake/orders"
        )
    if "/" not in word and (near := meant(word, WORDS)):
        raise InvalidInputError(f"there is no opal stream {word!r}{near}")
    if tables:
        raise InvalidInputError(f"opal stream reads into one table; {tables[0]!r} is one too many")


def _unmet(args: argparse.Namespace, use: str) -> Iterator[tuple[str, str]]:
    """Options that do nothing without another one."""
    if not args.bootstrap_servers and use != READ:
        yield from ((name, "--bootstrap-servers") for name in ("kafka", "kafka_settings"))
    if use == STATUS and not args.topic:
        yield "name", "--topic"
    if args.metrics_port is None:
        yield "metrics_host", "--metrics-port"
    if use != READ:
        return
    if args.processes is None and args.capacity is None:
        yield from (
            (name, "--processes or --capacity") for name in ("replan_interval", "stall_after")
        )
    if args.commit != "gathered":
        yield "gathered_mb", "--commit gathered"
    if not getattr(args, "spark", False):
        yield from ((name, "--spark") for name in ("conf", "verbose"))


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"
