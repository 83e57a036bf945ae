"""Scripts of several statements: in Python, at the shell and in a notebook."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from opal_lake.cli import main
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.exit_codes import INPUT, OK
from opal_lake.operations.verb import operations_of
from opal_lake.table import Table
from opal_spark.spark_sql.catalog import SETTING
from opal_spark.spark_sql.script import Step, run_script
from opal_spark.table import OpalTable
from tests.fixtures_cli import metadata, opal_commands
from tests.opal_spark.spark_sql.lake import Lake, lake

__all__ = ["lake", "metadata", "opal_commands"]
pytestmark = pytest.mark.spark

SCRIPT = """
-- a comment; with a semicolon
CREATE TABLE lake.t (id INT PRIMARY KEY, name STRING) USING opal;
ALTER TABLE lake.t ADD COLUMN `a;b` INT; SELECT 'x;y' AS text;
DESCRIBE lake.t;
"""


def results(spark: Any, text: str, args: Any = None, token: str | None = None) -> list[Any]:
    return [rows_of(step) for step in run_script(spark, text, args, token)]


def rows_of(step: Step) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in step.rows.collect()]


def test_statements_run_in_order(lake: Lake) -> None:
    created, altered, selected, described = results(lake.spark, SCRIPT)
    assert (created[0][0], altered[0][2], selected) == ("create", 1, [("x;y",)])
    assert [name for name, *_ in described] == ["id", "name", "a;b"]


def test_repeat_with_a_token_goes_on_where_it_stopped(lake: Lake) -> None:
    broken = SCRIPT + "ALTER TABLE lake.t DROP COLUMN no; ALTER TABLE lake.t ADD COLUMN c INT"
    with pytest.raises(InvalidInputError) as caught:
        results(lake.spark, broken, token="run")
    [note] = caught.value.__notes__
    assert note.startswith("It is statement 5 of 6, at line 6: ALTER TABLE lake.t DROP COLUMN no")
    assert note.endswith("The 4 before it ran, and what they changed stays.")
    version = lake.table("t").describe()["version"]
    repaired = broken.replace("no;", "name;")
    results(lake.spark, repaired, token="run")
    assert lake.table("t").describe()["version"] == version + 2
    results(lake.spark, repaired, token="run")
    assert lake.table("t").describe()["version"] == version + 2


@pytest.mark.parametrize(
    "second, message",
    [
        ("SELEC 1", "line 2, column 1: Spark's parser: Syntax error at or near 'SELEC'"),
        ("SELECT *\nFORM t", "line 3, column 6: Spark's parser: Syntax error at or near 't'"),
        ("SELECT a b c FROM lake.t CHANGES FROM VERSION 0", "line 2, column 12: "),
        ("SELECT a FROM lake.t\nVERSION AS OF 1 WHERE a b", "line 3, column 25: "),
        ("UPDATE lake.t SET name = 1 2", "line 2, column 28: Spark's parser: "),
        ("DELETE FROM lake.t WHERE id b = 1", "line 2, column 29: "),
        ("INSERT INTO lake.t SELECT 1 2", "line 2, column 29: "),
        ("CREATE TABLE lake.u USING opal AS SELECT 1 2", "line 2, column 44: "),
        (
            "MERGE INTO lake.t USING lake.t s ON t.id s.id WHEN MATCHED THEN DELETE",
            "line 2, column 43: ",
        ),
        ("MERGE INTO lake.t USING (SELECT 1 2) s ON true WHEN MATCHED THEN DELETE", "column 35"),
        ("OPTIMIZE lake.t", r"write CALL lake.system.compact\('t'\)"),
        ("CREATE VIEW v AS SELECT * FROM lake.t", "for a view"),
        ("SELECT * FROM pond.shop.t", "no catalog 'pond'"),
    ],
)
def test_nothing_runs_if_a_later_statement_cannot_be_read(
    lake: Lake, second: str, message: str
) -> None:
    lake.sql("CREATE TABLE lake.t (id INT PRIMARY KEY, name STRING) USING opal")
    with pytest.raises(InvalidInputError, match=message) as caught:
        results(lake.spark, f"INSERT INTO lake.t VALUES (1, 'a');\n{second}")
    [note] = caught.value.__notes__
    assert note == (
        f"It is statement 2 of 2, at line 2: {second.splitlines()[0]}\n"
        "All statements are read first, so that none has run."
    )
    assert lake.table("t").describe()["version"] == 0


def test_later_statements_are_read_without_their_values_and_tables(lake: Lake) -> None:
    script = """
        CREATE TABLE lake.t (id INT PRIMARY KEY) USING opal;
        INSERT INTO lake.t SELECT CAST(:id AS INT);
        SELECT id FROM IDENTIFIER(:table) LIMIT 5;
        CREATE OR REPLACE TEMP VIEW few AS SELECT 1 AS one;
        SELECT one FROM few;
        SET spark.opal.unused = a b;
        MERGE INTO lake.t USING (SELECT 7 AS id) s ON t.id = s.id
        WHEN NOT MATCHED THEN INSERT * WHEN MATCHED THEN DELETE;
        SELECT _change_type FROM lake.t CHANGES FROM VERSION 2;
    """
    *_, changes = results(lake.spark, script, {"id": "3", "table": "lake.t"})
    assert changes == [("insert",)]


STAGED = """
CREATE TABLE lake.t (id INT PRIMARY KEY) USING opal;
CREATE TABLE lake.new (id INT PRIMARY KEY) USING opal;
INSERT INTO lake.new SELECT 1;
INSERT INTO lake.t SELECT id FROM lake.new;
DROP TABLE lake.new;
ALTER TABLE lake.t DROP COLUMN IF EXISTS no;
CALL lake.system.savepoint('t', 'loaded');
INSERT INTO lake.t SELECT count(*) + 10 FROM lake.t;
"""


def test_a_repeat_runs_no_statement_again_whose_table_was_dropped(lake: Lake) -> None:
    results(lake.spark, STAGED, token="run")
    repeat = results(lake.spark, STAGED, token="run")
    assert lake.sql("SELECT id FROM lake.t ORDER BY id") == [(1,), (11,)]
    with pytest.raises(NotFoundError):
        lake.table("new")
    operations = [step[0][0] for step in repeat[1:3]] + [repeat[4][0][0]]
    assert operations == ["create", "insert", "drop"]


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO plain SELECT 1",
        "INSERT INTO IDENTIFIER('pl' || :name) VALUES (7)",
        "CALL other.system.compact('t')",
    ],
)
def test_change_of_a_table_of_spark_is_refused_before_the_first_statement(
    lake: Lake, change: str
) -> None:
    script = f"CREATE TABLE lake.t (id INT PRIMARY KEY) USING opal;\n{change}"
    with pytest.raises(InvalidInputError, match="statement 2, at line 2, changes a table of Spark"):
        results(lake.spark, script, {"name": "ain"}, token="run")
    with pytest.raises(NotFoundError):
        lake.table("t")


def test_name_of_a_table_may_be_computed_in_a_script_with_a_token(lake: Lake) -> None:
    script = """
        DECLARE OR REPLACE VARIABLE place STRING;
        CREATE TABLE IF NOT EXISTS lake.t (id INT PRIMARY KEY) USING opal;
        SET VAR place = 'lake.t';
        INSERT INTO IDENTIFIER(place) SELECT count(*) FROM lake.t
    """
    for _ in range(2):
        results(lake.spark, script, token="run")
    assert lake.sql("SELECT id FROM lake.t") == [(0,)]


def test_a_token_is_looked_up_by_the_operations_of_every_engine() -> None:
    assert verbs_with_token(Table) == verbs_with_token(OpalTable)


def verbs_with_token(kind: type[Any]) -> set[str]:
    return {name for name, operation in operations_of(kind).items() if operation.token_argument}


def test_nothing_runs_if_a_statement_cannot_be_read(lake: Lake) -> None:
    with pytest.raises(InvalidInputError, match="line 7"):
        results(lake.spark, SCRIPT + "\nALTER TABLE lake.t ADD COLUMN")
    with pytest.raises(InvalidInputError, match="no statement"):
        results(lake.spark, " ; -- nothing")
    with pytest.raises(NotFoundError):
        lake.table("t")


@pytest.fixture
def shell(spark: Any, opal_commands: None, tmp_path: Path) -> Any:
    """Run `opal sql` with a catalog; return its exit code and what it printed."""

    def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
        spark.conf.unset(SETTING + "lake")
        code = main(["sql", *words, "--catalog", f"lake={tmp_path / 'lake'}"])
        spark.conf.unset(SETTING + "lake")
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_shell_prints_tables_json_and_csv(
    shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "make.sql"
    file.write_text(SCRIPT)
    code, out, _ = shell(capsys, "-f", str(file), "--token", "a")
    assert code == OK
    assert "col_name" in out
    assert "x;y" in out
    assert shell(capsys, "-f", str(file), "--token", "a")[0] == OK
    assert Table.open(str(tmp_path / "lake" / "t")).describe()["version"] == 1
    query = "SELECT :n AS a, CAST(NULL AS INT) AS b, array(1) AS c; SELECT id FROM range(3)"
    code, out, _ = shell(capsys, query, "--arg", "n=x,y", "--format", "csv")
    assert (code, out) == (OK, 'a,b,c\n"x,y",,[1]\n\nid\n0\n1\n2\n')
    code, out, err = shell(capsys, query, "--arg", "n=x", "--json", "--limit", "2")
    first, second = map(json.loads, out.splitlines())
    assert (first, second) == ([{"a": "x", "b": None, "c": [1]}], [{"id": 0}, {"id": 1}])
    assert "more than 2 rows" in err
    code, out, _ = shell(capsys, "SELECT id FROM range(3)", "--limit", "2")
    assert out.endswith("2 rows; there are more rows, a higher --limit shows them\n")


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "give TEXT, or --file FILE"),
        (["SELECT 1", "-f", "x"], "give TEXT, or --file FILE"),
        (["-f", "/none.sql"], "cannot be read"),
        (["SELECT 1", "--json", "--format", "csv"], "exclude each other"),
        (["SELECT 1", "--arg", "x"], "--arg 'x' has no value"),
        (["SELECT 'a"], "the string that begins here has no end"),
        (["SELECT * FROM lake.none"], "lake.none"),
        (["SELECT no"], "no"),
        (["SELEC 1"], "SELEC"),
        (["SELECT 1; DESCRIBE lake.none"], "It is statement 2 of 2"),
        (["UPDATE lake.t SET a"], "line 1"),
    ],
)
def test_shell_names_the_fault(
    shell: Any, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = shell(capsys, *words)
    assert code == INPUT
    assert message in err


def test_shell_reads_standard_input(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS a"))
    assert shell(capsys, "--file", "-", "--json")[1] == '[{"a": 7}]\n'


def test_notebook_runs_cells(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    from IPython.testing.globalipapp import start_ipython

    shell: Any = start_ipython()
    shell.run_line_magic("load_ext", "opal_spark")
    shell.run_cell_magic("opal", "", SCRIPT)
    shell.user_ns["least"] = 1
    shell.run_cell_magic(
        "opal",
        "-o rows --arg least --arg 'most=least + 1' --limit 1",
        "SELECT '<b>' AS a; SELECT * FROM range(5) WHERE id >= :least AND id <= :most",
    )
    assert sorted(row.id for row in shell.user_ns["rows"].collect()) == [1, 2]
    assert shell.run_line_magic("opal", "SELECT 3 AS a").collect() == [(3,)]
    for _ in range(2):
        shell.run_cell_magic("opal", "--token day", "INSERT INTO lake.t (id) VALUES (1)")
    assert lake.table("t").history()[0]["token"] == "day"
    assert [commit["operation"] for commit in lake.table("t").history()].count("ingest") == 1
    with pytest.raises(InvalidInputError, match="--limit N"):
        shell.run_cell_magic("opal", "--no", "SELECT 1")
