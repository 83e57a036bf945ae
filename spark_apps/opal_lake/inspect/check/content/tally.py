"""What slots and places find wrong, as counts that add up, whatever the slots were."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opal_lake import layout
from opal_lake.ids import segment_name
from opal_lake.inspect.check.finding import Findings
from opal_lake.key_store.run import MEND
from opal_lake.log.snapshot import Snapshot

MISSING, LATE, EARLY, EXTRA, UNFOUNDED, UNSTORED = (
    "missing",
    "late",
    "early",
    "extra",
    "unfounded",
    "unstored",
)
_EVENTS = {
    MISSING: "have no UNTIL event, though a newer row of their key or their own delete ends them",
    LATE: "have an UNTIL event that comes too late",
    EARLY: "have an UNTIL event before the time at which they end",
    EXTRA: "have an UNTIL event, though they are valid to the end of time",
}


@dataclass(slots=True)
class Tally:
    """By what is wrong and of which segment or run: how often, and the first offset."""

    counts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def add(
        self, what: str, which: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer]
    ) -> None:
        for number in np.unique(which):
            mine = offsets[which == number]
            self._count(what, int(number), len(mine), int(mine.min()))

    def _count(self, what: str, which: int, count: int, first: int) -> None:
        before, earliest = self.counts.get((what, which), (0, first))
        self.counts[what, which] = before + count, min(earliest, first)

    def merge(self, other: "Tally") -> None:
        for (what, which), (count, first) in other.counts.items():
            self._count(what, which, count, first)

    def tell(
        self,
        state: Snapshot,
        runs: Mapping[int, str],
        findings: Findings,
        *,
        events: bool,
        store: bool,
        of_version: int | None = None,
    ) -> None:
        """As findings. `runs` are those that could be read; without `events` or `store`, missing events or entries are not reported."""
        where = "" if of_version is None else f" in version {of_version}"
        places = {segment: file.path for file in state.files.values() for segment in file.segments}
        for what, message in _EVENTS.items() if events else ():
            for segment, count, first in self._of(what):
                name = segment_name(segment)
                text = f"{count} rows of segment {name} (the first has offset {first}) {message}{where}"
                findings.add(
                    "I18",
                    places.get(segment, name),
                    f"{text}; restore the log and the segment logs from a backup",
                )
        for run, count, _ in self._of(UNFOUNDED):
            if run in runs:
                findings.add(
                    "I20",
                    runs[run],
                    f"{count} of its entries are not what the data files hold{where}; {MEND}",
                )
        for segment, count, _ in self._of(UNSTORED) if store else ():
            message = f"{count} of its rows are the newest of their key and delta, but no run has them{where}; {MEND}"
            findings.add("I21", places.get(segment, layout.KEY_STORE), message)

    def _of(self, what: str) -> list[tuple[int, int, int]]:
        return sorted(
            (which, *value) for (kind, which), value in self.counts.items() if kind == what
        )
