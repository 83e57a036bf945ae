"""Claims of runs on events. LakeChime records a claim in one step, so it survives a killed run.

The watermark of a consumer is a number: it cannot say whose step it was. So a run first claims its
range, by compare-and-set under the key `claims`. Then the watermark moves over it, by the run or by
the next one that looks. A claim stays until its run has stored its range with itself. A run that
was killed in between finds its range by the claim; a run without a claim has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import LakeChime, Watermark

CLAIMS = "claims"
# Claims of runs that were killed at just this moment and never tried again. The value of a
# watermark has a maximum size.
MAX_CLAIMS = 200
NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The last claimed step, and the claims of runs by their tokens.

    The step leads from the watermark's revision `at` to the seq `to`.
    """

    at: int = NOWHERE
    to: int = NOWHERE
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    revision: int | None = None

    @classmethod
    def read(cls, client: "LakeChime", consumer: str) -> "Claims":
        stored: Any = client.watermark(consumer, CLAIMS)
        if stored is None:
            return cls()
        return cls(**stored.value, revision=stored.revision)

    def claim(
        self,
        client: "LakeChime",
        before: "Watermark",
        to: int,
        runs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Claim the step from a watermark, for a run or for nobody.

        Raises ConflictError if anything was claimed since these claims were read.
        """
        all_runs = {**self.runs, **(runs or {})}
        self._put(client, before.consumer, at=before.revision, to=to, runs=all_runs)

    def drop(self, client: "LakeChime", consumer: str, run: str) -> None:
        """Delete the claim of a run that has stored its range; raise as `claim` does."""
        if run in self.runs:
            other_runs = dict(self.runs)
            del other_runs[run]
            self._put(client, consumer, at=self.at, to=self.to, runs=other_runs)

    def _put(
        self,
        client: "LakeChime",
        consumer: str,
        *,
        at: int,
        to: int,
        runs: Mapping[str, Mapping[str, Any]],
    ) -> None:
        newest: Any = dict(list(runs.items())[-MAX_CLAIMS:])
        value = {"at": at, "to": to, "runs": newest}
        client.put_watermark(consumer, CLAIMS, value, expected=self.revision)
