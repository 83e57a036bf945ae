"""The claims, and the distance from them at which a short run on a busy machine fails."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A ratio by its name in the table of ratios.

    `claim` is the figure of docs/explanation/benchmarks.md, `wide` fails the check.
    """

    ratio: str
    claim: float
    wide: float
    bound: Literal["least", "most"]

    def is_kept_by(self, value: float) -> bool:
        return value >= self.wide if self.bound == "least" else value <= self.wide


# Claims are of 10 million rows, that of compaction of 4; a million rows cost the peers less, so
# that `wide` is far below.
LIMITS = (
    Limit(
        ratio="upsert 1% uniform: fastest peer / opal-inline", claim=14.4, wide=2.5, bound="least"
    ),
    Limit(
        ratio="upsert 10% uniform: fastest peer / opal-inline", claim=9.1, wide=1.7, bound="least"
    ),
    Limit(
        ratio="upsert 1% uniform: fastest peer / opal-batch", claim=11.7, wide=1.6, bound="least"
    ),
    Limit(
        ratio="upsert 10% uniform: fastest peer / opal-batch", claim=7.8, wide=1.2, bound="least"
    ),
    Limit(ratio="upsert 1% uniform: opal-inline / plain", claim=1.7, wide=6.0, bound="most"),
    Limit(ratio="upsert 10% uniform: opal-inline / plain", claim=2.3, wide=6.0, bound="most"),
    Limit(
        ratio="scan 10% after 1 5 columns: opal-inline / its unfiltered scan",
        claim=1.1,
        wide=2.5,
        bound="most",
    ),
    Limit(
        ratio="scan 10% after 1 2 columns: opal-inline / its unfiltered scan",
        claim=1.7,
        wide=4.0,
        bound="most",
    ),
    Limit(
        ratio="compaction 40 files: fastest peer / opal-inline", claim=3.1, wide=1.2, bound="least"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One limit against what was measured; `value` is None when it was not."""

    limit: Limit
    value: float | None

    @property
    def failed(self) -> bool:
        return self.value is not None and not self.limit.is_kept_by(self.value)

    def __str__(self) -> str:
        limit = self.limit
        bound = f"claim {limit.claim:g}x, at {limit.bound} {limit.wide:g}x"
        if self.value is None:
            return f"{limit.ratio:<66} {bound}: not measured"
        outcome = "FAILED" if self.failed else "ok"
        return f"{limit.ratio:<66} {bound}: {self.value:.2f}x  {outcome}"


def check_limits(ratios: Mapping[str, float], limits: Iterable[Limit] = LIMITS) -> list[Verdict]:
    return [Verdict(limit=limit, value=ratios.get(limit.ratio)) for limit in limits]
