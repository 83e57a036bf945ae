"""Events as one argument of a command: letters, digits, '-', '_' and '=' alone, so that no shell and no template changes it.

What it holds are the variables of `environment`: the events themselves, or, where they are too many, the question that finds them.
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
    """Of events, or of what their `to_json` gave. None is no event: what a skipped task returned."""
    listed = [
        event if isinstance(event, DataChangeEvent) else DataChangeEvent.from_json(event)
        for event in events or ()
    ]
    text = json.dumps(event_variables(listed, query=query), separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()


def decode_events(argument: str, reader: Reader | None = None) -> tuple[DataChangeEvent, ...]:
    """Where the argument arrives. `reader`: a client, needed where the events were too many for an argument."""
    try:
        inflated = zlib.decompressobj()
        data = inflated.decompress(base64.urlsafe_b64decode(argument.encode()), MAX_DECODED_BYTES)
        if not inflated.eof:
            raise ValueError("it is cut off, or too long")
        variables = json.loads(data)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise InvalidEventError(
            f"the argument holds no events ({error}); give what encode_events returned, whole"
        ) from error
    if not isinstance(variables, dict):
        raise InvalidEventError("the argument holds no events; give what encode_events returned")
    return read_variables(variables, reader)
