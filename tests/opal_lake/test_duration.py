"""Durations are written in one way everywhere."""

from datetime import timedelta

import pyarrow as pa
import pytest

from opal_lake.clock import ManualClock
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.duration import parse_duration, plain_duration
from opal_lake.errors import InvalidInputError
from opal_lake.maintenance.compaction import plan_floor
from opal_lake.maintenance.due import policy_of
from opal_lake.storage import open_storage
from opal_lake.table import Table, create_on
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import SCHEMA

MINUTE_US = 60_000_000


@pytest.mark.parametrize(
    "written, minutes",
    [
        ("30d", 30 * 1440),
        ("2w", 14 * 1440),
        ("1h30m", 90),
        ("1w2d3h4m60s", 9 * 1440 + 185),
        ("30m1h", 90),
        ("0s", 0),
        (timedelta(days=2), 2880),
        (timedelta(weeks=1, seconds=60), 10081),
        (timedelta(days=19_675, minutes=1), 28_332_001),
    ],
)
def test_a_text_or_a_timedelta_is_a_number_of_microseconds(
    written: str | timedelta, minutes: int
) -> None:
    assert parse_duration(written, name="window") == minutes * MINUTE_US
    text = plain_duration(written, name="window")
    assert parse_duration(text, name="window") == minutes * MINUTE_US


def test_a_timedelta_whose_number_would_have_seven_digits_is_kept_in_several_units() -> None:
    long = timedelta(days=12, seconds=1, milliseconds=2)
    assert plain_duration(long, name="window") == "12d1s2ms"
    assert parse_duration("12d1s2ms", name="window") == long // timedelta(microseconds=1)


def test_a_timedelta_is_kept_in_its_greatest_whole_unit() -> None:
    spans = [
        timedelta(days=14),
        timedelta(hours=36),
        timedelta(minutes=90),
        timedelta(seconds=5),
        timedelta(seconds=1, milliseconds=200),
        timedelta(0),
    ]
    assert [plain_duration(span, name="window") for span in spans] == [
        "14d",
        "36h",
        "90m",
        "5s",
        "1200ms",
        "0d",
    ]
    assert plain_duration("2w", name="window") == "2w"


@pytest.mark.parametrize(
    "written, problem",
    [
        (
            "soon",
            (
                "not a span of time; write a number of weeks, days, hours, minutes, seconds or "
                "milliseconds, such as 30d, 2w, 12h, 1h30m or 200ms"
            ),
        ),
        ("", "not a span of time"),
        ("30", "not a span of time"),
        ("1h 30m", "not a span of time"),
        ("-1d", "not a span of time"),
        ("1.5h", "not a span of time"),
        ("1d\n", "not a span of time"),
        ("1234567d", "not a span of time"),
        ("٣d", "not a span of time"),
        (30, "not a span of time"),
        (None, "not a span of time"),
        (timedelta(days=-1), "not a span of time"),
        ("900000w", "longer than 999999d"),
        ("999999d" * 1000, "longer than 999999d"),
        (timedelta.max, "longer than 999999d"),
    ],
)
def test_other_values_are_refused_as_spans(written: object, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        parse_duration(written, name="window")


def test_a_part_of_a_millisecond_has_no_text() -> None:
    with pytest.raises(InvalidInputError, match="not a whole number of milliseconds; round it"):
        plain_duration(timedelta(microseconds=1), name="window")


@pytest.mark.parametrize("written, span_us", [("200ms", 200_000), ("1m1s5ms", 61_005_000)])
def test_a_span_may_have_milliseconds(written: str, span_us: int) -> None:
    assert parse_duration(written, name="flush_interval") == span_us


def table_with_times(request: pytest.FixtureRequest) -> Table:
    """Make a table whose delta is a time."""
    schema = pa.schema([("sku", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    layout = TableLayout(keys=["sku"], delta="at", properties={"look_back": "2w"})
    return create_on(
        open_storage(f"memory://{request.node.name}"), plan_spec(schema, layout), ManualClock()
    )


def test_properties_policies_and_jobs_accept_texts_and_timedeltas(
    request: pytest.FixtureRequest,
) -> None:
    table = table_with_times(request)
    spec = table.snapshot_at().spec
    assert spec.word("look_back") == "2w"
    table.set_properties(
        {"window": "1h30m", "archive_after": timedelta(weeks=52), "look_back": timedelta(hours=36)}
    )
    spec = table.snapshot_at().spec
    assert (spec.word("window"), spec.word("archive_after"), spec.word("look_back")) == (
        "1h30m",
        "364d",
        "36h",
    )
    policy = policy_of(
        spec, {"window": timedelta(minutes=90), "look_back": "1w1d", "grace": timedelta(hours=2)}
    )
    assert (policy.spec.word("window"), policy.spec.word("look_back"), policy.grace) == (
        "90m",
        "1w1d",
        "2h",
    )
    now_us = table.log.clock.now_us()
    for span in ("1h30m", timedelta(minutes=90)):
        assert plan_floor(table.snapshot_at(), span, now_us) == now_us - 90 * MINUTE_US
    for span in ("1w", timedelta(weeks=1)):
        assert table.retain(window=span, grace=span, dry_run=True).operation == "retain"
        assert compact(table, look_back=span).operation == "compact"
    with pytest.raises(InvalidInputError, match="write a span of time such as 30d"):
        table.set_properties({"window": "a while"})


def test_a_number_stays_a_number_where_the_delta_is_one(request: pytest.FixtureRequest) -> None:
    table = create_on(
        open_storage(f"memory://{request.node.name}"),
        plan_spec(SCHEMA, TableLayout(keys=["sku"], delta="at")),
    )
    for span in ("1h30m", timedelta(hours=1)):
        with pytest.raises(InvalidInputError, match="is not a number such as 1000"):
            plan_floor(table.snapshot_at(), span, 0)
