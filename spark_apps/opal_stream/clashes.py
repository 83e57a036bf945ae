"""Arguments of a stream that exclude or need each other."""

from collections.abc import Collection, Iterator, Mapping

from opal_lake.errors import InvalidInputError

INTERVAL, SPARK = "an interval", "spark"
# Arguments that do not go with a partner, and why
_CLASHES = {
    INTERVAL: {
        "processes": "one process reads it",
        "capacity": "one process reads it",
        "spark": "Spark does not read intervals",
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
    """Yield each clash: the argument, its partner (an interval or Spark) and why.

    `changed` names the arguments that differ from their defaults.
    """
    for partner, reasons in _CLASHES.items():
        is_given = has_interval if partner == INTERVAL else partner in changed
        if not is_given:
            continue
        for name, why in reasons.items():
            if name in changed:
                yield name, partner, why


def clash_text(partner: str, why: str) -> str:
    """Return the message about an argument that does not go with another."""
    return f"does not go with {partner}: {why}; leave it out"


def check_clashes(changed: Collection[str], *, has_interval: bool) -> None:
    """Refuse the first argument that does not go with another."""
    for name, partner, why in clashes(changed, has_interval=has_interval):
        raise InvalidInputError(f"{name} {clash_text(partner, why)}")


def check_needs(changed: Collection[str], needs: Mapping[str, Collection[str]]) -> None:
    """Refuse an argument that does nothing without one of others."""
    for name, others in needs.items():
        if name in changed and not any(other in changed for other in others):
            partners = " or ".join(others)
            raise InvalidInputError(
                f"{name} does nothing without {partners}; add it, or leave {name} out"
            )
