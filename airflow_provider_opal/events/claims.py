"""Which run took which events. It is decided in LakeChime in one step, so that it holds wherever a run is killed.

The watermark of a consumer is a number: it cannot say whose step it was. So a run first claims its range, by compare-and-set under the key
`claims`, and then the watermark moves over it, by the run or by whoever looks next. A claim stays until its run has noted its range with
itself. A run that was killed in between finds by it what is its own; one without a claim took nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakechime import LakeChime, Watermark

CLAIMS = "claims"
MAX_CLAIMS = 200  # of runs that were killed at just this moment and never tried again; a watermark's value has its limit
NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The last step that was claimed: from the watermark's revision `at`, to the place `to`. And the claims of runs, by the run's token."""

    at: int = NOWHERE
    to: int = NOWHERE
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    revision: int | None = None

    @classmethod
    def read(cls, client: "LakeChime", consumer: str) -> "Claims":
        kept: Any = client.watermark(consumer, CLAIMS)
        return cls() if kept is None else cls(**kept.value, revision=kept.revision)

    def claim(
        self,
        client: "LakeChime",
        before: "Watermark",
        to: int,
        runs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """The step from this watermark, for a run or for nobody. ConflictError if anything was claimed since these claims were read."""
        self._put(
            client, before.consumer, at=before.revision, to=to, runs={**self.runs, **(runs or {})}
        )

    def drop(self, client: "LakeChime", consumer: str, run: str) -> None:
        """The run has noted its range. ConflictError as above."""
        if run in self.runs:
            self._put(
                client,
                consumer,
                at=self.at,
                to=self.to,
                runs={name: what for name, what in self.runs.items() if name != run},
            )

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
        client.put_watermark(
            consumer, CLAIMS, {"at": at, "to": to, "runs": newest}, expected=self.revision
        )
