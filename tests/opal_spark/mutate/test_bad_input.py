"""Bad input fails with file, line and reason before anything is replaced, or is put aside."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_spark.mutate import mutate
from tests.opal_spark.mutate.folders import cells, put, run

MASTER = "id,name,at\n1,a,5\n2,b,5\n"
GOOD = "id,name,at\n1,x,6\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "master" / "a.csv", MASTER)
    return tmp_path


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "name, text, said",
    [
        ("few.csv", f"{GOOD}2,y\n", r"few\.csv, line 3: the row has more or fewer fields.*: 2,y"),
        ("many.csv", f"{GOOD}\n2,y,7,z\n", r"many\.csv, line 4: the row has more or fewer"),
        (
            "order.csv",
            f"{GOOD}2,y,7x\n3,y,8\n",
            r"order\.csv, line 3: field 'at', the order, is not a valid number.*: 2,y,7x",
        ),
        ("time.csv", f"{GOOD}2,y,2026-01-01\n", r"time\.csv, line 3: .*order_type='timestamp'"),
        (
            "none.csv",
            f"{GOOD}2,y,\n",
            r"none\.csv, line 3: field 'at', the order, is missing: 2,y,\. .*--quarantine",
        ),
        ("id.csv", f"{GOOD},y,7\n", r"id\.csv, line 3: the id 'id' is missing"),
        (
            "quote.csv",
            f'{GOOD}2,"y,z,7\n',
            r"quote\.csv, line 3: the quote of its last field is not closed",
        ),
        ("twice.csv", f"{GOOD}{GOOD}", r"twice\.csv, line 3: the file's header occurs 2 times"),
        ("empty.csv", "", r"empty\.csv is empty"),
        (
            "names.csv",
            "id,nam,at\n1,x,6\n",
            (
                r"names\.csv, line 1: unknown field 'nam' \(did you mean 'name'\?\); "
                r"field 'name' is "
                r"missing"
            ),
        ),
        ("bare.csv", "1,x,6\n", r"bare\.csv, line 1: .*--no-header"),
        (
            "same.csv",
            f"{GOOD}2,y\n3,c,7\n2,y\n",
            r"same\.csv, line 3: .*: 2,y; \S+same\.csv, line 5: .*: 2,y",
        ),
        ("del.csv", "1\n2\n", r"del\.csv, line 1: unknown field '1'"),
    ],
)
def test_a_bad_file_fails_and_changes_nothing(
    spark: SparkSession, folder: Path, name: str, text: str, said: str
) -> None:
    put(folder / "incr" / "good.csv", GOOD)
    put(folder / "incr" / name, text)
    with pytest.raises(InvalidInputError, match=said):
        run(spark, folder, ids=["id"], order="at", delete_prefix="del")
    assert (folder / "master" / "a.csv").read_text() == MASTER
    assert (folder / "incr" / name).read_text() == text


@pytest.mark.slow
def test_the_error_of_an_invalid_time_lists_the_known_forms(
    spark: SparkSession, folder: Path
) -> None:
    forms = (
        "such as 2024-01-31 or 2024-01-31T10:00:00, with up to 6 digits after the second and an "
        "optional offset"
    )
    put(folder / "incr" / "a.csv", "id,name,at\n2,y,31.01.2024\n")
    with pytest.raises(
        InvalidInputError,
        match=rf"a\.csv, line 2: field 'at', the order, is not a valid TIMESTAMP, {forms}: 2,y",
    ):
        run(spark, folder, ids=["id"], order="at", order_type="timestamp")
    with pytest.raises(
        InvalidInputError,
        match=rf"a\.csv, line 2: column 'at' is not a valid TIMESTAMP, {forms}: 2,y",
    ):
        run(spark, folder, ids=["id"], order="at", schema="id STRING, name STRING, at TIMESTAMP")
    times = (
        "2024-01-31",
        "2024-01-31T10:00:00",
        "2024-01-31T10:00:00.123456+01:00",
        "2024-01-31 10:00:00Z",
    )
    put(
        folder / "incr" / "a.csv",
        "id,name,at\n"
        + "".join(f"{number},y,{time}\n" for number, time in enumerate(times, start=3)),
    )
    put(folder / "master" / "a.csv", "id,name,at\n1,a,2024-01-01\n")
    assert run(spark, folder, ids=["id"], order="at", order_type="timestamp").counts[
        "inserts"
    ] == len(times)


def test_the_error_of_an_open_quote_does_not_advise_to_put_rows_aside(
    spark: SparkSession, folder: Path
) -> None:
    put(folder / "incr" / "a.csv", f'{GOOD}2,y\n3,"y,7\n')
    with pytest.raises(
        InvalidInputError,
        match=r"a\.csv, line 4: the quote of its last field is not closed.*Close the quotes",
    ) as caught:
        run(spark, folder, ids=["id"], order="at")
    assert "--quarantine" not in str(caught.value)


@pytest.mark.parametrize("options", [{"delimiter": ""}, {"increment_options": {"sep": ""}}])
def test_an_empty_delimiter_is_refused(
    spark: SparkSession, folder: Path, options: dict[str, object]
) -> None:
    put(folder / "incr" / "good.csv", GOOD)
    with pytest.raises(
        InvalidInputError,
        match=r"the delimiter of the CSV files \(option 'sep'\) is empty: give at least one",
    ):
        run(spark, folder, ids=["id"], order="at", **options)
    assert (folder / "master" / "a.csv").read_text() == MASTER


@pytest.mark.slow
def test_text_that_is_not_utf8_fails_or_is_read_by_its_encoding(
    spark: SparkSession, folder: Path
) -> None:
    put(folder / "incr" / "latin.csv", "id,name,at\n1,Müller,6\n", "latin-1")
    with pytest.raises(
        InvalidInputError, match=r"latin\.csv, line 2: the line is not UTF-8; give the encoding"
    ):
        run(spark, folder, ids=["id"], order="at")
    run(spark, folder, ids=["id"], order="at", increment_options={"encoding": "ISO-8859-1"})
    assert cells(folder, header=True) == [["1", "Müller", "6"], ["2", "b", "5"]]


@pytest.mark.slow
def test_a_header_where_none_belongs_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "master" / "a.csv", "1,a,5\n")
    put(tmp_path / "incr" / "del.csv", "id\n1\n")
    arguments = {
        "ids": ["id"],
        "schema": "id STRING, name STRING, at STRING",
        "header": False,
        "delete_prefix": "del",
    }
    with pytest.raises(InvalidInputError, match=r"del\.csv, line 1: 'id' is a header"):
        run(spark, tmp_path, **arguments)
    put(tmp_path / "incr" / "del.csv", "1\n")
    assert run(spark, tmp_path, **arguments).counts["deletes"] == 1


def test_bad_rows_may_be_put_aside(spark: SparkSession, folder: Path) -> None:
    put(folder / "incr" / "1.csv", f"{GOOD}2,y\n\n,z,7\n3,c,8\n2,y\n")
    put(folder / "incr" / "2.csv", f"{GOOD}2,y\n")
    result = run(spark, folder, ids=["id"], order="at", on_bad_rows="quarantine")
    assert cells(folder, header=True) == [["1", "x", "6"], ["2", "b", "5"], ["3", "c", "8"]]
    assert (result.counts["rejected"], result.counts["mutations"]) == (4, 3)
    lines = "".join(
        path.read_text()
        for path in (folder / "master.mutate" / "rejected" / "00000001").glob("*.json")
    ).splitlines()
    rows = [json.loads(line) for line in lines]
    expected = [("1.csv", 3, "2,y"), ("1.csv", 5, ",z,7"), ("1.csv", 7, "2,y"), ("2.csv", 3, "2,y")]
    assert [(Path(row["file"]).name, row["line"], row["row"]) for row in rows] == expected
    assert "rejected" in result.notes[0]


# In each, one field holds a line break and a text that looks like a row of its own
BROKEN_FIELDS = [
    'id,at,name\n1,6,"hello\n2,6,evil"\n',
    'id,at,name\n1,6,"hello ""you""\n2,6,evil\n3,6,x"\n',
    'id,at,name\n1,6,5" pipe\n1,6,"a ""b"", ""\n2,6,evil"\n',
]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("on_bad_rows", ["fail", "quarantine"])
@pytest.mark.parametrize("text", BROKEN_FIELDS)
def test_a_line_break_in_a_field_never_makes_a_row(
    spark: SparkSession, tmp_path: Path, text: str, on_bad_rows: str
) -> None:
    master = "id,at,name\n1,5,a\n2,5,b\n3,5,c\n"
    put(tmp_path / "master" / "a.csv", master)
    put(tmp_path / "incr" / "1.csv", text)
    with pytest.raises(
        InvalidInputError, match=r"1\.csv, line [23]: the quote of its last field is not closed"
    ):
        run(spark, tmp_path, ids=["id"], order="at", on_bad_rows=on_bad_rows)
    assert (tmp_path / "master" / "a.csv").read_text() == master
    broken = {"increment_options": {"multiLine": "true"}, "options": {"multiLine": "true"}}
    assert run(spark, tmp_path, ids=["id"], order="at", **broken).counts["updates"] == 1
    assert [row[:2] for row in cells(tmp_path, header=True)][1:] == [["2", "5"], ["3", "5"]]


def test_a_line_break_in_the_master_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    master = 'id,at,name\n1,5,"hello\n2,5,evil"\n3,5,c\n'
    put(tmp_path / "master" / "a.csv", master)
    put(tmp_path / "incr" / "1.csv", "id,at,name\n3,6,C\n")
    with pytest.raises(
        InvalidInputError,
        match=(
            r"a\.csv, line 2: the line has a quote that is not closed; .* "
            r'multiLine=true.*: 1,5,"hello'
        ),
    ):
        run(spark, tmp_path, ids=["id"], order="at")
    assert (tmp_path / "master" / "a.csv").read_text() == master


@pytest.mark.slow
def test_quotes_that_are_closed_or_inside_a_field_are_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = ['"a, ""b"""', '5" pipe', '""', '"x" y', '"a"",""b"', "'", '"ends"""']
    rows = "".join(f"{number},{name},5\n" for number, name in enumerate(names))
    put(tmp_path / "master" / "a.csv", f"id,name,at\n{rows}")
    put(tmp_path / "incr" / "1.csv", f"id,name,at\n{rows.replace(',5', ',6')}9,new,6\n")
    result = run(spark, tmp_path, ids=["id"], order="at")
    assert (result.counts["updates"], result.counts["inserts"]) == (7, 1)


def test_an_empty_file_may_be_accepted(spark: SparkSession, folder: Path) -> None:
    put(folder / "incr" / "1.csv", "")
    result = run(spark, folder, ids=["id"], order="at", on_empty="accept")
    assert (result.version, result.counts) == (1, {"files": 1})


def test_a_master_that_does_not_fit_its_header_is_not_replaced(
    spark: SparkSession, folder: Path
) -> None:
    put(folder / "master" / "b.csv", "id,name,at\n7,z\n")
    put(folder / "incr" / "1.csv", GOOD)
    with pytest.raises(
        InvalidInputError,
        match=r"b\.csv, line 2: the master has a row that does not fit its fields: 7,z",
    ):
        run(spark, folder, ids=["id"], order="at")
    assert (folder / "incr" / "1.csv").exists()


@pytest.mark.parametrize("dry_run", [False, True])
def test_fields_that_differ_in_capitals_alone_are_refused(
    spark: SparkSession, tmp_path: Path, dry_run: bool
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v,ID\n1,a,2\n")
    put(tmp_path / "incr" / "1.csv", "id,v\n1,b\n")
    with pytest.raises(
        InvalidInputError,
        match=r"'id' and 'ID' are the same field to Spark .*: rename one.*master/a\.csv, line 1",
    ):
        run(spark, tmp_path, ids=["id"], dry_run=dry_run)
    put_table(tmp_path / "columns" / "a.parquet", {"id": [1], "ID": [2]})
    put_table(tmp_path / "good" / "a.parquet", {"id": [1]})
    for master, increments in (("columns", "good"), ("good", "columns")):
        job = Mutate(increments=[str(tmp_path / increments)], ids=["id"], dry_run=dry_run)
        with pytest.raises(
            InvalidInputError, match=r"/columns.* have the field 'id' twice .*: rename one of them"
        ):
            mutate(spark, str(tmp_path / master), job)


def put_table(path: Path, columns: dict[str, list[int]]) -> None:
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path)


def test_a_key_that_json_has_twice_is_reported_with_its_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.json", '{"id": "1", "v": "a"}\n{"id": "2", "v": "a", "V": "b"}\n')
    put(tmp_path / "incr" / "1.json", '{"id": "1", "v": "b"}\n{"id": "3", "v": "a", "v": "b"}\n')
    with pytest.raises(
        InvalidInputError,
        match=r"master/a\.json, line 2: a key occurs twice; correct the line.*Nothing was changed",
    ):
        run(spark, tmp_path, ids=["id"])
    put(tmp_path / "master" / "a.json", '{"id": "1", "v": "a"}\n')
    with pytest.raises(InvalidInputError, match=r"incr/1\.json, line 2: a key occurs twice"):
        run(spark, tmp_path, ids=["id"])


@pytest.mark.slow
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_refuses_what_a_run_refuses(
    spark: SparkSession, tmp_path: Path, dry_run: bool
) -> None:
    put(tmp_path / "master" / "a.csv", "id,name,n\n1,Ü €,1.239\n2,b,1\n")
    put(tmp_path / "incr" / "1.csv", "id,name,n\n2,c,2\n")
    narrow = {"output_options": {"encoding": "ISO-8859-1"}}
    with pytest.raises(
        InvalidInputError,
        match=r"letters that would be lost: field 'name' holds '€'.*Nothing was changed",
    ):
        run(spark, tmp_path, ids=["id"], dry_run=dry_run, **narrow)
    rounding = {"schema": "id INT, name STRING, n DECIMAL(9,2)", "output_format": "orc"}
    with pytest.raises(
        InvalidInputError,
        match=r"would be rounded: column 'n' is not a valid DECIMAL\(9,2\): 1\.239",
    ):
        run(spark, tmp_path, ids=["id"], dry_run=dry_run, **rounding)
