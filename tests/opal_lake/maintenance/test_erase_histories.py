"""Random histories of erasures, retentions and upserts, whose processes die at some call.

If an erasure reports that no files remain, no file holds the values of the erased key.
"""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import ConflictError, InvalidInputError, StorageError
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table, create_on, table_on
from tests.kit.check import check_table
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.kit.ids import CountingIds
from tests.opal_lake import shop
from tests.opal_lake.maintenance.erasing import folders_with
from tests.opal_lake.shop import LISTS_IN_FILES, rows

SECRETS = ("zz-first-person", "zz-other-person")
MODES: list[Mode] = ["before", "after"]
PROPERTIES = {"checkpoint_commits": 2, "segment_rows": 2, "key_store_fan_in": 2, "fold_files": 0}

_KEYS = st.sampled_from(["ax", "bow", *SECRETS])
_UPSERT = st.tuples(st.just("upsert"), st.lists(_KEYS, min_size=1, max_size=3, unique=True))
_ERASE = st.tuples(
    st.just("erase"),
    st.tuples(st.sampled_from(SECRETS), st.booleans(), st.sampled_from(["0s", "30d"])),
)
_RETAIN = st.tuples(st.just("retain"), st.booleans())
_OTHER = st.tuples(st.sampled_from(["compact", "major", "savepoint", "release"]), st.none())
# The share of the calls of a step after which its process dies; above 1, it does not die
_DEATH = st.floats(0, 2)
STEPS = st.lists(
    st.tuples(st.one_of(_UPSERT, _ERASE, _ERASE, _RETAIN, _OTHER), _DEATH, st.sampled_from(MODES)),
    min_size=3,
    max_size=12,
)


class _History:
    """A table on which processes do steps; `tokens` counts the erasures of each key."""

    def __init__(self) -> None:
        self.storage: Any = MemoryStorage()
        self.clock = ManualClock()
        layout = TableLayout(
            keys=["sku"], delta="at", deletes="price IS NULL", properties=PROPERTIES
        )
        spec = plan_spec(shop.SCHEMA, layout)
        table = create_on(self.storage, spec, self.clock, tuning=LISTS_IN_FILES)
        table.ingest(*rows([("ax", 0, 1), (SECRETS[0], 0, 2)]), metadata="inline")
        self.moment = 0
        self.tokens = dict.fromkeys(SECRETS, 0)
        self.writers = 0

    def table(self, storage: Any) -> Table:
        """Return the table as another process opens it."""
        self.writers += 1
        ids = CountingIds(prefix=f"w{self.writers}")
        return table_on(storage, self.clock, ids, tuning=LISTS_IN_FILES)

    def play(self, verb: str, argument: Any, death: float, mode: Mode) -> None:
        """Do a step in a process that dies somewhere, and then check what it reports."""
        self.moment += 1
        if verb == "erase":
            key, is_new, grace = argument
            self.tokens[key] += is_new
            argument = key, grace
        fail_at = None
        if death < 1:
            dry = FailingStore(shop.copied(self.storage, MemoryStorage()))
            self._step(verb, argument, dry)
            fail_at = 1 + int(death * len(dry.trace))
        self._step(verb, argument, FailingStore(self.storage, fail_at, mode))

    def _step(self, verb: str, argument: Any, store: FailingStore) -> None:
        with suppress(Crash, StorageError, ConflictError, InvalidInputError):
            self._do(verb, argument, store)

    def _do(self, verb: str, argument: Any, store: FailingStore) -> None:
        table = self.table(store)
        match verb:
            case "upsert":
                batch = [(key, self.moment, self.moment) for key in argument]
                table.ingest(*rows(batch), metadata="inline")
            case "erase":
                self.erase(store, *argument)
            case "retain":
                table.retain(window="0s", grace="0s" if argument else "1d")
            case "compact":
                table.compact()
            case "major":
                table.compact(mode="major", look_back=0)
            case "savepoint":
                table.savepoint(f"s{self.moment}")
            case "release":
                for name in table.snapshot_at().root.savepoints:
                    table.release(name)

    def erase(self, store: FailingStore, key: str, grace: str = "0s") -> None:
        """Erase a key; if that is reported as complete, no file may hold it."""
        token = f"{SECRETS.index(key)}-{self.tokens[key]}"
        done = self.table(store).erase(f"sku = '{key}'", token=token, grace=grace)
        if done.counts.get("remaining_files", 1) == 0:
            assert folders_with(store.inner, (key,), key) == {}, done


@pytest.mark.slow_but_one
@pytest.mark.parametrize("examples", [15, 100])
def test_an_erasure_that_leaves_no_files_leaves_no_value(examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=STEPS)
    def run(steps: list[Any]) -> None:
        history = _History()
        for (verb, argument), death, mode in steps:
            history.play(verb, argument, death, mode)
        table = history.table(history.storage)
        for name in table.snapshot_at().root.savepoints:
            table.release(name)
        for key in SECRETS:
            history.tokens[key] += 1
            history.erase(FailingStore(history.storage), key)
        assert check_table(table) == []

    run()
