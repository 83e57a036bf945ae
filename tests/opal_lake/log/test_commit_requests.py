"""Requests to S3 of an upsert and a read: bounds that hold however old the table is."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.table import Table
from tests.opal_lake.hours import SCHEMA, Hours, upserted
from tests.s3_requests import Requests, counted

DATA = {"data", "_opal/segment_logs", "_opal/key_store"}


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the process a cache of its own: others evict from the shared one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def asked(options: dict[str, str], hours: Hours, job: Callable[[Table], object]) -> Requests:
    table = hours.table
    with counted(options, hours.storage.uri) as requests:
        job(table)
    return requests


@pytest.mark.s3
def test_upsert_sends_ten_requests_besides_its_data_and_one_listing(
    s3_options: dict[str, str],
) -> None:
    hours = Hours("s3://lake/requests/upserts", s3_options, fold_files=0).upsert(18)
    counts = []
    for turn in range(8):
        batch = pa.table([["k0001"], [10**6 + turn], [turn]], schema=SCHEMA)
        table, version = hours.table, hours.table.snapshot_at().version
        requests = asked(
            s3_options, hours, lambda table, batch=batch: table.ingest(batch, metadata="inline")
        )  # type: ignore[misc]
        assert table.snapshot_at().version == version + 1
        metadata_requests = sum(
            count for (_, part), count in requests.parts.items() if part not in DATA
        )
        assert requests.verbs["LIST"] <= 1, requests
        assert requests.verbs["GET"] <= 7 + 8 * (not (version + 1) % 4), (
            requests
        )  # with a checkpoint: logs since the last bitmap base
        counts.append(metadata_requests)
    assert sorted(counts)[len(counts) // 2] <= 10, counts
    assert max(counts) <= 14, counts


@pytest.mark.slow
@pytest.mark.s3
def test_folding_small_files_adds_few_requests_to_an_upsert_on_average(
    s3_options: dict[str, str],
) -> None:
    plain, folding = (
        Hours(f"s3://lake/requests/fold{fan_in}", s3_options, fold_files=fan_in)
        for fan_in in (0, 16)
    )
    means = []
    for hours in (plain, folding):
        with counted(s3_options, hours.storage.uri) as requests:
            hours.upsert(40)
        means.append(requests.total / 40)
    assert means[0] <= 17, means
    assert means[1] <= means[0] + 3, means


@pytest.mark.s3
def test_read_after_22_upserts_requests_a_file_of_each_tier_and_the_newest_commits(
    s3_options: dict[str, str],
) -> None:
    hours = upserted("s3://lake/requests/read", s3_options, 22)
    requests = asked(s3_options, hours, lambda table: table.read())
    assert requests.total <= 25, requests
    assert requests.verbs["LIST"] <= 1, requests
    assert not requests.repeated, requests
