"""The figures of the comparison with other formats; nothing here measures anything."""

import math
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.peers.boxes import COUNT, box_sql, boxes, meets
from tests.bench.peers.catalog import SYSTEMS, USUAL
from tests.bench.peers.figures import UNFILTERED, Case, Figure, Results, load_results
from tests.bench.peers.limits import LIMITS, Limit, check_limits
from tests.bench.peers.measures import merged_bytes
from tests.bench.peers.options import (
    FEED_SYSTEMS,
    MEASURES,
    SHORT_SYSTEMS,
    STATEMENT_MEASURES,
    STATEMENT_SYSTEMS,
    USUAL_MEASURES,
    parse,
)
from tests.bench.peers.ratios import all_ratios, ratio_table
from tests.bench.peers.rows import BEGAN_MS, Batch, check_batch, hot_keys, key_texts
from tests.bench.peers.tables import growth, kind_of_file, medians

UPSERT = Case(measure="upsert", rows=1000, batch=10)


def figures(case: Case, **seconds: float) -> list[Figure]:
    return [
        Figure(case=case, system=name.replace("_", "-"), unit="s", values=[value])
        for name, value in seconds.items()
    ]


def ratios(*measured: list[Figure]) -> dict[str, float]:
    figures_of_all = [figure for group in measured for figure in group]
    return {ratio.name: ratio.value for ratio in all_ratios(figures_of_all)}


def test_opal_is_compared_with_the_fastest_peer_and_all_with_plain() -> None:
    computed = all_ratios(figures(UPSERT, opal_inline=2, delta=12, iceberg=8, lumos=1, plain=1))
    assert [ratio.who for ratio in computed if ratio.over == "fastest peer"] == ["iceberg"]
    assert {ratio.name: ratio.value for ratio in computed} == {
        "upsert 1% uniform: fastest peer / opal-inline": 4,
        "upsert 1% uniform: opal-inline / plain": 2,
        "upsert 1% uniform: delta / plain": 12,
        "upsert 1% uniform: iceberg / plain": 8,
        "upsert 1% uniform: lumos / plain": 1,
    }
    assert "upsert 1% uniform\n" in ratio_table(computed)
    assert "(iceberg)" in ratio_table(computed)


def test_a_scan_is_compared_with_the_unfiltered_one_or_with_the_fresh_table() -> None:
    fresh = Case(measure="scan", rows=1000, columns="2 columns")
    later = Case(measure="scan", rows=1000, columns="2 columns", batch=5, upserts=10)
    unfiltered = Case(
        measure="scan", rows=1000, columns="2 columns", batch=5, upserts=10, view=UNFILTERED
    )
    computed = ratios(
        figures(fresh, opal_inline=1, delta=2),
        figures(later, opal_inline=3, delta=5),
        figures(unfiltered, opal_inline=2),
    )
    assert computed["scan 0.5% after 10 2 columns: opal-inline / its unfiltered scan"] == 1.5
    assert computed["scan 0.5% after 10 2 columns: delta / its fresh table"] == 2.5
    assert not [
        name for name in computed if name.startswith("scan after 0") and "fresh table" in name
    ]


def test_growth_is_relative_to_the_smallest_table() -> None:
    sizes = [Case(measure="growth", rows=rows, batch=100) for rows in (1000, 10_000)]
    computed = ratios(
        figures(sizes[0], opal_inline=1, delta=2), figures(sizes[1], opal_inline=1.2, delta=9)
    )
    assert computed["growth 1% of 10,000: delta / itself at 1,000"] == 4.5
    assert computed["growth 1% of 10,000: opal-inline / itself at 1,000"] == pytest.approx(1.2)


def test_a_merge_into_growing_tables_is_relative_to_the_smallest_one() -> None:
    sizes = [Case(measure="merge-growth", rows=rows, batch=100) for rows in (1000, 10_000)]
    computed = ratios(figures(sizes[0], opal_local=1), figures(sizes[1], opal_local=1.1))
    name = "merge-growth 1% of 10,000: opal-local / itself at 1,000"
    assert computed == {name: pytest.approx(1.1)}


def test_keys_of_statements_are_distinct_and_in_the_table() -> None:
    keys = [*key_texts(1000, 0, 400), *key_texts(1000, 400, 600)]
    assert {*keys} == {f"user-{number:012d}" for number in range(0, 2000, 2)}


def test_without_peers_or_plain_there_is_nothing_to_divide() -> None:
    assert not ratios(figures(UPSERT, opal_inline=2))


@pytest.mark.parametrize(
    "bound, value, failed",
    [
        ("least", 1.4, True),
        ("least", 1.5, False),
        ("most", 1.6, True),
        ("most", 1.5, False),
        ("most", None, False),
    ],
)
def test_a_limit_fails_only_beyond_its_wide_margin(
    bound: str, value: float | None, failed: bool
) -> None:
    limit = Limit(
        ratio="upsert: a / b", claim=4, wide=1.5, bound="least" if bound == "least" else "most"
    )
    verdict = check_limits({} if value is None else {limit.ratio: value}, [limit])[0]
    assert verdict.failed is failed
    assert ("FAILED" in str(verdict)) is failed
    assert ("not measured" in str(verdict)) is (value is None)


def test_margins_are_wider_than_claims() -> None:
    assert not [
        limit.ratio for limit in LIMITS if (limit.wide >= limit.claim) is (limit.bound == "least")
    ]


def test_every_limit_is_about_a_ratio_of_the_short_run() -> None:
    """A limit with a misspelt name would never fail."""
    short = parse(["--short"])
    measured = []
    for share in short.shares:
        measured += figures(
            Case(measure="upsert", rows=short.rows, batch=int(short.rows * share)),
            **dict.fromkeys(SHORT_SYSTEMS, 1.0),
        )
    for columns in ("5 columns", "2 columns"):
        for view in ("", UNFILTERED):
            batch = int(short.rows * short.scan_share)
            case = Case(
                measure="scan",
                rows=short.rows,
                batch=batch,
                upserts=short.scan_upserts[0],
                columns=columns,
                view=view,
            )
            measured += figures(case, **dict.fromkeys(SHORT_SYSTEMS, 1.0))
    compaction = Case(measure="compaction", rows=short.rows, columns=f"{short.small_files} files")
    measured += figures(compaction, **dict.fromkeys(SHORT_SYSTEMS, 1.0))
    assert not [
        verdict.limit.ratio for verdict in check_limits(ratios(measured)) if verdict.value is None
    ]


def test_boxes_are_the_same_every_time_and_lie_within_the_table() -> None:
    columns = ("v1", "v2", "mod_time")
    queried = boxes(columns, 1000)
    assert queried == boxes(columns, 1000)
    assert len(queried) == COUNT
    assert {len(box) for box in queried} == {1, 3}
    ranges = {"v1": (0, 1), "v2": (0, 1000), "mod_time": (BEGAN_MS, BEGAN_MS + 1000)}
    assert all(
        ranges[column][0] <= low < high <= ranges[column][1]
        for box in queried
        for column, (low, high) in box.items()
    )
    assert (
        box_sql({"v1": (0.25, 0.5), "v2": (3, 9)})
        == "v1 >= 2.5000000000000000e-01 AND v1 < 5.0000000000000000e-01 AND v2 >= 3 AND v2 < 9"
    )


def test_a_footer_says_which_files_meet_a_box(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"v1": [0.2, 0.4], "v2": [5, 7]}), tmp_path / "part.parquet", row_group_size=1
    )
    meeting = [{}, {"v1": (0.4, 0.5)}, {"v1": (0.0, 0.3), "v2": (7, 8)}]
    passing = [{"v1": (0.41, 0.5)}, {"v1": (0.1, 0.2)}, {"v2": (0, 5)}]
    assert [meets(tmp_path / "part.parquet", box) for box in meeting + passing] == [True] * 3 + [
        False
    ] * 3


def test_results_are_on_disk_at_once_and_read_back(tmp_path: Path) -> None:
    results = Results(path=tmp_path / "out" / "run.json", about={"machine": {"cores": 2}})
    results.add(
        Figure(case=UPSERT, system="delta", unit="s", values=[3.0, 1.0, 2.0], parts={"a": 1.0})
    )
    again = load_results(results.path)
    assert again.figures == results.figures
    assert again.about == results.about
    assert again.figures[0].value == 2.0


def test_a_second_figure_of_a_case_adds_its_rounds(tmp_path: Path) -> None:
    results = Results(path=tmp_path / "run.json", about={})
    for value in (1.0, 5.0):
        results.add(Figure(case=UPSERT, system="delta", unit="s", values=[value]))
    assert [list(figure.values) for figure in results.figures] == [[1.0, 5.0]]


def test_bytes_are_counted_by_kind_of_file() -> None:
    before = {"data/a.parquet": 10, "_opal/log/1.json": 5}
    after = {
        "data/a.parquet": 10,
        "data/b.parquet": 7,
        "_opal/log/1.json": 6,
        "_opal/key_store/1.run": 3,
        "part-0.parquet": 2,
    }
    assert growth(before, after) == {"data": 7, "_opal/log": 1, "_opal/key_store": 3, "parquet": 2}
    assert kind_of_file(".hoodie/metadata/files/x") == ".hoodie/metadata"
    assert kind_of_file("_delta_log/0.json") == "_delta_log"


def test_merges_are_what_equal_upserts_wrote_beyond_the_least() -> None:
    assert merged_bytes([10, 10, 40, 11]) == 31


def test_medians_go_part_by_part() -> None:
    assert medians(
        [{"ingest": 1, "metagen": 4}, {"ingest": 3, "metagen": 2}, {"ingest": 2, "metagen": 9}]
    ) == {"ingest": 2, "metagen": 4}


@pytest.mark.parametrize("count", [1, 5, 50, 5_000, 500_000, 5_000_000])
def test_skewed_ranks_are_distinct_and_within_the_table(count: int) -> None:
    rows = 10_000_000
    hot = hot_keys(count, rows)
    assert 1 <= hot <= count
    if hot < count:
        slope = (count - hot) / math.log(rows / hot)
        assert hot / slope > 1, "ranks further out are more than 1 apart"
        assert hot * math.exp((count - 1 - hot) / slope) < rows


def test_a_batch_whose_keys_would_repeat_is_refused() -> None:
    fits = Batch(base=1000, count=100, seed=1, keys="uniform", inserted=0)
    check_batch(fits)
    with pytest.raises(ValueError, match="double"):
        check_batch(Batch(base=1000, count=100, seed=9, keys="uniform", inserted=960))
    with pytest.raises(ValueError, match="multiple"):
        check_batch(Batch(base=7_368_787, count=100, seed=1, keys="uniform", inserted=0))


def test_options_of_the_command_line_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    whole = parse([])
    assert (whole.systems, whole.only, whole.name) == (USUAL, USUAL_MEASURES, "peers-10000000")
    assert {*SYSTEMS} - {*USUAL} == {"delta-cdf", "iceberg-cow", "opal-local"}
    assert {*MEASURES} - {*USUAL_MEASURES} == {"feed", *STATEMENT_MEASURES}
    assert parse(["--only", "feed"]).systems == FEED_SYSTEMS
    assert parse(["--only", "conflicts"]).systems == STATEMENT_SYSTEMS
    assert parse(["--only", "conflicts,get"]).systems == USUAL
    short = parse(["--short", "--rows", "10000000"])
    assert (short.systems, short.rows, short.check, short.name) == (
        SHORT_SYSTEMS,
        1_000_000,
        True,
        "peers-short",
    )
    assert parse(["--growth-rows", "5_000_000,1000000"]).growth_rows == (1_000_000, 5_000_000)
    with pytest.raises(SystemExit):
        parse(["--systems", "delta,opel"])
    assert "unknown: opel" in capsys.readouterr().err


def test_a_worker_starts_in_an_environment_that_has_pyspark_alone() -> None:
    code = (
        "import sys; "
        "sys.modules.update(pyarrow=None, numpy=None, psutil=None, opal_lake=None); "
        "import tests.bench.peers.worker"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
