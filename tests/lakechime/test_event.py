"""Events: their limits, their errors, and JSON there and back."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakechime import DataChangeEvent, InvalidEventError, OperationType, TableFormat
from lakechime.store.digests import dedup_key, partition_key
from tests.lakechime.build import hive, made

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LONG = st.integers(0, (1 << 63) - 1)
EVENTS = st.builds(
    DataChangeEvent,
    table=TEXT,
    cluster=TEXT,
    partition=st.none() | st.lists(VALUE, min_size=1, max_size=3).map(tuple),
    snapshot_id=TEXT.map(lambda text: f"s{text}"),
    prev_snapshot_id=st.none() | TEXT.map(lambda text: f"p{text}"),
    snapshot_ts=st.none() | LONG,
    table_format=st.sampled_from(TableFormat),
    operation_type=st.sampled_from(OperationType),
    tags=st.dictionaries(
        TEXT,
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
        max_size=4,
    ),
    event_ts=st.none() | LONG,
    seq=st.none() | LONG,
)


@given(EVENTS)
def test_json_there_and_back_is_the_same_event(event: DataChangeEvent) -> None:
    text = json.dumps(event.to_json())
    assert DataChangeEvent.from_json(text) == event == DataChangeEvent.from_json(json.loads(text))
    assert dedup_key(DataChangeEvent.from_json(text)) == dedup_key(event)
    assert pickle.loads(pickle.dumps(event)) == event


@pytest.mark.parametrize(
    "change, said",
    [
        ({"table": ""}, "table='' is not a valid name"),
        ({"table": "a\nb"}, "without control characters"),
        ({"table": "x" * 513}, "1 to 512 characters"),
        ({"table": 7}, "table=7 is not a valid name"),
        ({"cluster": "\x00"}, "cluster="),
        ({"table": "\ud800"}, "is not a valid name"),
        ({"partition": "2026-11-24"}, "is not a list; write one value for each level"),
        ({"partition": ()}, "has 0 levels, and may have 1 to 32"),
        ({"partition": (1,) * 33}, "has 33 levels"),
        ({"partition": ("x" * 5_000,)}, "more than 4,096 bytes"),
        ({"partition": (float("nan"),)}, "is not JSON"),
        ({"partition": ({1: 2},)}, "is not JSON"),
        ({"partition": (object(),)}, "is not JSON"),
        ({"partition": ("\ud800",)}, "has an unpaired surrogate"),
        ({"snapshot_id": None}, "has no snapshot_id; name the snapshot, which only events of HIVE"),
        ({"snapshot_id": 7}, "snapshot_id=7 is not a valid id of a snapshot"),
        ({"snapshot_id": ""}, "is not a valid id of a snapshot"),
        ({"prev_snapshot_id": "3"}, "names itself as prev_snapshot_id"),
        (
            {"snapshot_ts": 1.5},
            "snapshot_ts=1.5 is not valid; write a whole number of at least 0, in milliseconds",
        ),
        ({"snapshot_ts": True}, "write a whole number of at least 0"),
        ({"snapshot_ts": -1}, "write a whole number of at least 0"),
        ({"seq": 1 << 63}, "seq=9223372036854775808 is not valid; write a whole number"),
        (
            {"table_format": "PARQUET"},
            (
                "table_format='PARQUET' is unknown; "
                "write one of HIVE, ICEBERG, DELTA, HUDI, PAIMON, OPAL"
            ),
        ),
        (
            {"operation_type": "UPSERT"},
            "operation_type='UPSERT' is unknown; write one of APPEND, DELETE, UPDATE",
        ),
        ({"tags": ["a"]}, "is not a mapping"),
        ({"tags": {"a": 1}}, "tag a has the value 1, which is not a text"),
        ({"tags": {"": "1"}}, "is not a valid name of a tag"),
        ({"tags": {"a\n": "1"}}, "is not a valid name of a tag"),
        ({"tags": {"a": "\x00"}}, "databases cannot store"),
        ({"tags": {"a": "x" * 1_000_000}}, "has 1,000,000 characters, and may have 1,024"),
        (
            {"tags": {f"t{number}": "" for number in range(65)}},
            "has 65 tags, and may have 64",
        ),
        (
            {"tags": {f"t{number}": "x" * 1_000 for number in range(20)}},
            "the tags take .* bytes, and may take 16,384",
        ),
    ],
)
def test_an_invalid_field_of_an_event_is_refused_in_one_short_sentence(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidEventError, match=said) as refused:
        replace(made(3), **change)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text, said",
    [
        (
            '{"table": "t", "table_format": "DELTA", "snapshot_id": "1", "tagz": {}}',
            "has no field 'tagz'; its fields are table, partition",
        ),
        ('{"table": "t", "snapshot_id": "1"}', "needs table_format"),
        ("{}", "needs table and table_format"),
        ("[]", "is a JSON object"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("null", "is a JSON object"),
    ],
)
def test_json_that_is_not_an_event_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidEventError, match=said):
        DataChangeEvent.from_json(text)


def test_missing_fields_of_an_event_have_defaults() -> None:
    event = DataChangeEvent.from_json(
        {"table": "t", "table_format": "HIVE", "operation_type": None, "tags": None}
    )
    assert event == DataChangeEvent(table="t", table_format=TableFormat.HIVE)
    assert (event.operation_type, event.cluster, event.to_json().get("seq", "left out")) == (
        OperationType.UPDATE,
        "default",
        "left out",
    )


def test_tags_are_a_copy_that_nobody_changes() -> None:
    given = {"a": "1"}
    event = made(1, tags=given)
    given["a"] = "2"
    assert event.tags == {"a": "1"}
    with pytest.raises(TypeError):
        event.tags["a"] = "3"  # type: ignore[index]


def test_events_are_distinguished_by_table_snapshot_and_partition() -> None:
    same = {
        dedup_key(made(1)),
        dedup_key(
            made(
                1, tags={"a": "1"}, before=None, operation_type=OperationType.DELETE, snapshot_ts=5
            )
        ),
    }
    assert len(same) == 1
    others = [
        made(2),
        made(1, table="other"),
        made(1, cluster="eu"),
        made(1, partition=("a",)),
        made(1, partition=("b",)),
        hive(("a",)),
    ]
    assert len({dedup_key(event) for event in [made(1), *others]}) == 7
    assert partition_key([{"b": 1, "a": [1.5]}]) == partition_key(({"a": (1.5,), "b": 1},))
    assert len({partition_key([value]) for value in (1, 1.0, "1", True, None, "None")}) == 6


def test_a_dag_file_may_import_the_package_for_next_to_nothing() -> None:
    heavy = ("sqlalchemy", "alembic", "fastapi", "pydantic", "pyarrow", "numpy", "httpx")
    code = (
        "import sys, lakechime; from lakechime import *; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
