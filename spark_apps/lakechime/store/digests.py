"""Names of fixed size: of an event (is it the same one?), of a partition, and of a tag."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

from lakechime.completeness import PREFIX
from lakechime.event import DataChangeEvent, JsonValue, partition_text
from lakechime.tags import AGAIN

_BYTES = 16


def dedup_key(event: DataChangeEvent) -> str:
    """The same snapshot and partition of a table is the same event, unless the producer says that the id comes again,
    or that another share of it is complete.

    Without a snapshot (Hive) everything that the producer says counts.
    """
    partition = None if event.partition is None else partition_text(event.partition)
    if event.snapshot_id is not None:
        again = [event.tags[AGAIN]] if AGAIN in event.tags else []
        complete = sorted(tag for tag in event.tags.items() if tag[0].startswith(PREFIX))
        return _digest(
            "snapshot",
            event.cluster,
            event.table,
            event.snapshot_id,
            partition,
            *again,
            *([complete] if complete else []),
        )
    return _digest(
        "event",
        event.cluster,
        event.table,
        partition,
        event.snapshot_ts,
        str(event.operation_type),
        sorted(event.tags.items()),
    )


def partition_key(partition: Sequence[JsonValue]) -> str:
    return _digest(partition_text(partition))


def item_key(item: str) -> str:
    """Of what a producer remembers."""
    return _digest("item", item)


def batch_key(events: Sequence[str], position: str, expected: str) -> str:
    """Of a producer's step: these events, and a position moved from there to here."""
    return _digest("batch", list(events), position, expected)


def tag_keys(tags: Mapping[str, str]) -> list[str]:
    """One for each, in the order of their names."""
    return [_digest(name, tags[name]) for name in sorted(tags)]


def _digest(*parts: object) -> str:
    text = json.dumps(parts, separators=(",", ":"))
    return (
        base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:_BYTES])
        .rstrip(b"=")
        .decode()
    )
