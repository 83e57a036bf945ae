"""What a flush takes of a partition."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Taken:
    """What a flush holds of a partition: from its first offset to the next one to read."""

    low: int
    high: int
    records: int = 0
    bytes: int = 0
    oldest_ms: int = -1
    newest_ms: int = -1
