"""What goes together in the arguments of a stream, and what its names of formats stand for."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError

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


def clashes(changed: Collection[str], *, has_interval: bool) -> Iterator[tuple[str, str, str]]:
    """Yield each argument that does not go with an interval, or with Spark: with which, and why.

    `changed` names the arguments that are not as by default.
    """
    for partner, reasons in _CLASHES.items():
        if has_interval if partner == INTERVAL else partner in changed:
            yield from ((name, partner, why) for name, why in reasons.items() if name in changed)


def clash_text(partner: str, why: str) -> str:
    """Return what is said of an argument that does not go with another."""
    return f"does not go with {partner}: {why}; leave it out"


def check_clashes(changed: Collection[str], *, has_interval: bool) -> None:
    """Refuse the first argument that does not go with another."""
    for name, partner, why in clashes(changed, has_interval=has_interval):
        raise InvalidInputError(f"{name} {clash_text(partner, why)}")


def check_needs(changed: Collection[str], needs: Mapping[str, Collection[str]]) -> None:
    """Refuse an argument that does nothing without one of others."""
    for name, others in needs.items():
        if name in changed and not any(other in changed for other in others):
            raise InvalidInputError(
                f"{name} does nothing without {' or '.join(others)}; add it, or leave {name} out"
            )
