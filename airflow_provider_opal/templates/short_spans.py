"""Spans of a pipeline's maintenance that are shorter than its reconcile looks back: what consumers missed may be gone by then."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from opal_lake.arguments.values import Span, delta_span, span_of, span_text
from opal_lake.duration import parse_duration

_LOST = {
    "window": "consumers by version lose what expires before a reconcile has seen it, "
    "and the first reconcile of a consumer by partition emits all keys",
    "look_back": "change.rows fails for a key that is consumed later than that, if rows of it were dropped",
}


class ShortSpanWarning(UserWarning):
    """A consumer that is paused for a while may lose what came meanwhile."""


def short_spans(spans: Mapping[str, Any], reconcile_look_back: Span) -> Iterator[tuple[str, str]]:
    """Yield those of `window` and `look_back` that are too short, with a message.

    Templates and numbers are checked by the run.
    """
    least = span_of("look_back", reconcile_look_back)
    least_text = span_text("look_back", reconcile_look_back)
    for name, lost in _LOST.items():
        try:
            span = delta_span(name, spans.get(name))
            is_short = timedelta(microseconds=parse_duration(span, name=name)) < least
        except ValueError:
            continue
        if is_short:
            yield (
                name,
                f"{span} is shorter than the look-back of a reconcile, {least_text}: {lost}; write {least_text!r} or more",
            )
