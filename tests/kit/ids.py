"""Ids that come out the same at every run."""

from dataclasses import dataclass


@dataclass
class CountingIds:
    """Predictable ids, for golden files and replays."""

    prefix: str = "id"
    count: int = 0

    def new_id(self) -> str:
        self.count += 1
        return f"{self.prefix}-{self.count:06d}"
