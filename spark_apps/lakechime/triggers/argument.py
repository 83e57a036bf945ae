"""Events as one argument of a command.

The argument has only letters, digits, '-', '_' and '=', so that no shell or template changes it.
It encodes the variables of `environment`: the events themselves, or a query if they are too many.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from lakechime.errors import InvalidEventError
from lakechime.event import DataChangeEvent
from lakechime.triggers.environment import Query, event_variables, read_variables
from lakechime.triggers.reader import Reader

MAX_DECODED_BYTES = 16_777_216


def encode_events(
    events: Iterable[DataChangeEvent | Mapping[str, Any]] | None, *, query: Query | None = None
) -> str:
    """Return the argument for events, or for their `to_json`.

    None, which a skipped task returns, counts as an empty list.
    """
    parsed = [_event_of(event) for event in events or ()]
    text = json.dumps(event_variables(parsed, query=query), separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


def decode_events(argument: str, reader: Reader | None = None) -> tuple[DataChangeEvent, ...]:
    """Return the events of an argument.

    `reader` is a client. It is needed if the events were too many for an argument.
    """
    try:
        compressed = base64.urlsafe_b64decode(argument.encode())
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(compressed, MAX_DECODED_BYTES)
        if not decompressor.eof:
            raise ValueError("it is cut off, or too long")
        variables = json.loads(data)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise InvalidEventError(
            f"the argument does not hold events ({error}); "
            "pass the whole text that encode_events returned"
        ) from error
    if not isinstance(variables, dict):
        raise InvalidEventError(
            "the argument does not hold events; pass the text that encode_events returned"
        )
    return read_variables(variables, reader)


def _event_of(event: DataChangeEvent | Mapping[str, Any]) -> DataChangeEvent:
    if isinstance(event, DataChangeEvent):
        return event
    return DataChangeEvent.from_json(event)
