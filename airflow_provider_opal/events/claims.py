"""Claims of runs on events. LakeChime stores a claim in one step, so it survives a killed run.

The watermark of a consumer is a number, and does not say which run moved it. So a run first claims
its range, by compare-and-set under the key `claims`. Then the run moves the watermark over the
range; if the run was killed, the next one does. The claim stays until its run has stored the range
in Airflow. A run that was killed before that finds its range by the claim. A run without a claim
has no range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import LakeChime, Watermark

CLAIMS = "claims"
# Only runs that were killed right after their claim and never tried again leave claims. The value
# of a watermark has a maximum size.
MAX_CLAIMS = 200
NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The last claimed step of a consumer, and the claims of runs by their tokens.

    The step leads from the watermark's revision `at` to the seq `to`. `revision` is the revision
    of these claims in LakeChime.
    """

    at: int = NOWHERE
    to: int = NOWHERE
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    revision: int | None = None

    @classmethod
    def read(cls, client: "LakeChime", consumer: str) -> "Claims":
        """Read the claims of a consumer; return empty ones if none are stored."""
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
        """Claim the step from the watermark `before` to the seq `to`.

        `runs` holds the claim of a run by its token. Without it the step belongs to no run. Raises
        ConflictError if another step was claimed since these claims were read.
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
        newest_items = list(runs.items())[-MAX_CLAIMS:]
        newest: Any = dict(newest_items)
        value = {"at": at, "to": to, "runs": newest}
        client.put_watermark(consumer, CLAIMS, value, expected=self.revision)
