"""Events as one argument of a command.

It consists of letters, digits, '-', '_' and '=' only, so that no shell and no template changes it.
It holds the variables of `environment`: the events themselves, or the query that finds them where
they are too many.
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

    `reader` is a client. It is needed where the events were too many for an argument.
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
            f"the argument holds no events ({error}); "
            "pass the whole text that encode_events returned"
        ) from error
    if not isinstance(variables, dict):
        raise InvalidEventError(
            "the argument holds no events; pass the text that encode_events returned"
        )
    return read_variables(variables, reader)


def _event_of(event: DataChangeEvent | Mapping[str, Any]) -> DataChangeEvent:
    return event if isinstance(event, DataChangeEvent) else DataChangeEvent.from_json(event)
