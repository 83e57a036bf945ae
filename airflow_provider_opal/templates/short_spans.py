"""Spans of a pipeline's maintenance that are shorter than its reconcile looks back: what consumers missed may be gone by then."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_opal.operators.reconcile import LOOK_BACK
from opal_lake.arguments.values import delta_span
from opal_lake.duration import parse_duration

_LOST = {
    "window": "consumers by version lose what expires before a reconcile has seen it, "
    "and the first reconcile of a consumer by partition emits all keys",
    "look_back": "change.rows fails for a key that is consumed later than that, if rows of it were dropped",
}


class ShortSpanWarning(UserWarning):
    """A consumer that is paused for a while may lose what came meanwhile."""


def short_spans(spans: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those of `window` and `look_back` that are too short, with a message. Templates and numbers are checked by the run."""
    for name, lost in _LOST.items():
        try:
            span = delta_span(name, spans.get(name))
            is_short = timedelta(microseconds=parse_duration(span, name=name)) < LOOK_BACK
        except ValueError:
            continue
        if is_short:
            days = f"{LOOK_BACK.days}d"
            yield (
                name,
                f"{span} is shorter than the look-back of a reconcile, {days}: {lost}; write {days!r} or more",
            )
