"""A master is read as the last run wrote it; what contradicts the record is an error."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.mutate import read_master
from tests.opal_spark.mutate.folders import put, run


def read(spark: SparkSession, folder: Path, **arguments: object) -> list[tuple[object, ...]]:
    rows = read_master(spark, str(folder / "master"), **arguments)  # type: ignore[arg-type]
    return sorted(tuple(row) for row in rows.collect())


def test_first_row_of_a_headerless_master_is_not_read_as_a_header(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "part-00000", "1|one\n2|two\n")
    put(tmp_path / "incr" / "a.csv", "3|three\n")
    with pytest.raises(InvalidInputError, match="no run has recorded whether"):
        read(spark, tmp_path)
    run(spark, tmp_path, ids=["0"], header=False, delimiter="|")
    assert read(spark, tmp_path) == [("1", "one"), ("2", "two"), ("3", "three")]
    assert read(spark, tmp_path, options={"header": "FALSE", "delimiter": "|"})
    with pytest.raises(InvalidInputError, match="with header='false', but options= has 'true'"):
        read(spark, tmp_path, options={"header": "true"})
    with pytest.raises(InvalidInputError, match=r"wrote .*master as csv, not as format='json'"):
        read(spark, tmp_path, format="json")
    record = json.loads((tmp_path / "master" / "_mutated.json").read_text(encoding="utf-8"))
    assert (record["run"], record["format"]) == (1, "csv")
    assert record["options"] == {"sep": "|", "header": "false", "encoding": "UTF-8"}
    assert [field["name"] for field in record["schema"]["fields"]] == ["_c0", "_c1"]


def test_a_run_that_would_read_the_master_otherwise_than_it_was_written_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "1,one\n")
    put(tmp_path / "incr" / "a.csv", "2,two\n")
    run(spark, tmp_path, ids=["0"], header=False, output_options={"sep": ";"})
    put(tmp_path / "incr" / "b.csv", "3,three\n")
    increments = {"sep": ",", "header": "false"}
    quoted = {"delimiter": ";", "header": False, "options": {"quote": "'"}}
    with pytest.raises(InvalidInputError, match="give delimiter=';'"):
        run(spark, tmp_path, ids=["0"], header=False)
    with pytest.raises(InvalidInputError, match="give header=False"):
        run(spark, tmp_path, ids=["0"], delimiter=";", increment_options=increments)
    with pytest.raises(InvalidInputError, match="the master as csv, not as format='json'"):
        run(spark, tmp_path, ids=["0"], format="json")
    with pytest.raises(
        InvalidInputError, match=r"quote=the default, and .* leave the option quote out"
    ):
        run(spark, tmp_path, ids=["0"], increment_options=increments, **quoted)
    run(spark, tmp_path, ids=["0"], header=False, delimiter=";", increment_options=increments)
    assert read(spark, tmp_path) == [("1", "one"), ("2", "two"), ("3", "three")]


@pytest.mark.slow_but_one
@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_master_that_became_empty_reads_back_with_its_columns(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    schema = "id BIGINT, price DECIMAL(9,2), tags ARRAY<STRING>, country STRING"
    if kind == "csv":
        schema = schema.replace("ARRAY<STRING>", "STRING")
    given = {"ids": ["id"], "output_format": kind, "partition_by": ["country"], "schema": schema}
    put(tmp_path / "incr" / "a.json", '{"id": 1, "price": 1.50, "country": "de"}\n')
    run(spark, tmp_path, **given)
    assert read(spark, tmp_path)[0][0] == 1
    put(tmp_path / "incr" / "del_b.csv", "id\n1\n")
    run(spark, tmp_path, ids=["id"], delete_prefix="del_")
    emptied = read_master(spark, str(tmp_path / "master"))
    assert emptied.collect() == []
    assert emptied.schema.simpleString() == spark.createDataFrame([], schema).schema.simpleString()
    put(tmp_path / "incr" / "c.json", '{"id": 2, "price": 0.25, "country": "fr"}\n')
    run(spark, tmp_path, ids=["id"])
    assert [
        (row.id, str(row.price)) for row in read_master(spark, str(tmp_path / "master")).collect()
    ] == [(2, "0.25")]


def test_types_that_a_run_was_given_are_the_reader_s_and_the_next_run_s(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "incr" / "a.csv", "id,price\n1,1.50\n")
    run(spark, tmp_path, ids=["id"], schema="id INT, price DECIMAL(9,2)")
    put(tmp_path / "incr" / "b.csv", "id,price\n2,cheap\n")
    with pytest.raises(InvalidInputError, match="column 'price' is not a valid DECIMAL"):
        run(spark, tmp_path, ids=["id"])
    assert [
        (row.id, str(row.price)) for row in read_master(spark, str(tmp_path / "master")).collect()
    ] == [(1, "1.50")]


def test_a_row_that_does_not_fit_the_recorded_fields_fails_the_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "incr" / "a.csv", "1,one\n")
    run(spark, tmp_path, ids=["0"], header=False)
    put(tmp_path / "master" / "by_hand.csv", "2,two,more\n")
    with pytest.raises(Exception, match="the master has a row that does not fit its fields"):
        read(spark, tmp_path)


def test_rows_of_a_text_master_can_be_counted(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "csv" / "master" / "a.csv", "i,v\n1,x\n2,y\n")
    put(tmp_path / "json" / "master" / "a.json", '{"i": 1, "v": "x"}\n{"i": 2, "v": "y"}\n')
    for folder, options in (("csv", {"header": "true"}), ("json", None)):
        rows = read_master(spark, str(tmp_path / folder / "master"), options=options)
        assert rows.count() == 2
        assert rows.groupBy().count().collect()[0][0] == 2
        assert len(rows.selectExpr("1").collect()) == 2
        assert [row.v for row in rows.where("i = 2").collect()] == ["y"]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.csv", "i,v,s\n1,x,z\n2,y,z,more\n3,x,z\n"),
        ("a.csv", "i,v,s\n1,x,z\n2,y\n3,x,z\n"),
        ("a.json", '{"i": 1, "v": "x"}\n{"i": 2, "v": "y\n{"i": 3, "s": {"q": 1}}\n'),
    ],
)
def test_a_row_that_does_not_fit_fails_any_projection_and_filter(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    put(tmp_path / "master" / name, text)
    options = {"header": "true"} if name.endswith(".csv") else None
    rows = read_master(spark, str(tmp_path / "master"), options=options)
    looks = [
        rows,
        rows.select("i"),
        rows.select("v"),
        rows.selectExpr("1"),
        rows.groupBy().count(),
        rows.where("i = 1"),
        rows.where("i > 1 AND v IS NOT NULL").select("s"),
    ]
    for look in looks:
        with pytest.raises(Exception, match="the master has a row that does not fit its fields"):
            look.collect()


def test_a_wrong_type_that_a_projection_leaves_out_fails_the_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "incr" / "a.json", '{"i": 1, "s": {"q": 1}}\n')
    run(spark, tmp_path, ids=["i"])
    put(tmp_path / "master" / "by_hand.json", '{"i": 2, "s": {"q": "text"}}\n')
    rows = read_master(spark, str(tmp_path / "master"))
    for look in (rows.select("i"), rows.groupBy().count()):
        with pytest.raises(Exception, match="the master has a row that does not fit its fields"):
            look.collect()


def test_a_filter_on_folders_reads_only_their_files(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "master" / "p=1" / "a.csv", "i,v\n1,x\n")
    put(tmp_path / "master" / "p=2" / "a.csv", "i,v\n2,x,more\n")
    rows = read_master(spark, str(tmp_path / "master"), options={"header": "true"})
    assert [row.i for row in rows.where("p = '1'").collect()] == ["1"]


def test_members_that_files_of_json_have_in_addition_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "incr" / "a.json", '{"i": 1, "l": [{"q": 1}], "s": {"q": 1}}\n')
    run(spark, tmp_path, ids=["i"])
    line = {"i": 2, "l": [{"q": 1, "z": 2}], "s": {"q": 1, "z": {"y": 3}}}
    put(tmp_path / "master" / "by_hand.json", json.dumps(line) + "\n")
    rows = read_master(spark, str(tmp_path / "master")).where("i = 2").collect()
    assert [row.asDict(recursive=True) for row in rows] == [line]


def test_a_table_is_not_read_by_its_files(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "master" / "_opal" / "log" / "0.json", "{}")
    put(tmp_path / "master" / "data" / "a.json", '{"id": 1}\n')
    with pytest.raises(InvalidInputError, match=r"master is an Opal table, .* its own reader"):
        read(spark, tmp_path)


def test_a_delete_file_of_ids_alone_has_a_header_where_files_have_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v\n1,one\n2,two\n")
    put(tmp_path / "incr" / "del_a.csv", "1\n2\n")
    with pytest.raises(InvalidInputError, match=r"del_a\.csv, line 1: unknown field '1'"):
        run(spark, tmp_path, ids=["id"], delete_prefix="del_")
    put(tmp_path / "incr" / "del_a.csv", "id\n1\n")
    assert run(spark, tmp_path, ids=["id"], delete_prefix="del_").counts["deletes"] == 1
    assert read(spark, tmp_path) == [("2", "two")]
