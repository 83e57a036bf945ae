"""Arguments of a stream that exclude or need each other."""

from collections.abc import Collection, Iterator, Mapping

from opal_lake.errors import InvalidInputError

INTERVAL, SPARK = "an interval", "spark"
# By partner: the arguments that cannot be combined with it, and why
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
    """Return the message about a clash, without the argument's name."""
    return f"does not go with {partner}: {why}; leave it out"


def check_clashes(changed: Collection[str], *, has_interval: bool) -> None:
    """Raise InvalidInputError for the first argument that clashes with its partner."""
    for name, partner, why in clashes(changed, has_interval=has_interval):
        raise InvalidInputError(f"{name} {clash_text(partner, why)}", arguments=(name, partner))


def check_needs(changed: Collection[str], needs: Mapping[str, Collection[str]]) -> None:
    """Raise InvalidInputError for an argument that does nothing without another one.

    `needs` maps each such argument to the arguments of which at least one must be given.
    """
    for name, partners in needs.items():
        is_alone = not any(partner in changed for partner in partners)
        if name in changed and is_alone:
            choices = " or ".join(partners)
            raise InvalidInputError(
                f"{name} does nothing without {choices}; add {choices}, or leave {name} out",
                arguments=(name, *partners),
            )
