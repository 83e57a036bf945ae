"""Files as programs write them: other encodings, line ends and orders, compressed, cut off."""

import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.mutate import read_master
from tests.opal_spark.mutate.folders import cells, put, run

MASTER = "id,name,at\n1,a,5\n2,b,5\n"
GOOD = "id,name,at\n1,x,6\n"
BOM = "\ufeff"
UTF_16 = {"encoding": "UTF-16", "multiLine": "true"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "master" / "a.csv", MASTER)
    return tmp_path


def put_bytes(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_byte_order_marks_line_ends_column_orders_and_file_names_do_not_matter(
    spark: SparkSession, folder: Path
) -> None:
    put(folder / "master" / "b.csv", f"{BOM}AT,id,Name\r\n5,3,c\r\n5,4,d\r\n")
    put(folder / "incr" / "1 #é [1]{x}?%20.csv", f'{BOM}"id",name,at\r\n1,x,6\r\n2,"y \u2028",6')
    put(folder / "incr" / "2.csv", "at,id,name\r6,3,z\r")
    put_bytes(folder / "incr" / "3.csv.gz", gzip.compress(b"name,at,id\nnew,6,5\n"))
    put(folder / "incr" / "del.csv", f"{BOM}id\r\n4\r\n")
    counts = run(spark, folder, ids=["id"], order="at", delete_prefix="del").counts
    assert cells(folder, header=True) == [
        ["1", "x", "6"],
        ["2", "y \u2028", "6"],
        ["3", "z", "6"],
        ["5", "new", "6"],
    ]
    assert (counts["updates"], counts["inserts"], counts["deletes"]) == (3, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_fields_may_be_nested(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Maps too, which Spark does not compare."""
    schema = "id INT, at INT, s STRUCT<a: INT, b: ARRAY<STRING>>, m MAP<STRING, STRUCT<n: DOUBLE>>"
    old = [
        (1, 5, (1, ["x"]), {"k": (1.0,)}),
        (2, 5, (None, None), {"k": (None,)}),
        (3, 5, None, None),
        (4, 5, (1, []), {}),
    ]
    new = [
        (1, 6, (1, ["x"]), {"k": (2.0,)}),
        (2, 5, (None, None), {"k": (None,)}),
        (3, 5, None, {}),
        (4, 5, (1, []), {}),
        (5, 6, None, {}),
    ]
    for folder, rows in (("master", old), ("incr", new)):
        spark.createDataFrame(rows, schema).coalesce(1).write.format(kind).save(
            str(tmp_path / folder)
        )
    counts = run(spark, tmp_path, ids=["id"], order="at").counts
    assert (counts["updates"], counts["inserts"], counts["unchanged"], counts["conflicts"]) == (
        2,
        1,
        2,
        1,
    )
    read = []
    for row in read_master(spark, str(tmp_path / "master")).orderBy("id").collect():
        members = {name: tuple(value) for name, value in row.m.items()}
        read.append((row.id, row.at, row.s, members))
    assert read == new


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_fields_may_have_any_names(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A program could take some of them for its own columns."""
    names = [
        "row",
        "rank",
        "value",
        "file",
        "block",
        "header",
        "bad",
        "raw",
        "id_0",
        "ordered",
        "a.b",
        "with `ticks`",
    ]
    options = {"header": "true"} if kind == "csv" else {}
    schema = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in names)
    for folder, rows in (
        ("master", [["1", "5"], ["2", "5"]]),
        ("incr", [["1", "6"], ["3", "6"], ["2", "4"]]),
    ):
        texts = [f"{folder} {name}" for name in names[2:]]
        frame = spark.createDataFrame([[*row, *texts] for row in rows], schema)
        frame.write.format(kind).options(**options).save(str(tmp_path / folder))
    counts = run(spark, tmp_path, ids=["row"], order="rank").counts
    assert (counts["updates"], counts["inserts"], counts["late"]) == (1, 1, 1)
    rows = read_master(spark, str(tmp_path / "master")).select("row", "value", "`a.b`").collect()
    assert sorted(map(tuple, rows)) == [
        ("1", "incr value", "incr a.b"),
        ("2", "master value", "master a.b"),
        ("3", "incr value", "incr a.b"),
    ]


@pytest.mark.slow
def test_increments_may_be_in_many_folders(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(30):
        put(tmp_path / "incr" / f"day={number:02}" / "a.csv", f"id,v\n{number},x\n")
    put(tmp_path / "incr" / "day=__HIVE_DEFAULT_PARTITION__" / "a.csv", "v,id\nx,30\n")
    assert run(spark, tmp_path, ids=["id"], partition_by=["day"]).counts["inserts"] == 31
    rows = read_master(spark, str(tmp_path / "master")).collect()
    assert {(row.id, row.day) for row in rows} == {
        *((str(number), f"{number:02}") for number in range(30)),
        ("30", None),
    }


@pytest.mark.slow
def test_utf_16_is_read_and_written(spark: SparkSession, folder: Path) -> None:
    arguments = {"ids": ["id"], "order": "at"}
    put(folder / "incr" / "1.csv", f'{BOM}id,name,at\n1,"x\ny Ü",6\n', "utf-16-be")
    written = {"options": {"multiLine": "true"}, "output_options": {"encoding": "UTF-16"}}
    run(spark, folder, **arguments, **written, increment_options=UTF_16)
    put(folder / "incr" / "2.csv", "id,name,at\n2,z,6\n")
    plain = {"encoding": "UTF-8", "multiLine": "false"}
    run(spark, folder, **arguments, options=UTF_16, increment_options=plain)
    rows = read_master(spark, str(folder / "master"), options=UTF_16).collect()
    assert sorted((row.id, row.name) for row in rows) == [("1", "x\ny Ü"), ("2", "z")]


@pytest.mark.slow
def test_other_encodings_are_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "master" / "a.csv", "id,name\n1,Ü €\n2,b\n", "windows-1252")
    put(tmp_path / "incr" / "1.csv", "id,name\n2,Ö €\n", "windows-1252")
    run(spark, tmp_path, ids=["id"], options={"encoding": "windows-1252"})
    assert {path.read_text("windows-1252") for path in (tmp_path / "master").glob("*.csv")} == {
        "id,name\n1,Ü €\n",
        "id,name\n2,Ö €\n",
    }
    put(tmp_path / "incr" / "2.csv", "id,name\n3,中\n", "big5")
    output = {"output_options": {"encoding": "UTF-8"}, "increment_options": {"encoding": "big5"}}
    run(spark, tmp_path, ids=["id"], options={"encoding": "windows-1252"}, **output)
    assert cells(tmp_path, header=True) == [["1", "Ü €"], ["2", "Ö €"], ["3", "中"]]


def test_a_parquet_file_that_is_cut_off_is_named(spark: SparkSession, folder: Path) -> None:
    put(folder / "incr" / "1.parquet", GOOD)
    with pytest.raises(InvalidInputError, match=r"incr/1\.parquet is damaged, or cut off"):
        run(spark, folder, ids=["id"])


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "name, data, options, said",
    [
        (
            "1.csv",
            GOOD.encode("utf-16"),
            {},
            r"1\.csv has text of several bytes a letter, such as UTF-16.*'encoding': 'UTF-16'",
        ),
        (
            "1.csv",
            GOOD.encode("utf-16"),
            {"encoding": "UTF-16"},
            r"UTF-16 cannot be cut into lines by their bytes: add .* multiLine=true",
        ),
        ("1.csv", GOOD.encode(), {"encoding": "klingon"}, r"encoding 'klingon' is unknown"),
        (
            "1.csv",
            GOOD.encode() + b"2,\x81,7\n",
            {"encoding": "shift_jis"},
            r"1\.csv, line 3: the line is not shift_jis: 2,.,7",
        ),
        (
            "1.csv.gz",
            gzip.compress(GOOD.encode() * 2000, mtime=0)[:60],
            {},
            r"1\.csv\.gz is damaged, or cut off \(.*EOFException",
        ),
        ("1.csv.gz", GOOD.encode(), {}, r"/incr/1\.csv\.gz is not a gz file, or is damaged"),
        (
            "1.csv",
            gzip.compress(GOOD.encode(), mtime=0),
            {},
            r"/incr/1\.csv seems to be compressed by gzip.* for example to end in \.csv\.gz$",
        ),
        (
            "1.csv",
            b'id,name,at\n1,"x\ny",6\n',
            {"multiLine": "true"},
            r"1\.csv.*: field 'name' holds a line break, .* multiLine=true",
        ),
        (
            "1.json",
            b'{"id": "1", "name": "M\xfcller", "at": "6"}\n',
            {},
            r"1\.json, line 1: the line is not UTF-8",
        ),
        ("1.csv", GOOD.encode() + b'" ",y,7\n', {}, r"1\.csv, line 3: the id 'id' is missing"),
        (
            "1.csv",
            GOOD.replace(",", ";").encode(),
            {},
            r"1\.csv, line 1: unknown field 'id;name;at'",
        ),
    ],
)
def test_unreadable_files_are_named_and_change_nothing(
    spark: SparkSession, folder: Path, name: str, data: bytes, options: dict[str, str], said: str
) -> None:
    put_bytes(folder / "incr" / name, data)
    with pytest.raises(InvalidInputError, match=said):
        run(spark, folder, ids=["id"], order="at", increment_options=options)
    assert (folder / "master" / "a.csv").read_text() == MASTER
    assert (folder / "incr" / name).read_bytes() == data


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "name, data, said",
    [
        (
            "b.csv",
            "id,name,at\n3,Müller,5\n".encode("latin-1"),
            r"b\.csv, line 2: the line is not UTF-8, so the master may",
        ),
        (
            "b.csv",
            b"id,name,at,more\n3,c,5,q\n",
            r"b\.csv, line 1: unknown field 'more'\. The header is id,name,at,more",
        ),
        ("b.csv", b"at,id\n5,3\n", r"b\.csv, line 1: field 'name' is missing"),
        (
            "README.txt",
            b"of the products\n",
            r"field 'id', which records do not have; .*README\.txt, line 1",
        ),
    ],
)
def test_a_master_that_a_run_would_spoil_is_left_alone(
    spark: SparkSession, folder: Path, name: str, data: bytes, said: str
) -> None:
    """A run would write its rows with other letters, or in other columns."""
    put_bytes(folder / "master" / name, data)
    put(folder / "incr" / "1.csv", GOOD)
    with pytest.raises(InvalidInputError, match=said):
        run(spark, folder, ids=["id"], order="at")
    assert (folder / "master" / name).read_bytes() == data
    assert (folder / "incr" / "1.csv").exists()


def test_json_of_a_master_that_is_not_utf_8_is_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(
        tmp_path / "master" / "a.json",
        '{"id": "1", "name": "a"}\n{"id": "2", "name": "Müller"}\n',
        "latin-1",
    )
    put(tmp_path / "incr" / "1.json", '{"id": "2", "name": "b"}\n')
    with pytest.raises(
        InvalidInputError, match=r"a\.json, line 2: the line is not UTF-8, so the master may"
    ):
        run(spark, tmp_path, ids=["id"])


@pytest.mark.parametrize("name, text", [("1.csv", "ID,Name,at\n1,x,6\n"), ("del.csv", "Id\n1\n")])
def test_a_file_that_begins_with_a_header_is_refused_if_the_job_expects_none(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    put(tmp_path / "master" / "a.csv", "1,a,5\n")
    put(tmp_path / "incr" / name, text)
    with pytest.raises(
        InvalidInputError,
        match=rf"{name[:-4]}\.csv, line 1: '.*' is a header, but the job has header=False",
    ):
        run(
            spark,
            tmp_path,
            ids=["id"],
            schema="id STRING, name STRING, at STRING",
            header=False,
            delete_prefix="del",
        )
