"""The names that a caller gives a job: token, application, partition key, positions.

A commit carries them. A reader of the log accepts texts and whole numbers only, so a value of
another type is refused before anything is written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from opal_lake.checked import is_count
from opal_lake.definition.positions import Advance, check_names
from opal_lake.errors import InvalidInputError

_MAX_SHOWN = 80  # characters of a wrong value in a message


def check_token(token: object, argument: str = "token") -> None:
    """Raise InvalidInputError unless a token is left out or names a job."""
    if token is None:
        return
    check_text(token, argument, "run 7")
    if token == "":
        raise InvalidInputError(
            f"the {argument} is an empty text; give none, or one that names this job and no other"
        )


def check_application(application: object) -> None:
    """Raise InvalidInputError unless it is left out, or a name with a sequence from 0."""
    if application is None:
        return
    if not isinstance(application, tuple | list) or len(application) != 2:
        raise InvalidInputError(
            f"application={_shown(application)} is not a pair; give a name and a whole number, as "
            "application=('orders', 7)"
        )
    name, sequence = application
    check_text(name, "application", "orders")
    if not name:
        raise InvalidInputError(
            "the name of the application is an empty text; give one that names this writer and no "
            "other"
        )
    if type(sequence) is int and sequence < 0:
        raise InvalidInputError(f"application {name!r} has sequence {sequence}; count from 0")
    if not is_count(sequence):
        raise InvalidInputError(
            f"application {name!r} has sequence {_shown(sequence)}, which is not a whole number "
            "below 2^63; count its writes from 0"
        )


def check_partition_key(partition_key: object) -> None:
    """Raise InvalidInputError unless a partition key is None or a non-empty text."""
    if partition_key is None:
        return
    check_text(partition_key, "partition_key", "2026-11-24")
    if partition_key == "":
        raise InvalidInputError(
            "partition_key is an empty text; leave it out, or write the key of these rows, as "
            "partition_key='2026-11-24'"
        )


def check_position_names(positions: object, application: Sequence[Any] | None) -> None:
    """Raise InvalidInputError unless they map names of applications to Advance values."""
    if not isinstance(positions, Mapping):
        raise InvalidInputError(
            f"positions={_shown(positions)} is not a mapping; write "
            "positions={'orders': Advance(start=0, end=10)}"
        )
    for name, advance in positions.items():
        check_text(name, "positions", "orders")
        if not isinstance(advance, Advance):
            raise InvalidInputError(
                f"positions: {name!r} has {_shown(advance)}; "
                f"write {name!r}: Advance(start=0, end=10)"
            )
    check_names(positions, application)


def check_replaces(replaces: object, token: object) -> None:
    """Raise InvalidInputError unless they are tokens of other tries."""
    if isinstance(replaces, str):
        raise InvalidInputError(
            f"replaces={replaces!r} is a text; give a list: replaces=[{replaces!r}]"
        )
    if not isinstance(replaces, Sequence) or isinstance(replaces, bytes | bytearray):
        raise InvalidInputError(
            f"replaces={_shown(replaces)} is not a list; give the tokens of earlier tries, as "
            "replaces=['run 7']"
        )
    for replaced in replaces:
        check_text(replaced, "replaces: token", "run 7")
        if not replaced:
            raise InvalidInputError("replaces holds an empty token; leave it out")
    if token is not None and token in replaces:
        raise InvalidInputError(
            f"replaces holds {_shown(token)}, the token of this ingest itself; name the tokens of "
            "earlier tries only, and give this try a token of its own"
        )


def check_text(value: object, argument: str, example: str) -> None:
    """Raise InvalidInputError unless a value is a text that UTF-8 can write."""
    if not isinstance(value, str):
        advice = f"give one, as {example!r}"
        if isinstance(value, int) and not isinstance(value, bool):
            advice = f"write it as {str(value)!r}"
        raise InvalidInputError(
            f"{argument}={_shown(value)} is of type {type(value).__name__} and not a text; {advice}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{argument}={_shown(value)} holds an unpaired surrogate at character {error.start}, "
            "which UTF-8 cannot write; correct the text"
        ) from error


def _shown(value: object) -> str:
    text = repr(value)
    # A caller may pass a whole table of rows by mistake
    if len(text) > _MAX_SHOWN:
        return f"{text[:_MAX_SHOWN]}..."
    return text
