"""Counts of faults that slots and ranges find; they add up, whatever the slots were."""

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
class FaultCounts:
    """The number of faults and the first offset, by fault and by segment or run."""

    faults: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def add(
        self, what: str, which: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer]
    ) -> None:
        """Count rows or entries with a fault; `which` are their segments or runs."""
        for number in np.unique(which):
            of_number = offsets[which == number]
            self._count(what, int(number), len(of_number), int(of_number.min()))

    def _count(self, what: str, which: int, count: int, first: int) -> None:
        before, earliest = self.faults.get((what, which), (0, first))
        self.faults[what, which] = before + count, min(earliest, first)

    def merge(self, other: "FaultCounts") -> None:
        """Add the counts of another part of the check."""
        for (what, which), (count, first) in other.faults.items():
            self._count(what, which, count, first)

    def report(
        self,
        state: Snapshot,
        runs: Mapping[int, str],
        findings: Findings,
        *,
        events: bool,
        store: bool,
        of_version: int | None = None,
    ) -> None:
        """Turn the counts into findings.

        `runs` are the paths of the runs that could be read. Without `events` or `store`, missing
        events or entries are not reported.
        """
        where = "" if of_version is None else f" in version {of_version}"
        paths: dict[int, str] = {}  # of a file with rows of the segment
        for file in state.files.values():
            paths |= dict.fromkeys(file.segments, file.path)
        if events:
            for what, fault in _EVENTS.items():
                for segment, count, first in self._of(what):
                    name = segment_name(segment)
                    message = (
                        f"{count} rows of segment {name} (the first has offset {first}) "
                        f"{fault}{where}; restore the log and the segment logs from a backup"
                    )
                    findings.add("I18", paths.get(segment, name), message)
        for run, count, _ in self._of(UNFOUNDED):
            if run in runs:
                message = f"{count} of its entries are not what the data files hold{where}; {MEND}"
                findings.add("I20", runs[run], message)
        if store:
            for segment, count, _ in self._of(UNSTORED):
                message = (
                    f"{count} of its rows are the newest of their key and delta, but no run has "
                    f"them{where}; {MEND}"
                )
                findings.add("I21", paths.get(segment, layout.KEY_STORE), message)

    def _of(self, what: str) -> list[tuple[int, int, int]]:
        """Return (segment or run, count, first offset) for a fault, in order."""
        of_fault: list[tuple[int, int, int]] = []
        for (kind, which), (count, first) in self.faults.items():
            if kind == what:
                of_fault.append((which, count, first))
        return sorted(of_fault)
