"""Which values of a stream's options make sense. The command line asks, and so do DAGs, before anything runs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError

_COUNTS = (
    "processes",
    "capacity",
    "hours",
    "flush_rows",
    "flush_mb",
)  # of which none makes no sense
_SPANS = ("replan_interval", "stall_after", "watched", "run_for", "broker_timeout")
_PORTS = 65_535
METRICS_HOST = "127.0.0.1"  # metrics need no login: who serves them to others says so
INTERVAL, SPARK = "an interval", "spark"
UNAVAILABLE = "__debezium_unavailable_value"  # Debezium's default for a large value that an update did not touch
_CLASHES = {  # what cannot be had together, and why
    INTERVAL: {
        "processes": "one process reads it",
        "capacity": "one process reads it",
        "spark": "Spark reads none",
        "commit": "the process that reads it makes its commits",
        "start": "it begins at its own time",
        "until_empty": "it ends at its own time",
    },
    SPARK: {
        "processes": "Spark spreads partitions over tasks by itself",
        "capacity": "Spark spreads partitions over tasks by itself",
        "commit": "Spark makes its own commits",
        "flush_mb": "Spark's commits are limited by rows",
    },
}


_POSITIONS = "the table keeps the positions, and no group does"
_BEGIN = "the stream begins where the table stands, or as --start says"
ISOLATION = "isolation.level"
# Settings of Kafka that a stream gives itself, and why: to override one silently would mislead
OWN_SETTINGS = {
    "auto.commit.enable": _POSITIONS,
    "auto.commit.interval.ms": _POSITIONS,
    "auto.offset.reset": _BEGIN,
    "bootstrap.servers": "it is --bootstrap-servers",
    "enable.auto.commit": _POSITIONS,
    "enable.auto.offset.store": _POSITIONS,
    "enable.partition.eof": "the stream has to see where partitions end",
    "group.id": _POSITIONS,
    "group.instance.id": _POSITIONS,
    ISOLATION: "messages of aborted transactions are never read",
    "max.poll.interval.ms": "a commit may wait for a store",
    "metadata.broker.list": "it is --bootstrap-servers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What a name stands for."""

    is_avro: bool = False
    is_registered: bool = False
    is_debezium: bool = False


FORMATS = {
    "json": Format(),
    "json-registry": Format(is_registered=True),
    "avro": Format(is_avro=True, is_registered=True),
    "debezium-json": Format(is_debezium=True),
    "debezium-json-registry": Format(is_debezium=True, is_registered=True),
    "debezium-avro": Format(is_avro=True, is_registered=True, is_debezium=True),
}


def clashes(given: Collection[str], *, has_interval: bool) -> Iterator[tuple[str, str, str]]:
    """Of the options that are not as by default, each that does not go with an interval, or with Spark: with which of both, and why."""
    for partner, reasons in _CLASHES.items():
        if has_interval if partner == INTERVAL else partner in given:
            yield from ((name, partner, why) for name, why in reasons.items() if name in given)


def check_options(given: Mapping[str, Any], spelled: Callable[[str], str] = str) -> None:
    """What was given, by name; None says nothing. An error calls an option as the caller does: that is `spelled`."""
    for name in _COUNTS:
        number = given.get(name)
        if number is not None and (
            not isinstance(number, int) or isinstance(number, bool) or number < 1
        ):
            raise InvalidInputError(
                f"{spelled(name)}={number!r} makes no sense; give a whole number from 1, or leave it out"
            )
    for name in _SPANS:
        if given.get(name) is not None and not parse_duration(given[name], name=spelled(name)):
            raise InvalidInputError(
                f"{spelled(name)} is no time at all; give more than 0, or leave it out"
            )
    port = given.get("metrics_port")
    if port is not None and port > _PORTS:
        raise InvalidInputError(
            f"{spelled('metrics_port')}={port} is no port; give one up to {_PORTS}, or 0 for any that is free"
        )
    form = given.get("format", "json")
    if given.get("registry") and form in FORMATS and not FORMATS[form].is_registered:
        others = ", ".join(name for name, other in FORMATS.items() if other.is_registered)
        raise InvalidInputError(
            f"{spelled('registry')}: messages of {spelled('format')}={form} need no schema registry, as {others} do; leave it out"
        )
    if given.get("unavailable_value", UNAVAILABLE) != UNAVAILABLE and not (
        form in FORMATS and FORMATS[form].is_debezium
    ):
        raise InvalidInputError(
            f"{spelled('unavailable_value')} is a setting of Debezium's connectors, and messages of {spelled('format')}={form} are not "
            "their change events; leave it out"
        )
