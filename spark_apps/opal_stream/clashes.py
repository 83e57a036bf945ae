"""What goes together in the arguments of a stream."""

from collections.abc import Collection, Iterator, Mapping

from opal_lake.errors import InvalidInputError

INTERVAL, SPARK = "an interval", "spark"
# What cannot be had together, and why
_CLASHES = {
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
