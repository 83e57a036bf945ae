"""The messages about rows that cannot be ingested."""

import json
import math
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa

from opal_lake.data.rejects import MAX_REASONS, OTHER_REASONS, Rejects, fewer_reasons


def test_a_different_reason_for_every_row_does_not_fill_the_commit() -> None:
    rejects = Rejects(keep=False)
    rejects.add(pa.table({"k": [0] * 50}), ["often"] * 50)
    rejects.add(
        pa.table({"k": range(1000)}), [f"value {number} is not a date" for number in range(1000)]
    )
    assert len(rejects.counts) == MAX_REASONS
    assert rejects.counts["often"] == 50
    assert rejects.counts.total() == 1050
    assert rejects.counts[OTHER_REASONS] == 1000 - (MAX_REASONS - 2)


def test_few_reasons_are_not_merged() -> None:
    counts = Counter({"null": 3, "too long": 1})
    assert fewer_reasons(counts) == counts


def test_a_rejected_row_is_json_with_maps_as_objects_and_times_and_nan_as_text() -> None:
    rows = pa.table(
        {
            "labels": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
            "at": pa.array([datetime(2026, 1, 31, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
            "price": pa.array([1.5, math.nan, math.inf]),
        }
    )
    rejects = Rejects(keep=False)
    rejects.add(rows, ["late"] * 3)
    texts = [example["row"] or "" for example in rejects.examples]
    at = "2026-01-31T00:00:00+00:00"
    assert [json.loads(text) for text in texts] == [
        {"labels": {"a": 1}, "tags": ["x"], "at": at, "price": 1.5},
        {"labels": {}, "tags": [], "at": at, "price": "nan"},
        {"labels": None, "tags": None, "at": at, "price": "inf"},
    ]
