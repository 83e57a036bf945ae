"""The messages about rows that cannot be ingested."""

from collections import Counter

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
