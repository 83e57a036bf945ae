"""The names that a caller gives a job: token, application, partition key, positions.

A commit carries these names. Readers of the log accept only texts and whole numbers, so that a
value of another type is refused before anything is written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from opal_lake.checked import is_count
from opal_lake.definition.positions import Advance, check_names
from opal_lake.errors import InvalidInputError

_MAX_SHOWN = 80  # characters of a wrong value in a message


def check_token(token: object, argument: str = "token") -> None:
    """Raise InvalidInputError unless a token is None or a non-empty text."""
    if token is None:
        return
    check_text(token, argument, "run 7")
    if token == "":
        raise InvalidInputError(
            f"{argument} is an empty text; leave it out, or give a text that is unique to this job"
        )


def check_application(application: object) -> None:
    """Raise InvalidInputError unless it is None, or a pair of a name and a sequence."""
    if application is None:
        return
    if not isinstance(application, tuple | list) or len(application) != 2:
        raise InvalidInputError(
            f"application={_shown(application)} is not a pair; give a name and a whole number, for "
            "example application=('orders', 7)"
        )
    name, sequence = application
    check_text(name, "application", "orders")
    if not name:
        raise InvalidInputError(
            "the name of the application is an empty text; give a name that is unique to this "
            "writer"
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
            "partition_key is an empty text; leave it out, or give the key of these rows, for "
            "example partition_key='2026-11-24'"
        )


def check_position_names(positions: object, application: Sequence[Any] | None) -> None:
    """Raise InvalidInputError unless positions map names of applications to Advances."""
    if not isinstance(positions, Mapping):
        raise InvalidInputError(
            f"positions={_shown(positions)} is not a mapping; give an Advance for each name, for "
            "example positions={'orders': Advance(start=0, end=10)}"
        )
    for name, advance in positions.items():
        check_text(name, "positions", "orders")
        if not isinstance(advance, Advance):
            raise InvalidInputError(
                f"positions: {name!r} has {_shown(advance)} instead of an Advance; give one, for "
                f"example {name!r}: Advance(start=0, end=10)"
            )
    check_names(positions, application)


def check_replaces(replaces: object, token: object) -> None:
    """Raise InvalidInputError unless `replaces` is a list of tokens of other tries."""
    if isinstance(replaces, str):
        raise InvalidInputError(
            f"replaces={replaces!r} is a text; give a list: replaces=[{replaces!r}]"
        )
    if not isinstance(replaces, Sequence) or isinstance(replaces, bytes | bytearray):
        raise InvalidInputError(
            f"replaces={_shown(replaces)} is not a list; give the tokens of earlier tries, for "
            "example replaces=['run 7']"
        )
    for replaced in replaces:
        check_text(replaced, "replaces: token", "run 7")
        if not replaced:
            raise InvalidInputError("replaces has an empty token; leave the empty token out")
    if token is not None and token in replaces:
        raise InvalidInputError(
            f"replaces has {_shown(token)}, the token of this ingest itself; give only the tokens "
            "of earlier tries there, and give this try another token"
        )


def check_text(value: object, argument: str, example: str) -> None:
    """Raise InvalidInputError unless a value is a text that UTF-8 can write."""
    if not isinstance(value, str):
        advice = f"give a text, for example {example!r}"
        if isinstance(value, int) and not isinstance(value, bool):
            advice = f"give the text {str(value)!r}"
        raise InvalidInputError(
            f"{argument}={_shown(value)} is of type {type(value).__name__}, not a text; {advice}"
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
