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

    def joined(self, after: "Taken") -> "Taken":
        """With what comes after it."""
        moments = [moment for moment in (self.oldest_ms, after.oldest_ms) if moment >= 0]
        return Taken(
            low=self.low,
            high=after.high,
            records=self.records + after.records,
            bytes=self.bytes + after.bytes,
            oldest_ms=min(moments, default=-1),
            newest_ms=max(self.newest_ms, after.newest_ms),
        )
