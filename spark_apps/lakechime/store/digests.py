"""Digests of fixed size, which identify an event, a partition, or a tag."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

from lakechime.completeness import PREFIX
from lakechime.event import DataChangeEvent, JsonValue, partition_text
from lakechime.tags import AGAIN

_BYTES = 16


def dedup_key(event: DataChangeEvent) -> str:
    """Return the key of an event, which equal events have in common.

    Events of one snapshot and partition of a table are equal, unless they differ in the tag AGAIN
    or in a completeness. Events without a snapshot (Hive) are equal if all their fields are.
    """
    partition = None if event.partition is None else partition_text(event.partition)
    if event.snapshot_id is None:
        return _digest(
            "event",
            event.cluster,
            event.table,
            partition,
            event.snapshot_ts,
            str(event.operation_type),
            sorted(event.tags.items()),
        )
    parts: list[object] = ["snapshot", event.cluster, event.table, event.snapshot_id, partition]
    if AGAIN in event.tags:
        parts.append(event.tags[AGAIN])
    completeness = sorted(tag for tag in event.tags.items() if tag[0].startswith(PREFIX))
    if completeness:
        parts.append(completeness)
    return _digest(*parts)


def partition_key(partition: Sequence[JsonValue]) -> str:
    return _digest(partition_text(partition))


def optional_partition_key(partition: Sequence[JsonValue] | None) -> str | None:
    return None if partition is None else partition_key(partition)


def item_key(item: str) -> str:
    """Return the key of an item that a producer remembers."""
    return _digest("item", item)


def batch_key(events: Sequence[str], position: str, expected: str) -> str:
    """Return the key of a registration: its events, and its move of the position."""
    return _digest("batch", list(events), position, expected)


def tag_keys(tags: Mapping[str, str]) -> list[str]:
    """Return a key for each tag, in the order of the tags' names."""
    return [_digest(name, tags[name]) for name in sorted(tags)]


def _digest(*parts: object) -> str:
    # Digests are stored: with another separator or encoding, no stored event would be found again
    text = json.dumps(parts, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()[:_BYTES]
    encoded = base64.urlsafe_b64encode(digest)
    return encoded.rstrip(b"=").decode()
