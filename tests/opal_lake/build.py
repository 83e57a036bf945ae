"""Random histories: how many, from which seed, and tables to play them on."""

import os
import random
from collections.abc import Callable

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import plan_spec
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.tuning import DEFAULT_TUNING, Tuning
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on
from tests.kit.ids import CountingIds
from tests.kit.replay import Replay
from tests.kit.runs import MemoryRuns
from tests.kit.strategies import History, Shape

HISTORIES = int(os.environ.get("OPAL_HISTORIES", "16"))
SEED = int(os.environ.get("OPAL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


def play(history: History, tuning: Tuning = DEFAULT_TUNING) -> Replay:
    """Play a history on a new table and on the model."""
    replay = Replay(open_table=new_table(history.shape, tuning), shape=history.shape)
    for step in history.steps:
        replay.play(step)
    return replay


def new_table(shape: Shape, tuning: Tuning = DEFAULT_TUNING) -> Callable[[], Table]:
    """Create a table in memory; return how to open it again with empty caches."""
    storage, clock, ids = MemoryStorage(), ManualClock(), CountingIds()
    create_on(storage, plan_spec(shape.arrow_schema(), shape.layout()), clock, ids)
    return lambda: Table(
        log=CommitLog(storage=storage, clock=clock, ids=ids, tuning=tuning),
        cache=MemoryRuns(storage=storage),
    )
