"""`opal dag`: the findings of lint within and between files, and the output of other actions.

Lint also looks at DAGs of Python files and at the lake; the other actions are render, schema, new.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_opal.templates.yaml.lint.lint import lint
from airflow_provider_opal.templates.yaml.schema import schema_text
from opal_lake.cli import main
from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.exit_codes import FINDINGS, INPUT, OK, RETRY
from opal_lake.storage import open_storage
from opal_lake.table import create_on
from tests.airflow_provider_opal.templates.yaml.build import ALL_KEYS, GOOD, LOADER, ROOT
from tests.docs.build import examples
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

COLUMNS = pa.schema(
    [("order_id", pa.int64()), ("updated_at", pa.timestamp("us", "UTC")), ("day", pa.string())]
)

pytestmark = pytest.mark.usefixtures("opal_commands")


def pipeline(name: str, table: str, schedule: str = '"@daily"', more: str = "") -> str:
    return (
        f"  {name}:\n    schedule: {schedule}\n    start_date: 2026-11-01\n"
        f"    table: {table}\n    source: {{files: /in/*.json}}\n{more}"
    )


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.opal.yaml").write_text(
            text if "version:" in text else f"version: 1\ndags:\n{text}"
        )
    return folder


def problems_in(folder: Path, *, lake: bool = False) -> list[str]:
    """Return the findings, with files without their folder."""
    findings = []
    for problem in lint(folder, lake=lake).problems:
        text = str(problem).split(":", 1)[1]
        findings.append(f"{Path(problem.file).name}:{text}")
    return findings


def test_sound_files_have_no_findings(tmp_path: Path) -> None:
    report = lint(write(tmp_path, good=GOOD, all=ALL_KEYS))
    assert (report.files, report.pipelines, report.problems) == (2, 4, [])
    assert lint(tmp_path / "good.opal.yaml").pipelines == 1


def test_spans_in_which_consumers_lose_what_they_missed_are_warned_of(tmp_path: Path) -> None:
    consumers = "    consumers: {follow: {function: 'm:f', by: version, own_dag: true}}\n"
    short = pipeline(
        "one", "shop.one", more=f"{consumers}    maintenance: {{window: 2d, look_back: 36h}}\n"
    )
    fine = pipeline(
        "two", "shop.two", more=f"{consumers}    maintenance: {{window: 7d, look_back: 1000}}\n"
    )
    alone = pipeline("three", "shop.three", more="    maintenance: {window: 2d}\n")
    never = pipeline(
        "four",
        "shop.four",
        more=f"{consumers}    reconcile: null\n    maintenance: {{window: 2d}}\n",
    )
    less = pipeline(
        "seven",
        "shop.seven",
        more=f"{consumers}    reconcile_look_back: 2d\n    maintenance: {{window: 2d}}\n",
    )
    made = "{name: shop.five, keys: [a], delta: b, properties: {window: 1h}}"
    write(
        tmp_path,
        a=short + fine + alone + never + less,
        b=pipeline("five", made, more=f"{consumers}    maintenance: true\n"),
    )
    write(
        tmp_path,
        c="version: 1\ndefaults: {maintenance: {window: 1d}}\ndags:\n"
        + pipeline("six", "shop.six", more=consumers),
    )
    report = lint(tmp_path)
    assert {problem.kind for problem in report.problems} == {"warning"}
    assert report.pipelines == 7
    assert [problem.partition(" is shorter")[0] for problem in problems_in(tmp_path)] == [
        "a.opal.yaml:9:27: dags.one.maintenance.window: 2d",
        "a.opal.yaml:9:42: dags.one.maintenance.look_back: 36h",
        "b.opal.yaml:6:72: dags.five.table.properties.window: 1h",
        "c.opal.yaml:2:34: dags.six.maintenance.window: 1d",
    ]
    [window, look_back, *_] = problems_in(tmp_path)
    assert (
        "than the look-back of a reconcile, 7d: consumers by version lose versions that expire "
        "before a reconcile has seen them"
    ) in window
    assert (
        "change.rows fails for a key that is consumed later than that, "
        "if rows of the key were dropped; write '7d' or more"
    ) in look_back


COLUMNS_OF_ORDERS = (
    "order_id BIGINT, updated_at TIMESTAMP, op STRING, total DECIMAL(10,2), s STRUCT<a: INT>"
)


@pytest.mark.parametrize(
    "more, finding",
    [
        ("deletes: \"op = 'D' AND s.a > 1\"", None),
        ("deletes: \"OP = 'D' AND total > 9.5\"", None),
        ('deletes: "{{ var.value.deletes }}"', None),
        (
            "deletes: totl = 1",
            (
                "13:16: dags.orders.table.deletes: the delete condition 'totl = 1' "
                "has a fault at column 1: no column 'totl'; did you mean 'total'?"
            ),
        ),
        (
            "deletes: op = 1",
            (
                "13:16: dags.orders.table.deletes: the delete condition 'op = 1' "
                "has a fault at column 1: column 'op' of type STRING and the"
            ),
        ),
        (
            "deletes: updated_at > '2026-11'",
            (
                "13:16: dags.orders.table.deletes: the delete condition "
                "\"updated_at > '2026-11'\" has a fault at column 1: "
                "column 'updated_at' of type TIMESTAMP"
            ),
        ),
        (
            "tie_break: [op]",
            "13:18: dags.orders.table.tie_break: tie-break column 'op' has type STRING; allowed",
        ),
    ],
)
def test_lint_knows_the_columns_and_types_of_a_schema(
    more: str, finding: str | None, tmp_path: Path
) -> None:
    text = GOOD.replace(
        "delta: updated_at", f"delta: updated_at\n      schema: {COLUMNS_OF_ORDERS!r}\n      {more}"
    )
    problems = problems_in(write(tmp_path, t=text))
    if finding is None:
        assert problems == []
    else:
        [problem] = problems
        assert problem.startswith(f"t.opal.yaml:{finding}")


def test_lint_knows_the_columns_and_types_of_a_table_in_python(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(
        "from datetime import datetime\nfrom airflow_provider_opal import CreateTable, opal_dag\n\n"
        "opal_dag('orders', table='shop.orders', source='/in', schedule=None,\n"
        "         start_date=datetime(2026, 11, 1), create=CreateTable(keys=['id'], delta='ad',\n"
        "         deletes='at = 1', schema='id DOUBLE, at DATE'))\n"
    )
    findings = (
        "deletes: the delete condition 'at = 1' has a fault",
        "delta: the schema has no column 'ad'; use one of 'id', 'at'",
        "keys: key column 'id' has type DOUBLE; allowed are",
    )
    for problem, finding in zip(problems_in(tmp_path), findings, strict=True):
        assert problem.startswith(f"orders.py:4:10: orders.ingest.create.{finding}")


def test_a_cycle_of_pipelines_across_files_is_found_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pipeline("one", "shop.one", "{table: shop.three}"),
        b=pipeline("two", "shop.two", "{table: shop.one}"),
    )
    write(
        tmp_path,
        c=pipeline("three", "shop.three", "{table: shop.two}")
        + pipeline("four", "shop.four", "{table: shop.two}"),
    )
    [problem] = problems_in(tmp_path)
    assert problem.startswith(
        "a.opal.yaml:4:15: dags.one.schedule: "
        "pipelines trigger each other in a cycle: one -> two -> three -> one; give one"
    )


def test_a_pipeline_that_waits_for_itself_is_a_cycle(tmp_path: Path) -> None:
    [problem] = problems_in(write(tmp_path, a=pipeline("one", "shop.one", "{table: shop.one}")))
    assert "in a cycle: one -> one" in problem


@pytest.mark.parametrize(
    "first, second",
    [
        ("shop.orders", "shop.orders"),
        ("shop.orders", "shop/orders"),
        ("s3a://lake/shop/orders", "s3://lake/shop/orders/"),
        ("/lake/orders", "file:///lake/orders"),
    ],
)
def test_two_writers_of_one_table_are_found_however_it_is_written(
    first: str, second: str, tmp_path: Path
) -> None:
    [problem] = problems_in(write(tmp_path, a=pipeline("one", first), b=pipeline("two", second)))
    assert problem.startswith(
        f"b.opal.yaml:6:12: dags.two.table: table {second!r} is written by "
        "'one' (a.opal.yaml:3) too; let one pipeline"
    )


def test_one_name_in_two_lakes_is_two_tables(tmp_path: Path) -> None:
    other = pipeline("two", "t", more="    opal_conn_id: other\n")
    assert problems_in(write(tmp_path, a=pipeline("one", "t"), b=other)) == []


def test_a_pipeline_that_names_its_trigger_otherwise_than_the_writer_is_found(
    tmp_path: Path,
) -> None:
    text = pipeline("one", "shop.one") + pipeline("two", "shop.two", "{table: shop/one}")
    [problem] = problems_in(write(tmp_path, a=text))
    assert (
        "dags.two.schedule.table: another pipeline writes 'shop/one' as 'shop.one', "
        "and the table's events have that name; use the same name here"
    ) in problem


def test_a_pipeline_with_the_id_of_another_one_s_maintenance_is_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pipeline("one", "shop.a", more="    maintenance: true\n"),
        b=pipeline("one.maintenance", "shop.b"),
    )
    [problem] = problems_in(tmp_path)
    assert problem.startswith(
        "b.opal.yaml:3:3: dags.one.maintenance: "
        "the DAG 'one.maintenance' is already made in a.opal.yaml:3"
    )


def test_one_id_in_two_files_is_found(tmp_path: Path) -> None:
    [problem] = problems_in(
        write(tmp_path, a=pipeline("one", "shop.a"), b=pipeline("one", "shop.b"))
    )
    assert problem.startswith(
        "b.opal.yaml:3:3: dags.one: the DAG 'one' is already made in a.opal.yaml:3"
    )


def test_a_file_with_an_ending_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.opal.yml").write_text(GOOD)
    report = lint(tmp_path)
    assert [problem.kind for problem in report.problems] == ["warning"]
    assert "rename it to end in '.opal.yaml'" in str(report.problems[0])


PLAIN = """
from datetime import datetime
from airflow.sdk import DAG, PartitionedAssetTimetable
from airflow_provider_opal import opal_asset, opal_dag

with DAG("never", schedule=[opal_asset("shop.orders")], start_date=datetime(2026, 11, 1)):
    pass
keyed = PartitionedAssetTimetable(assets=opal_asset("shop.orders"))
with DAG("woken", schedule=keyed, start_date=datetime(2026, 11, 1)):
    pass
versions = [opal_asset("shop.orders", versions=True)]
with DAG("by_version", schedule=versions, start_date=datetime(2026, 11, 1)):
    pass
"""


def test_a_plain_asset_schedule_in_python_that_keyed_events_never_wake_is_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "load_yaml.py").write_text(LOADER)
    [problem] = problems_in(write(tmp_path, good=GOOD))
    assert problem.startswith(
        "plain.py:6:10: never: a plain asset schedule is never triggered by events with "
        "partition keys, such as those of 'shop.orders'"
    )
    assert problem.endswith(
        "; write schedule=PartitionedAssetTimetable(assets=opal_asset('shop.orders'))"
    )


def test_python_dags_take_part_in_ids_and_tables(tmp_path: Path) -> None:
    same = "from datetime import datetime\nfrom airflow_provider_opal import Files, opal_dag\n"
    same += 'opal_dag("orders", table="shop.orders", schedule="@daily",\n'
    same += '    start_date=datetime(2026, 11, 1), source=Files(paths=("/x.json",)))\n'
    (tmp_path / "same.py").write_text(f"# airflow dag\n{same}")
    (tmp_path / "other.py").write_text(f"# airflow dag\n{same}".replace('"orders"', '"other"'))
    problems = problems_in(write(tmp_path, good=GOOD))
    text = "\n".join(problems)
    assert "good.opal.yaml:5:3: dags.orders: the DAG 'orders' is already made in same.py:4" in text
    assert (
        "other.py:4:10: other.table: table 'shop.orders' is written by "
        "'orders' (good.opal.yaml:5) too"
    ) in text


def test_a_python_file_that_cannot_be_loaded_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("# airflow dag\nraise RuntimeError('not here')\n")
    report = lint(write(tmp_path, good=GOOD))
    assert [problem.kind for problem in report.problems] == ["warning"]
    assert "Airflow cannot load the file (RuntimeError: not here)" in str(report.problems[0])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a lake that holds shop.orders."""
    root = tmp_path / "lake"
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(root)})
    )
    layout = TableLayout(keys=["order_id"], delta="updated_at")
    create_on(open_storage(str(root / "shop" / "orders")), plan_spec(COLUMNS, layout))
    return root


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    """Return a folder next to the lake."""
    folder = tmp_path / "dags"
    folder.mkdir()
    return folder


def test_a_file_that_agrees_with_the_lake_has_no_findings(lake: Path, dags: Path) -> None:
    schema = "      schema: order_id BIGINT, updated_at TIMESTAMP, day STRING\n      delta:"
    write(dags, good=GOOD.replace("      delta:", schema), new=GOOD.replace("orders", "new"))
    assert problems_in(dags, lake=True) == []


def test_the_guide_s_pipeline_that_follows_a_schema_has_no_findings(tmp_path: Path) -> None:
    [example] = examples("docs/how-to/columns.md", "yaml")
    write(tmp_path, orders=example.text)
    assert problems_in(tmp_path) == []


def test_a_schema_that_the_table_can_follow_has_no_findings(lake: Path, dags: Path) -> None:
    schema = (
        "      evolve: {renamed: {region: day}}\n"
        "      schema: order_id BIGINT, updated_at TIMESTAMP, region STRING, n INT\n      delta:"
    )
    good = GOOD.replace("      delta:", schema)
    write(dags, good=good)
    assert problems_in(dags, lake=True) == []
    write(dags, good=good.replace("region: day", "region: dya"))
    [problem] = problems_in(dags, lake=True)
    assert "table.schema: the table has neither 'region' nor its former name 'dya'" in problem


@pytest.mark.parametrize(
    "old, new, finding",
    [
        (
            "[order_id]",
            "[order_id, day]",
            (
                "10:13: dags.orders.table.keys: the table's keys is ['order_id'], "
                "not ['order_id', 'day']; write it as"
            ),
        ),
        (
            "[order_id]",
            "[orderid]",
            (
                "10:13: dags.orders.table.keys: the table has no column 'orderid'; "
                "did you mean 'order_id'?"
            ),
        ),
        (
            "delta: updated_at",
            "delta: day",
            (
                "9:7: dags.orders.table: such a table is not possible: "
                "delta column 'day' has type STRING"
            ),
        ),
        (
            "delta: updated_at",
            "delta: at",
            "11:14: dags.orders.table.delta: the table has no column 'at'",
        ),
        (
            "    source:",
            "    maintenance: {zorder: [day, dya]}\n    source:",
            (
                "12:27: dags.orders.maintenance.zorder: the table has no column 'dya'; "
                "did you mean 'day'?"
            ),
        ),
        (
            "delta: updated_at",
            "delta: updated_at\n      partition_by: [day]",
            "12:21: dags.orders.table.partition_by: the table's partition_by is []",
        ),
        (
            "delta: updated_at",
            "delta: updated_at\n      file_format: orc",
            "12:20: dags.orders.table.file_format: the table's file_format is 'parquet'",
        ),
        (
            "delta: updated_at",
            "delta: updated_at\n      deletes: op = 'D'",
            "12:16: dags.orders.table.deletes: the table's deletes is None",
        ),
        (
            "delta: updated_at",
            "delta: updated_at\n      schema: order_id BIGINT, updated_at TIMESTAMP",
            (
                "12:15: dags.orders.table.schema: the table has a column 'day', "
                "and the schema does not"
            ),
        ),
    ],
)
def test_a_difference_between_a_file_and_the_lake_is_found(
    old: str, new: str, finding: str, lake: Path, dags: Path
) -> None:
    [problem] = problems_in(write(dags, t=GOOD.replace(old, new, 1)), lake=True)
    assert problem.startswith(f"t.opal.yaml:{finding}")


def test_a_table_that_neither_exists_nor_is_created_is_found(lake: Path, dags: Path) -> None:
    [problem] = problems_in(write(dags, a=pipeline("one", "shop.none")), lake=True)
    assert (
        "dags.one.table: the table 'shop.none' does not exist, "
        "and cannot be created without 'keys' and 'delta'"
    ) in problem


def test_a_pipeline_that_only_names_its_table_is_compared_too(lake: Path, dags: Path) -> None:
    write(dags, a=pipeline("one", "shop.orders", more="    maintenance: {zorder: [customer]}\n"))
    [problem] = problems_in(dags, lake=True)
    assert problem.startswith(
        "a.opal.yaml:8:27: dags.one.maintenance.zorder: "
        "the table has no column 'customer'; use one of"
    )


def test_two_connections_to_one_lake_are_recognised(
    lake: Path, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TWIN", json.dumps({"conn_type": "opal", "host": str(lake)}))
    write(dags, a=GOOD, b=GOOD.replace("  orders:", "  twin:\n    opal_conn_id: twin"))
    assert problems_in(dags) == []
    [problem] = problems_in(dags, lake=True)
    assert (
        "dags.twin.table: table 'shop.orders' is written by 'orders' (a.opal.yaml:5) too" in problem
    )


def test_an_unreachable_lake_is_named_and_the_exit_code_allows_a_retry(
    dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"endpoint_url": "http://127.0.0.1:9", "region_name": "x"}
    conn = {
        "conn_type": "opal",
        "host": "s3://nowhere/lake",
        "login": "a",
        "password": "b",
        "extra": store,
    }
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(conn))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    write(dags, good=GOOD)
    [problem] = problems_in(dags, lake=True)
    assert "dags.orders.table: the lake cannot be reached" in problem
    assert main(["dag", "lint", str(dags), "--lake"]) == RETRY


def test_a_root_that_does_not_exist_is_named(
    tmp_path: Path, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "opal", "host": str(tmp_path / "lakee")}
    monkeypatch.setenv("AIRFLOW_CONN_OPAL_DEFAULT", json.dumps(connection))
    write(dags, good=GOOD)
    [problem] = problems_in(dags, lake=True)
    assert "dags.orders.table: the lake cannot be reached" in problem
    assert f"the lake's root {tmp_path / 'lakee'} does not exist" in problem


def test_a_missing_connection_is_found_at_its_name(dags: Path) -> None:
    [problem] = problems_in(
        write(dags, t=GOOD.replace("    table:", "    opal_conn_id: nobody\n    table:")), lake=True
    )
    assert problem.startswith(
        "t.opal.yaml:8:19: dags.orders.opal_conn_id: the connection 'nobody' is not known here"
    )


def test_a_long_path_is_never_cut(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    write(folder, bad=GOOD.replace("@daily", "@dayly"))
    assert "long/bad.opal.yaml:6:15: " in str(lint(folder).problems[0])


def test_lint_prints_findings_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, good=GOOD)
    assert main(["dag", "lint", str(tmp_path)]) == OK
    assert capsys.readouterr().out == "1 file, 1 sound pipeline, nothing is wrong\n"
    write(tmp_path, bad=GOOD.replace("orders", "bad").replace("@daily", "@dayly"))
    assert main(["dag", "lint", str(tmp_path)]) == FINDINGS
    assert (
        "bad.opal.yaml:6:15: dags.bad.schedule: unknown schedule '@dayly'; did you mean '@daily'?\n"
        in capsys.readouterr().out
    )
    assert main(["dag", "lint", str(tmp_path), "--json"]) == FINDINGS
    report = json.loads(capsys.readouterr().out)
    assert (report["files"], report["pipelines"], len(report["problems"])) == (2, 1, 1)
    assert report["problems"][0] | {"file": "", "message": ""} == {
        "file": "",
        "message": "",
        "line": 6,
        "column": 15,
        "at": "dags.bad.schedule",
        "kind": "error",
    }


def test_json_stays_json_when_python_files_print_and_fail(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud.py").write_text(
        "# airflow dag\nprint('hello')\nraise RuntimeError('not here')\n"
    )
    assert main(["dag", "lint", str(write(tmp_path, good=GOOD)), "--json"]) == OK
    assert json.loads(capfd.readouterr().out)["pipelines"] == 1


def test_a_missing_path_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dag", "lint", str(tmp_path / "none")]) == INPUT
    assert "does not exist; name a folder of *.opal.yaml files" in capsys.readouterr().err


def test_render_shows_dags_tasks_schedules_and_assets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, all=ALL_KEYS)
    assert main(["dag", "render", str(tmp_path)]) == OK
    page = capsys.readouterr().out
    assert (
        "  schedule  30 2 * * * (Europe/Berlin), partition key %Y%m%d of the interval that ended\n"
        in page
    )
    assert "  schedule  when opal://lake/shop.all changes for each partition key\n" in page
    assert "  schedule  by hand\n" in page
    assert "  task      ingest (IngestOperator shop.all) -> metagen\n" in page
    assert "            wakes opal://lake/shop.all\n" in page
    assert main(["dag", "render", str(tmp_path / "all.opal.yaml"), "--json"]) == OK
    report = json.loads(capsys.readouterr().out)
    assert [dag["dag_id"] for dag in report["dags"]] == [
        "all",
        "all.maintenance",
        "all.own",
        "all.reconcile",
        "after",
        "by_hand",
    ]
    assert report["dags"][1]["schedule"] == "0 4 * * * (Europe/Berlin)"
    tasks = [
        (task["task_id"], task["operator"], task["wakes"]) for task in report["dags"][1]["tasks"]
    ]
    assert tasks == [
        ("maintain", "MaintenanceOperator", []),
        ("list_old_files", "RetentionOperator", []),
        ("approve", "RetentionApproval", []),
        ("retain", "RetentionOperator", []),
    ]
    assert report["dags"][4]["woken_by"] == ["opal://lake/shop.all"]


def test_render_shows_sound_pipelines_and_reports_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, good=GOOD, bad="version: 2")
    assert main(["dag", "render", str(tmp_path)]) == FINDINGS
    output = capsys.readouterr()
    assert output.out.startswith("orders ")
    assert "bad.opal.yaml:1:10: version" in output.err


def test_schema_prints_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dag", "schema"]) == OK
    assert capsys.readouterr().out == schema_text()


def test_new_writes_a_file_without_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dag", "new", "orders", "--folder", str(tmp_path)]) == OK
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "load_yaml.py",
        "opal-v1.schema.json",
        "orders.opal.yaml",
    ]
    assert capsys.readouterr().out.count("\n") == 3
    assert main(["dag", "lint", str(tmp_path)]) == OK


def test_new_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, orders="mine version:")
    assert main(["dag", "new", "orders", "--folder", str(tmp_path)]) == INPUT
    assert "exists already and stays as it is; choose another name" in capsys.readouterr().err
    (tmp_path / "all_yaml.py").write_text(LOADER)
    assert main(["dag", "new", "others", "--folder", str(tmp_path)]) == OK
    assert not (tmp_path / "load_yaml.py").exists()
    assert (tmp_path / "orders.opal.yaml").read_text() == "mine version:"


@pytest.mark.parametrize("name", ["../orders", "a/b", "", "a b", "..", "-x"])
def test_new_refuses_names_that_are_paths(name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert main(["dag", "new", "--folder", str(inner), "--", name]) == INPUT
    assert list(tmp_path.rglob("*.yaml")) == []


def test_dag_alone_shows_its_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dag"]) == OK
    page = capsys.readouterr().out
    assert all(action in page for action in ("lint", "render", "schema", "new"))


def test_the_project_s_own_dags_have_no_findings() -> None:
    assert lint(ROOT / "dags").problems == []


def test_a_folder_without_pipelines_and_an_ignored_file_are_errors(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotFoundError, match=r"no \*.opal.yaml files below"):
        lint(tmp_path)
    (tmp_path / "shop.yaml").write_text(GOOD)
    with pytest.raises(InvalidInputError, match=r"rename it to end in \.opal\.yaml"):
        lint(tmp_path / "shop.yaml")


def test_a_delete_condition_that_no_ingest_would_take_is_found(tmp_path: Path) -> None:
    def table(deletes: str) -> str:
        return f'{{name: shop.one, keys: [order_id], delta: updated_at, deletes: "{deletes}"}}'

    templated = table("op = 'D' AND user = 'x' AND {{ params.more }}")
    assert not problems_in(write(tmp_path, one=pipeline("one", templated)))
    [problem] = problems_in(write(tmp_path, one=pipeline("one", table("rand() > 0.5"))))
    assert "dags.one.table.deletes" in problem
    assert "conditions do not have the function rand()" in problem
