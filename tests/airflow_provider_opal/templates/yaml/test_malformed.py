"""Each mistake in a YAML file is reported once, with its position and what to write.

One case is one change of a good file. Most cases are rows of `yaml/mistakes.yaml`.
"""

import os
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_opal.templates.yaml.files import found_files, read_yaml
from airflow_provider_opal.templates.yaml.models.version_1 import MaintenanceModel
from airflow_provider_opal.templates.yaml.text.problem import dotted
from opal_lake.arguments.values import span_text
from tests.airflow_provider_opal.templates.yaml.build import DATA, GOOD, problems_of

MISTAKES = yaml.safe_load((DATA / "mistakes.yaml").read_text(encoding="utf-8"))

# Five levels of ten aliases each: 100,000 values
ALIAS_BOMB = "\n".join(
    f"x-{name}: &{name} [{', '.join([base] * 10)}]"
    for name, base in zip("abcde", ("1", "*a", "*b", "*c", "*d"), strict=True)
)
MAX_SECONDS = 5
LONG_ID = "  orders:", f"  {'o' * 151}:"
LONG_TAG = "    consumers:", f"    tags: [{'t' * 101}]\n    consumers:"
LONG_CRON = '"@daily"', f'"{"0," * 500}0 * * * *"'
LONG_TIMEZONE = "    table:", f"    timezone: {'a' * 5000}\n    table:"
DEEP = "defaults:", f"x-a: {'[' * 30}{']' * 30}\ndefaults:"
VERY_DEEP = "defaults:", f"x-a: {'[' * 100_000}\ndefaults:"
MANY_ALIASES = "defaults:", f"{ALIAS_BOMB}\ndefaults:"
LARGE = GOOD, "# " + "x" * 262_145
# The change of the good file, the position, the keys, a part of the message
LARGE_MISTAKES = [
    (*LONG_ID, "5:3", "dags.ooo", "no '-' at the beginning or after a dot, at most 150 in all"),
    (*LONG_TAG, "14:12", "dags.orders.tags[0]", "write a shorter one"),
    (*LONG_CRON, "6:15", "dags.orders.schedule", "write a cron expression, such as '0 6 * * *'"),
    (*LONG_TIMEZONE, "8:15", "dags.orders.timezone", "write a name of the IANA database"),
    (*DEEP, "2:25", "", "write it flatter"),
    (*VERY_DEEP, "2:25", "", "write it flatter"),
    (*MANY_ALIASES, "5:6", "", "write less into one file"),
    (*LARGE, "1:1", "", "split it into several *.opal.yaml files"),
]
LARGE_IDS = ("id", "tag", "cron", "timezone", "deep", "very_deep", "aliases", "file")


def check_only_problem(text: str, folder: Path, position: str, at: str, message: str) -> None:
    """Assert that a text has one problem, and the reading takes little time."""
    begin = time.monotonic()
    [problem] = problems_of(text, folder)
    assert time.monotonic() - begin < MAX_SECONDS
    assert f"{problem.position.line}:{problem.position.column}" == position
    assert dotted(problem.at).startswith(at)
    assert message in problem.what
    assert str(problem).startswith(f"shop.opal.yaml:{position}: ")
    assert "\n" not in str(problem)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    assert problems_of(GOOD, tmp_path) == []


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in MISTAKES])
def test_a_mistake_is_reported_once_with_its_position_and_remedy(
    row: dict[str, str], tmp_path: Path
) -> None:
    before, old, after = GOOD.partition(row["old"])
    assert old
    if "to_end" in row:
        after = ""
    text = f"{before}{row['new']}{after}"
    check_only_problem(text, tmp_path, row["position"], row["at"], row["message"])


@pytest.mark.parametrize("old, new, position, at, message", LARGE_MISTAKES, ids=LARGE_IDS)
def test_a_value_that_is_too_large_is_reported_without_delay(
    old: str, new: str, position: str, at: str, message: str, tmp_path: Path
) -> None:
    assert old in GOOD
    check_only_problem(GOOD.replace(old, new, 1), tmp_path, position, at, message)


@pytest.mark.parametrize(
    "data, position, message",
    [
        pytest.param(GOOD.encode("utf-16"), "1:1", "save it as UTF-8", id="utf-16"),
        pytest.param(GOOD.encode("utf-32"), "1:1", "save it as UTF-8", id="utf-32"),
        pytest.param(
            GOOD.replace("shop.orders", "bücher").encode("latin-1"),
            "9:14",
            "0xfc is not UTF-8; save the file as UTF-8",
            id="latin-1",
        ),
        pytest.param(b"version: 1\n\x80", "2:1", "save the file as UTF-8", id="not-text"),
    ],
)
def test_another_encoding_is_refused_at_its_first_byte(
    data: bytes, position: str, message: str, tmp_path: Path
) -> None:
    [problem] = problems_of(data, tmp_path)
    assert f"{problem.position.line}:{problem.position.column}" == position
    assert message in problem.what


def test_a_byte_order_mark_of_utf_8_is_ignored(tmp_path: Path) -> None:
    assert problems_of(GOOD.encode("utf-8-sig"), tmp_path) == []


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    assert problems_of(GOOD.replace("\n", "\r\n"), tmp_path) == []
    [problem] = problems_of(
        GOOD.replace("retries: 3", "retries: x").replace("\n", "\r\n"), tmp_path
    )
    assert problem.position.line == 3


def test_all_mistakes_of_a_file_are_reported_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = (
        GOOD.replace("retries: 3", "retris: 3")
        .replace("[order_id]", "order_id")
        .replace("shop.jobs:revenue", "revenue")
    )
    problems = problems_of(text, tmp_path)
    assert [(problem.position.line, problem.dag_id) for problem in problems] == [
        (3, None),
        (10, "orders"),
        (15, "orders"),
    ]


def test_texts_that_yaml_1_1_converts_stay_texts(tmp_path: Path) -> None:
    text = GOOD.replace("[order_id]", "[no, on, 12:30:00, 2026-11-01, 1_000]")
    assert problems_of(text, tmp_path) == []
    dag = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"]
    assert dag.table.keys == ["no", "on", "12:30:00", "2026-11-01", "1_000"]  # type: ignore[union-attr]  # it is a mapping there


@pytest.mark.parametrize(
    "start",
    [
        "2026-11-01",
        "'2026-11-01'",
        "2026-11-01 06:00:00",
        '"2026-11-01T06:00"',
        "2026-11-01T06:00:00+02:00",
    ],
)
def test_a_day_may_be_written_with_and_without_quotes(start: str, tmp_path: Path) -> None:
    assert problems_of(GOOD.replace("2026-11-01", start), tmp_path) == []


def test_anchors_can_be_merged_and_given_keys_win(tmp_path: Path) -> None:
    text = """\
x-base: &base
  schedule: "@hourly"
  start_date: 2026-11-01
  source: &in {files: "/in/{{ partition_key }}/*.json"}
version: 1
dags:
  a: {<<: *base, table: shop.a}
  b: {<<: [*base], table: shop.b, schedule: null, source: *in}
"""
    assert problems_of(text, tmp_path) == []
    dags = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags
    assert (dags["a"].schedule, dags["b"].schedule, dags["b"].table_name) == (
        "@hourly",
        None,
        "shop.b",
    )


def test_a_mistake_in_an_anchor_is_reported_at_the_anchor(tmp_path: Path) -> None:
    text = """\
x-base: &base
  schedule: "@houry"
version: 1
dags:
  a: {<<: *base, start_date: 2026-11-01, table: shop.a, source: {files: /in/*.json}}
"""
    [problem] = problems_of(text, tmp_path)
    assert str(problem).startswith(
        "shop.opal.yaml:2:13: dags.a.schedule: unknown schedule '@houry'; did you mean '@hourly'?"
    )


def test_a_pipeline_s_own_values_replace_the_defaults(tmp_path: Path) -> None:
    defaults = (
        "defaults:\n  retry_delay: 5m\n  pool: small\n"
        "  spark: {executor_memory: 4g, conf: {a: 1, b: true}}"
    )
    text = GOOD.replace("defaults:", defaults).replace(
        "    table:", "    retries: 7\n    pool: null\n    spark: {conf: {b: 2.5}}\n    table:"
    )
    assert problems_of(text, tmp_path) == []
    dag = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"]
    assert (dag.retries, dag.retry_delay.total_seconds(), dag.pool) == (7, 300, None)
    assert dag.spark is not None
    assert dag.spark.model_dump(exclude_none=True) == {
        "executor_memory": "4g",
        "conf": {"a": "1", "b": "2.5"},
    }


@pytest.mark.parametrize(
    "maintenance, window, zorder",
    [
        ("    maintenance: true\n", "30d", None),
        ("    maintenance: {zorder: [order_id]}\n", "30d", ["order_id"]),
        ("    maintenance: {window: 1d}\n", "1d", None),
        ("", "30d", None),
    ],
)
def test_maintenance_of_the_defaults_and_of_the_pipeline_are_joined(
    maintenance: str, window: str, zorder: list[str] | None, tmp_path: Path
) -> None:
    text = GOOD.replace("defaults:", "defaults:\n  maintenance: {window: 30d}").replace(
        "    table:", f"{maintenance}    table:"
    )
    assert problems_of(text, tmp_path) == []
    model = read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"].maintenance
    assert isinstance(model, MaintenanceModel)
    assert span_text("window", model.window) == window
    assert (model.zorder, model.schedule) == (zorder, "@daily")


@pytest.mark.parametrize("value", ["false", "null"])
def test_a_pipeline_can_turn_the_maintenance_of_the_defaults_off(
    value: str, tmp_path: Path
) -> None:
    text = GOOD.replace("defaults:", "defaults:\n  maintenance: true").replace(
        "    table:", f"    maintenance: {value}\n    table:"
    )
    assert problems_of(text, tmp_path) == []
    assert read_yaml(tmp_path / "shop.opal.yaml", tmp_path).dags["orders"].maintenance is None


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.yaml", tmp_path / "dags"
    folder.mkdir()
    outside.write_text(GOOD)
    (folder / "out.opal.yaml").symlink_to(outside)
    [problem] = read_yaml(folder / "out.opal.yaml", folder).problems
    assert str(problem) == (
        "out.opal.yaml:1:1: this is a link to a file outside of the folder; copy the file into it"
    )
    (folder / "..data").mkdir()
    (folder / "..data" / "in.opal.yaml").write_text(GOOD)
    (folder / "in.opal.yaml").symlink_to("..data/in.opal.yaml")
    assert read_yaml(folder / "in.opal.yaml", folder).problems == []
    assert [path.name for path in found_files(folder)] == ["in.opal.yaml", "out.opal.yaml"]


def test_a_link_to_nowhere_and_a_pipe_are_problems_and_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.opal.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "b.opal.yaml")
    problems = []
    for path in found_files(tmp_path):
        problems += read_yaml(path, tmp_path).problems
    first, second = [str(problem) for problem in problems]
    assert first == (
        "a.opal.yaml:1:1: the file cannot be read (No such file or directory); "
        "let Airflow's user read it"
    )
    assert second == "b.opal.yaml:1:1: this is not a file; put a YAML file in its place"


def test_a_file_name_that_moves_the_cursor_is_escaped(tmp_path: Path) -> None:
    [problem] = problems_of("version: 2", tmp_path, "a\n\x1b[2J.opal.yaml")
    assert str(problem).startswith("a\\n\\x1b[2J.opal.yaml:1:10: version")


PIECES = (
    "\n § §  §:§: §- §[§]§{§}§{{ § }}§{% §&a §*a§<<: §!x §'§\"§|§>§#§@§~§null§true§1e9§-0§"
    "\t§\r§\x85§%§? §,§0x10§.nan§..§/§é§\U0001f600"
)
TOKENS = st.sampled_from(PIECES.split("§"))


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), TOKENS), min_size=1, max_size=4
    )
)
def test_a_randomly_changed_file_has_its_mistakes_reported_and_raises_nothing(
    changes: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for start, length, new in changes:
        text = text[:start] + new + text[start + length :]
    with tempfile.TemporaryDirectory() as folder:
        for problem in problems_of(text, Path(folder)):
            line_breaks = text.count("\n") + text.count("\r") + text.count("\x85")
            assert 1 <= problem.position.line <= line_breaks + 2
            assert problem.what
            assert "\n" not in str(problem)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert problems_of(data, Path(folder))
