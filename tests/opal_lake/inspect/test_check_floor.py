"""Up to the floor an event may differ from the rule's UNTIL.

It may not hide a row that is visible after the floor.
"""

import numpy as np
import pytest

from opal_lake.events.segment_log import Events
from opal_lake.inspect.check.content.fault_counts import EARLY, LATE, FaultCounts
from opal_lake.inspect.check.content.ranges import Doubts, check_range
from opal_lake.inspect.check.content.slots import ExpectedEnds, RangeRules

ROW = {"segment": np.array([5]), "offset": np.array([0], np.int32)}
NO_DOUBTS = Doubts(
    segment=np.array([], np.int64), offset=np.array([], np.int32), run=np.array([], np.int32)
)


@pytest.mark.parametrize(
    "expected, actual, floor, finding",
    [
        (20, 8, 10, EARLY),  # invisible from the floor on, where the rule shows it up to 20
        (20, 8, None, EARLY),
        (8, 20, 10, LATE),
        (20, 25, 10, LATE),
        (8, 9, 10, None),
        (9, 8, 10, None),
        (10, 3, 10, None),
        (20, 20, 10, None),
    ],
)
def test_an_event_may_differ_from_the_rule_s_up_to_the_floor(
    expected: int, actual: int, floor: int | None, finding: str | None
) -> None:
    counts = FaultCounts()
    rows = ExpectedEnds(**ROW, until=np.array([expected]), stays=np.array([False]))
    check_range(
        rows,
        Events(**ROW, until=np.array([actual])),
        NO_DOUBTS,
        RangeRules(floor=floor, only_held=True),
        counts,
    )
    assert {what for what, _ in counts.faults} == ({finding} if finding else set())
