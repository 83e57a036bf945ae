"""How many bad rows an ingest may put aside, and what it says of them."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.reject_threshold import parse_threshold
from opal_lake.storage.open import open_storage
from opal_lake.table import Table
from tests.opal_lake.shop import SCHEMA, create


def some_bad(bad: int, rows: int) -> tuple[pa.Table, list[bool]]:
    """Rows without a key are bad; none deletes."""
    keys = [None] * bad + [f"k{number}" for number in range(rows - bad)]
    return pa.table({"sku": keys, "at": list(range(rows)), "price": [1] * rows}, schema=SCHEMA), [
        False
    ] * rows


def put_aside(said: str) -> list[dict[str, str]]:
    """Return the rejected rows in the files that a message names."""
    [url] = re.findall(r"spark\.read\.parquet\('file://([^']+)'\)", said)
    files = Path(url).parent.glob(Path(url).name)
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create(open_storage(str(tmp_path / "t")))


@pytest.mark.parametrize("metadata", ["batch", "inline"])
@pytest.mark.parametrize(
    "threshold, bad",
    [(3, 3), ("3", 3), ("15%", 3), ("15.5 %", 3), ("0%", 0), (0, 0), ("100%", 20), (None, 20)],
)
def test_up_to_the_threshold_rows_are_put_aside(
    table: Table, threshold: int | str | None, bad: int, metadata: str
) -> None:
    result = table.ingest(
        *some_bad(bad, 20), on_bad_rows="quarantine", reject_threshold=threshold, metadata=metadata
    )
    assert (result.counts["rejected"], result.counts["rows"]) == (bad, 20 - bad)


@pytest.mark.parametrize("metadata", ["batch", "inline"])
@pytest.mark.parametrize(
    "threshold, most", [(3, 3), ("3", 3), ("15%", 3), ("19.9%", 3), ("0%", 0), (0, 0)]
)
def test_more_bad_rows_than_the_threshold_commit_nothing(
    table: Table, threshold: int | str, most: int, metadata: str
) -> None:
    before = table.snapshot_at().version
    with pytest.raises(InvalidInputError) as failed:
        table.ingest(
            *some_bad(4, 20),
            on_bad_rows="quarantine",
            reject_threshold=threshold,
            metadata=metadata,
        )
    message = str(failed.value)
    fact = f"but reject_threshold='{threshold}' allows only {most}. Nothing was ingested"
    assert f"4 of 20 rows (20%) cannot go into the table, {fact}" in message
    assert "  4 rows: key column 'sku' is null\nfor example:\n  {\"" in message
    assert table.snapshot_at().version == before
    assert len(put_aside(message)) == 4


@pytest.mark.parametrize("threshold", [True, -1, 1.5, "", "5 rows", "101%", "-1%", "%", "٣", "5%%"])
def test_a_wrong_threshold_is_refused_before_anything_is_read(table: Table, threshold: int) -> None:
    with pytest.raises(
        InvalidInputError,
        match="write a number of rows such as 100, or a percentage of them such as '5%'",
    ):
        table.ingest(*some_bad(0, 1), on_bad_rows="quarantine", reject_threshold=threshold)


def test_a_threshold_without_a_quarantine_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="add on_bad_rows='quarantine'"):
        table.ingest(*some_bad(0, 1), reject_threshold=3)


def test_share_of_bad_rows_is_compared_exactly() -> None:
    threshold = parse_threshold("0.1%", "quarantine")
    assert threshold is not None
    assert (
        threshold.max_rejected(999),
        threshold.max_rejected(1000),
        threshold.is_exceeded(1, 1000),
        threshold.is_exceeded(1, 999),
    ) == (0, 1, False, True)


def test_notes_name_the_files_of_rejected_rows(table: Table) -> None:
    result = table.ingest(*some_bad(2, 3), on_bad_rows="quarantine")
    assert [row["reason"] for row in put_aside(result.notes[-1])] == [
        "key column 'sku' is null"
    ] * 2
