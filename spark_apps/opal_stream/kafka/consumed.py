"""The messages of a partition that one flush consumes."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Consumed:
    """A partition's messages in a flush, from offset `low` up to and without `high`.

    `oldest_ms` and `newest_ms` are timestamps of messages; -1 where no message has one.
    """

    low: int
    high: int
    records: int = 0
    bytes: int = 0
    oldest_ms: int = -1
    newest_ms: int = -1

    def joined(self, after: "Consumed") -> "Consumed":
        """Return both as one; `after` begins where this one ends."""
        moments = [moment for moment in (self.oldest_ms, after.oldest_ms) if moment >= 0]
        return Consumed(
            low=self.low,
            high=after.high,
            records=self.records + after.records,
            bytes=self.bytes + after.bytes,
            oldest_ms=min(moments, default=-1),
            newest_ms=max(self.newest_ms, after.newest_ms),
        )
