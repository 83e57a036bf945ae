"""Warnings about spans of a maintenance that are shorter than the reconcile's look-back.

Rows that a consumer missed may then be gone before the reconcile emits their event.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from opal_lake.arguments.values import Span, delta_span, span_of, span_text
from opal_lake.duration import parse_duration

_CONSEQUENCES = {
    "window": "consumers by version lose versions that expire before a reconcile has seen them, "
    "and the first reconcile of a consumer by partition emits all keys",
    "look_back": "change.rows fails for a key that is consumed later than that, "
    "if rows of the key were dropped",
}


class ShortSpanWarning(UserWarning):
    """A warning that a consumer which is paused for a while may lose rows."""


def short_spans(spans: Mapping[str, Any], reconcile_look_back: Span) -> Iterator[tuple[str, str]]:
    """Yield the name and a message for each span that is too short.

    The names are `window` and `look_back`. Templates and numbers are not checked.
    """
    least = span_of("look_back", reconcile_look_back)
    least_text = span_text("look_back", reconcile_look_back)
    for name, consequence in _CONSEQUENCES.items():
        try:
            span = delta_span(name, spans.get(name))
            is_short = timedelta(microseconds=parse_duration(span, name=name)) < least
        except ValueError:
            continue
        if is_short:
            message = (
                f"{span} is shorter than the look-back of a reconcile, {least_text}: "
                f"{consequence}; write {least_text!r} or more"
            )
            yield name, message
