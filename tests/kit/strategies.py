"""Hypothesis strategies: tables of every shape, and histories that make them hard.

Values come from small pools, so that keys, deltas and ties meet again all the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from opal_lake.definition.schema import Atomic, arrow_type
from opal_lake.definition.table_spec import TableLayout

_DATES = (
    date(1, 1, 1),
    date(1582, 10, 4),
    date(1582, 10, 15),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2026, 3, 29),
    date(9999, 12, 31),
)
_TIMES = (
    datetime(1, 1, 1),
    datetime(1582, 10, 10, 12),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2026, 3, 29, 1, 59, 59, 999_999),
    datetime(2026, 3, 29, 2, 30),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
)
POOLS: dict[str, tuple[Any, ...]] = {
    "boolean": (False, True),
    "byte": (-128, -1, 0, 1, 127),
    "short": (-(1 << 15), -1, 0, 1, 2, (1 << 15) - 1),
    "integer": (-(1 << 31), -7, 0, 1, 2, 3, (1 << 31) - 1),
    "long": (-(1 << 63), -1, 0, 1, 2, 3, (1 << 53) + 1, (1 << 63) - 1),
    "string": ("", "a", "A", "ä", "a\0", "a b", "1", "日本"),
    "binary": (b"", b"\0", b"\0\0", b"a", b"\xff"),
    "date": _DATES,
    "timestamp": tuple(moment.replace(tzinfo=UTC) for moment in _TIMES),
    "timestamp_ntz": _TIMES,
    "decimal(18,4)": tuple(
        map(
            Decimal,
            (
                "-99999999999999.9999",
                "-0.0001",
                "0.0000",
                "0.0001",
                "1.0000",
                "1.5000",
                "99999999999999.9999",
            ),
        )
    ),
    "decimal(5,0)": tuple(map(Decimal, ("-99999", "-1", "0", "10", "99999"))),
    "decimal(38,10)": tuple(
        map(Decimal, ("-1.5000000000", "0E-10", "12345678901234567890.1000000000"))
    ),
}
ADDED_KINDS = ("string", "timestamp", "date", "decimal(18,4)", "binary", "boolean")
ORDER_KINDS = (
    "long",
    "integer",
    "short",
    "byte",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(18,4)",
    "decimal(5,0)",
)
_STEPS: dict[str, Any] = {
    "date": timedelta(days=1),
    "timestamp": timedelta(microseconds=1),
    "timestamp_ntz": timedelta(microseconds=1),
    "decimal(18,4)": Decimal("0.0001"),
}
_NAMES = ("id", "the key", "clé", "k.v")
DELTA, SERIAL, PARTITION = "at", "serial", "place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of table: its types, the home of its rows, and tiny limits."""

    keys: Mapping[str, str]
    delta: str
    ties: Mapping[str, str]
    partition: str | None
    file_format: str
    properties: Mapping[str, int | str]
    pools: Mapping[str, tuple[Any, ...]]

    @property
    def columns(self) -> dict[str, str]:
        """Every column and its type."""
        return {**self.keys, DELTA: self.delta, **self.ties, PARTITION: "string", SERIAL: "long"}

    def arrow_schema(self) -> pa.Schema:
        return pa.schema(
            [pa.field(name, arrow_type(Atomic(name=kind))) for name, kind in self.columns.items()]
        )

    def layout(self) -> TableLayout:
        return TableLayout(
            keys=list(self.keys),
            delta=DELTA,
            tie_break=list(self.ties),
            deletes="place = 'deleted'",
            partition_by=[self.partition] if self.partition else [],
            file_format=self.file_format,
            properties=self.properties,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A row on its way in; `values` are those of every column but the serial number."""

    values: Mapping[str, Any]
    deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happens to a table.

    `ingest`, `metagen` and `inline`, which is both, run through; `begin_...` do their work and stay
    in hand until a `finish` commits the one at place `hand`, onto whatever the head is by then.
    `tasks` is how many tasks share the work. `part` says which pending segments a MetaGen takes:
    all (0), the 1st, 3rd ..., or the others.

    `compact` is minor, or, with a part, major; `zorder` takes what is new, or, with a part, all;
    `during` happens while they run. `restore` takes the table back to the version at place `hand`.
    `add` adds a column, or, with a part, the one of that number, which may exist already.

    `pick` says which pending rows a MetaGen takes up and a `discard` withdraws: all (0), those
    without a key (1), of a key (2, 3), or of the ingest with the token at place `hand` (4). An
    ingest `replaces` as many of the pending ones that have a token.
    """

    verb: str
    puts: tuple[Put, ...] = ()
    raw: tuple[bytes, ...] = ()
    token: str | None = None
    tasks: int = 1
    part: int = 0
    hand: int = 0
    pick: int = 0
    replaces: int = 0
    during: tuple["Step", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A table and what happens to it."""

    shape: Shape
    steps: tuple[Step, ...] = field(default_factory=tuple)


def neighbours_of(value: Any, kind: str) -> list[Any]:
    """Return the moments just before and just after, where Python has them."""
    step = _STEPS.get(kind, 1)
    around = []
    for sign in (-1, 1):
        try:
            around.append(value + sign * step)
        except OverflowError:
            continue
    return [
        moment for moment in around if not isinstance(moment, int) or -(1 << 63) <= moment < 1 << 63
    ]


@st.composite
def shapes(draw: st.DrawFn, file_formats: tuple[str, ...] = ("parquet", "orc")) -> Shape:
    kinds = draw(st.lists(st.sampled_from(sorted(POOLS)), min_size=1, max_size=2))
    keys = dict(zip(draw(st.permutations(_NAMES)), kinds, strict=False))
    ties = {
        f"tie {number}": kind
        for number, kind in enumerate(draw(st.lists(st.sampled_from(ORDER_KINDS), max_size=2)))
    }
    delta = draw(st.sampled_from(ORDER_KINDS))
    columns = {**keys, DELTA: delta, **ties}
    pools = {
        name: tuple(draw(st.lists(st.sampled_from(POOLS[kind]), min_size=1, max_size=4)))
        for name, kind in columns.items()
    }
    pools |= {tie: (None, *pools[tie]) for tie in ties}
    return Shape(
        keys=keys,
        delta=delta,
        ties=ties,
        partition=draw(st.sampled_from([None, None, PARTITION, next(iter(keys))])),
        file_format=draw(st.sampled_from(file_formats)),
        properties=draw(properties()),
        pools={**pools, PARTITION: ("a", "b/c", "", None)},
    )


@st.composite
def properties(draw: st.DrawFn) -> dict[str, int | str]:
    """Return limits so small that few rows make many segments and checkpoints."""
    return {
        "segment_rows": draw(st.integers(1, 6)),
        "group_rows": draw(st.integers(1, 12)),
        "checkpoint_commits": draw(st.integers(1, 5)),
        "token_keep": draw(st.integers(1, 3)),
        "key_store_fan_in": draw(st.integers(2, 4)),
    }


# Steps are drawn with raw rows, eight dice of a byte each, which a shape turns into values. So one
# set of strategies serves every shape: making strategies costs more than drawing from them.
_RAW_ROW = st.binary(min_size=8, max_size=8)
_RAW_ROWS = st.one_of(
    st.just([]), *(st.lists(_RAW_ROW, min_size=least, max_size=7) for least in (1, 3, 5))
)
# a token belongs to one operation
_INGEST_TOKENS = st.sampled_from((None,) * 8 + ("i0", "i1", "i2/ü"))
_METAGEN_TOKENS = st.sampled_from((None,) * 8 + ("m0", "m1", "m2/ü"))
_TASKS = st.integers(1, 3)


def _work(verb: str) -> st.SearchStrategy[Step]:
    if verb.endswith(("ingest", "inline")):
        return st.builds(
            Step,
            verb=st.just(verb),
            raw=_RAW_ROWS.map(tuple),
            token=_INGEST_TOKENS,
            tasks=_TASKS,
            replaces=st.sampled_from((0, 0, 0, 1, 2)),
        )
    return st.builds(
        Step,
        verb=st.just(verb),
        token=_METAGEN_TOKENS,
        tasks=_TASKS,
        part=st.sampled_from((0, 0, 0, 1, 2)),
        pick=st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
        hand=st.integers(0, 3),
    )


_INGEST, _METAGEN, _BEGIN_INGEST, _BEGIN_METAGEN = map(
    _work, ("ingest", "metagen", "begin_ingest", "begin_metagen")
)
_INLINE, _BEGIN_INLINE = map(_work, ("inline", "begin_inline"))
_FINISH = st.builds(Step, verb=st.just("finish"), hand=st.integers(0, 3))
_DISCARD, _BEGIN_DISCARD = (
    st.builds(Step, verb=st.just(verb), pick=st.integers(2, 4), hand=st.integers(0, 3))
    for verb in ("discard", "begin_discard")
)
# an ingest and another try of it
_TRY, _RETRY, _BEGIN_RETRY = (
    st.builds(
        Step,
        verb=st.just(verb),
        raw=_RAW_ROWS.map(tuple),
        token=st.just(token),
        tasks=_TASKS,
        replaces=st.just(replaces),
    )
    for verb, token, replaces in (
        ("ingest", "try 1", 0),
        ("ingest", "try 2", 1),
        ("begin_ingest", "try 3", 2),
    )
)
_DURING = st.lists(st.one_of(_INGEST, _METAGEN, _INLINE, _FINISH, _DISCARD), max_size=3).map(tuple)
_COMPACT = st.builds(
    Step, verb=st.just("compact"), part=st.integers(0, 1), hand=st.integers(0, 9), during=_DURING
)
_RIVALS = st.builds(
    Step,
    verb=st.just("compact"),
    part=st.integers(0, 1),
    hand=st.integers(0, 9),
    during=st.tuples(_COMPACT, _COMPACT),
)
_ZORDER = st.builds(
    Step, verb=st.just("zorder"), part=st.integers(0, 1), hand=st.integers(0, 9), during=_DURING
)
_REWRITES = st.builds(
    Step,
    verb=st.just("zorder"),
    hand=st.integers(0, 9),
    during=st.tuples(st.one_of(_COMPACT, _ZORDER)),
)
_RESTORE = st.builds(Step, verb=st.just("restore"), hand=st.integers(0, 30))
_UNDONE = st.builds(
    Step,
    verb=st.just("compact"),
    part=st.integers(0, 1),
    hand=st.integers(0, 9),
    during=st.tuples(_INLINE, _RESTORE),
)
_ADD = st.builds(Step, verb=st.just("add"), part=st.sampled_from((0, 0, 1)), hand=st.integers(0, 5))
_ADDED_IN = st.builds(
    Step, verb=st.just("compact"), hand=st.integers(0, 9), during=st.tuples(_ADD, _INLINE)
)
_REOPEN = st.just(Step(verb="reopen"))
_RACE = st.tuples(_INGEST, _INGEST, _BEGIN_METAGEN, _INGEST, _BEGIN_METAGEN, _FINISH, _FINISH)
# Only MetaGens that take up different segments have anything to redo.
_LOAD = st.builds(
    Step,
    verb=st.just("ingest"),
    raw=st.lists(_RAW_ROW, min_size=4, max_size=8).map(tuple),
    tasks=_TASKS,
)
_ODD, _EVEN = (
    st.builds(
        Step, verb=st.just("begin_metagen"), token=_METAGEN_TOKENS, tasks=_TASKS, part=st.just(part)
    )
    for part in (1, 2)
)
_PARTED = st.tuples(_LOAD, _LOAD, _ODD, _EVEN, _INGEST, _BEGIN_METAGEN, _FINISH, _FINISH, _FINISH)
_SCENES = st.one_of(
    st.tuples(_INGEST, _METAGEN),
    st.tuples(_INGEST, _INGEST, _METAGEN, _REOPEN),
    _RACE,
    _PARTED,
    st.tuples(_INLINE, _INLINE, _REOPEN),
    st.tuples(_INLINE, _INLINE, _COMPACT, _INLINE, _COMPACT),
    st.tuples(_INLINE, _INGEST, _BEGIN_METAGEN, _COMPACT, _FINISH, _RIVALS),
    st.tuples(_INLINE, _INLINE, _ZORDER, _INLINE, _INGEST, _ZORDER, _METAGEN, _COMPACT),
    st.tuples(_INLINE, _INLINE, _REWRITES, _INLINE, _COMPACT, _ZORDER),
    st.tuples(_INLINE, _INLINE, _BEGIN_INLINE, _RIVALS, _FINISH, _INGEST, _COMPACT, _METAGEN),
    st.tuples(_INGEST, _BEGIN_METAGEN, _INLINE, _BEGIN_INLINE, _INGEST, _METAGEN, _FINISH, _FINISH),
    st.tuples(_INLINE, _BEGIN_INLINE, _BEGIN_INLINE, _INLINE, _FINISH, _FINISH),
    st.tuples(_INLINE, _INLINE, _RESTORE, _INLINE, _RESTORE, _COMPACT),
    st.tuples(_INLINE, _ADD, _INLINE, _COMPACT, _ADD, _INLINE),
    st.tuples(
        _INLINE,
        _BEGIN_INLINE,
        _BEGIN_INGEST,
        _ADD,
        _INLINE,
        _FINISH,
        _FINISH,
        _METAGEN,
        _ADDED_IN,
        _ZORDER,
    ),
    st.tuples(
        _INGEST, _BEGIN_METAGEN, _ADD, _INLINE, _FINISH, _RESTORE, _INLINE, _RESTORE, _REOPEN
    ),
    st.tuples(_INGEST, _METAGEN, _INLINE, _COMPACT, _RESTORE, _METAGEN, _ZORDER, _RESTORE),
    st.tuples(_INLINE, _BEGIN_INLINE, _BEGIN_METAGEN, _RESTORE, _FINISH, _FINISH, _UNDONE, _INLINE),
    st.tuples(_BEGIN_INGEST, _BEGIN_INGEST, _FINISH, _BEGIN_METAGEN, _FINISH, _FINISH, _METAGEN),
    st.tuples(_INGEST, _INGEST, _INGEST, _METAGEN, _METAGEN, _DISCARD, _METAGEN, _REOPEN),
    st.tuples(_INGEST, _INGEST, _BEGIN_METAGEN, _DISCARD, _FINISH, _METAGEN),
    st.tuples(_INGEST, _INGEST, _BEGIN_DISCARD, _METAGEN, _DISCARD, _FINISH, _METAGEN),
    st.tuples(_INGEST, _INGEST, _DISCARD, _RESTORE, _METAGEN, _RESTORE, _METAGEN, _COMPACT),
    st.tuples(_TRY, _RETRY, _METAGEN, _REOPEN),
    st.tuples(_TRY, _INGEST, _BEGIN_RETRY, _METAGEN, _FINISH, _METAGEN, _RESTORE, _METAGEN),
    st.tuples(_TRY, _BEGIN_METAGEN, _RETRY, _FINISH, _DISCARD, _METAGEN),
    st.lists(
        st.one_of(
            _INGEST,
            _METAGEN,
            _INLINE,
            _BEGIN_INGEST,
            _BEGIN_METAGEN,
            _BEGIN_INLINE,
            _FINISH,
            _DISCARD,
            _BEGIN_DISCARD,
        ),
        min_size=1,
        max_size=4,
    ),
)
_STORIES = st.lists(_SCENES, min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn, file_formats: tuple[str, ...] = ("parquet", "orc")) -> History:
    shape = draw(shapes(file_formats))
    steps = [step for scene in draw(_STORIES) for step in scene]
    steps += [Step(verb="metagen")] if draw(st.booleans()) else []
    return History(shape=shape, steps=tuple(_shaped(step, shape) for step in steps))


def _shaped(step: Step, shape: Shape) -> Step:
    puts = tuple(put_of(raw, shape) for raw in step.raw)
    return replace(
        step, puts=puts, during=tuple(_shaped(step_during, shape) for step_during in step.during)
    )


def put_of(raw: bytes, shape: Shape) -> Put:
    """Return the row that eight dice mean for a shape."""
    values = {
        name: pool[raw[index] % len(pool)] for index, (name, pool) in enumerate(shape.pools.items())
    }
    return Put(values=values, deleted=raw[-1] % 4 == 1)
